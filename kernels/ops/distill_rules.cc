#include "kernels/ops/distill_rules.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

constexpr int64_t kMaxEntries = 1024;
constexpr int64_t kMaxVocab = int64_t{1} << 24;

bool HasHead(const v1::DistillTeacher& teacher) {
  return teacher.has_teacher_hidden() || teacher.has_teacher_weight() || teacher.has_teacher_bias();
}
bool HasTopk(const v1::DistillTeacher& teacher) {
  return teacher.has_teacher_topk_ids() || teacher.has_teacher_topk_logprob();
}

// Refuses a field that is present without a meaning.
absl::Status Unless(bool allowed, bool present, absl::string_view field, absl::string_view why) {
  if (allowed || !present) return absl::OkStatus();
  return FieldError(field, absl::StrCat("absent ", why), "given");
}

absl::Status CheckOneTeacher(const v1::DistillTeacher& teacher) {
  const int forms = (HasHead(teacher) ? 1 : 0) + (teacher.has_teacher_logits() ? 1 : 0) +
                    (HasTopk(teacher) ? 1 : 0);
  if (forms == 0) {
    return FieldError("teacher_hidden", "given, or teacher_logits, or teacher_topk_ids", "absent");
  }
  if (forms > 1) {
    return FieldError(HasHead(teacher) ? "teacher_hidden" : "teacher_topk_ids",
                      "absent beside another teacher", "given");
  }
  if (HasHead(teacher) && !teacher.has_teacher_hidden()) {
    return FieldError("teacher_hidden", "given with teacher_weight", "absent");
  }
  if (HasHead(teacher) && !teacher.has_teacher_weight()) {
    return FieldError("teacher_weight", "given with teacher_hidden", "absent");
  }
  if (HasTopk(teacher) && !teacher.has_teacher_topk_ids()) {
    return FieldError("teacher_topk_ids", "given with teacher_topk_logprob", "absent");
  }
  if (HasTopk(teacher) && !teacher.has_teacher_topk_logprob()) {
    return FieldError("teacher_topk_logprob", "given with teacher_topk_ids", "absent");
  }
  return absl::OkStatus();
}

absl::Status CheckTopk(const v1::LinearDistillLoss& request, const Dims& dims) {
  const v1::DistillTeacher& teacher = request.teacher();
  const v1::DistillOptions& options = request.distill();
  const char* const why = "with a top-k teacher";
  LOSSD_RETURN_IF_ERROR(
      Unless(false, teacher.has_teacher_logit_scale(), "teacher_logit_scale", why));
  LOSSD_RETURN_IF_ERROR(Unless(false, teacher.has_teacher_softcap(), "teacher_softcap", why));
  LOSSD_RETURN_IF_ERROR(
      Unless(false, teacher.has_teacher_valid_vocab(), "teacher_valid_vocab", why));
  LOSSD_RETURN_IF_ERROR(Unless(false, teacher.has_vocab_mismatch(), "vocab_mismatch", why));
  if (dims["K"] > kMaxEntries) {
    return FieldError("teacher_topk_ids", absl::StrCat("at most ", kMaxEntries, " in a row"),
                      absl::StrCat(dims["K"]));
  }
  if (options.divergence() == v1::DIVERGENCE_COSINE) {
    return FieldError("divergence", "other than COSINE with a top-k teacher", "COSINE");
  }
  if (!teacher.has_tail()) return FieldError("tail", "given with a top-k teacher", "absent");
  const v1::TopkTail tail = teacher.tail();
  const bool outside = tail == v1::TOPK_TAIL_ZERO_OUTSIDE;
  if (!teacher.teacher_topk_tempered() && !outside && tail != v1::TOPK_TAIL_RENORMALISE) {
    return FieldError("teacher_topk_tempered", "true unless tail is RENORMALISE or ZERO_OUTSIDE",
                      "false");
  }
  const bool reverse = options.divergence() == v1::DIVERGENCE_REVERSE_KL ||
                       options.divergence() == v1::DIVERGENCE_MIXED;
  LOSSD_RETURN_IF_ERROR(Unless(outside && reverse, teacher.has_outside_logprob(), "outside_logprob",
                               "unless tail is ZERO_OUTSIDE and divergence REVERSE_KL or MIXED"));
  LOSSD_RETURN_IF_ERROR(Unless(tail == v1::TOPK_TAIL_DROP, teacher.has_logprob_floor(),
                               "logprob_floor", "unless tail is DROP"));
  if (outside && options.divergence() == v1::DIVERGENCE_JSD && options.beta() == 1) {
    return FieldError("beta", "below 1 with tail ZERO_OUTSIDE", "1");
  }
  return absl::OkStatus();
}

absl::Status CheckWholeTeacher(const v1::LinearDistillLoss& request, const Dims& dims) {
  const v1::DistillTeacher& teacher = request.teacher();
  const v1::DistillOptions& options = request.distill();
  const char* const why = "without a top-k teacher";
  LOSSD_RETURN_IF_ERROR(Unless(false, teacher.has_tail(), "tail", why));
  LOSSD_RETURN_IF_ERROR(
      Unless(false, teacher.has_teacher_topk_tempered(), "teacher_topk_tempered", why));
  LOSSD_RETURN_IF_ERROR(Unless(false, teacher.has_outside_logprob(), "outside_logprob", why));
  LOSSD_RETURN_IF_ERROR(Unless(false, teacher.has_logprob_floor(), "logprob_floor", why));
  const v1::DistillOutputs& outputs = request.outputs();
  LOSSD_RETURN_IF_ERROR(Unless(false, outputs.has_student_mass(), "student_mass", why));
  LOSSD_RETURN_IF_ERROR(Unless(false, outputs.has_teacher_mass(), "teacher_mass", why));
  LOSSD_RETURN_IF_ERROR(Unless(false, outputs.has_overlap(), "overlap", why));

  const char* const matrix = teacher.has_teacher_logits() ? "teacher_logits" : "teacher_weight";
  const int64_t rows = dims["TeacherV"];
  if (rows < 1) return FieldError(matrix, "of at least 1 vocabulary id", "of none");
  if (rows > kMaxVocab) {
    return FieldError(matrix, "of at most 2^24 vocabulary ids", absl::StrCat(rows));
  }
  if (teacher.has_teacher_hidden() && dims["TeacherH"] < 1) {
    return FieldError("teacher_hidden", "of at least 1 column", "of none");
  }
  if (teacher.teacher_valid_vocab() > rows) {
    return FieldError("teacher_valid_vocab", absl::StrCat("at most ", rows),
                      absl::StrCat(teacher.teacher_valid_vocab()));
  }
  // The kernels compute in fp32.
  const auto fits = [](double value) {
    return value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max();
  };
  if (!fits(teacher.teacher_logit_scale())) {
    return FieldError("teacher_logit_scale", "within the range of fp32",
                      absl::StrCat(teacher.teacher_logit_scale()));
  }
  if (teacher.teacher_softcap() != 0 && !fits(teacher.teacher_softcap())) {
    return FieldError("teacher_softcap", "0 or within the range of fp32",
                      absl::StrCat(teacher.teacher_softcap()));
  }
  const DistillVocabulary vocabulary = VocabularyOf(request, dims);
  const int64_t own = teacher.teacher_valid_vocab() > 0 ? teacher.teacher_valid_vocab() : rows;
  if (own == vocabulary.student) return absl::OkStatus();
  switch (teacher.vocab_mismatch()) {
    case v1::VOCAB_MISMATCH_COMMON:
      return absl::OkStatus();
    case v1::VOCAB_MISMATCH_TEACHER_TO_STUDENT: {
      const bool infinite =
          options.divergence() == v1::DIVERGENCE_REVERSE_KL ||
          (options.divergence() == v1::DIVERGENCE_MIXED && options.mix_weight() < 1) ||
          (options.divergence() == v1::DIVERGENCE_JSD && options.beta() == 1);
      if (options.divergence() == v1::DIVERGENCE_COSINE || (infinite && vocabulary.student > own)) {
        return FieldError("vocab_mismatch", "COMMON for this divergence", "TEACHER_TO_STUDENT");
      }
      return absl::OkStatus();
    }
    default:
      return FieldError(
          "teacher_valid_vocab",
          absl::StrCat(vocabulary.student, ", as the student's, unless vocab_mismatch is given"),
          absl::StrCat(own));
  }
}

absl::Status CheckOptions(const v1::DistillOptions& options) {
  const bool jsd = options.divergence() == v1::DIVERGENCE_JSD;
  const bool mixed = options.divergence() == v1::DIVERGENCE_MIXED;
  LOSSD_RETURN_IF_ERROR(Unless(jsd, options.has_beta(), "beta", "unless divergence is JSD"));
  if (jsd && !options.has_beta()) return FieldError("beta", "given with divergence JSD", "absent");
  LOSSD_RETURN_IF_ERROR(
      Unless(mixed, options.has_mix_weight(), "mix_weight", "unless divergence is MIXED"));
  if (mixed && !options.has_mix_weight()) {
    return FieldError("mix_weight", "given with divergence MIXED", "absent");
  }
  if (options.has_token_loss_min() && options.has_token_loss_max() &&
      options.token_loss_min() > options.token_loss_max()) {
    return FieldError("token_loss_min",
                      absl::StrCat("at most token_loss_max, which is ", options.token_loss_max()),
                      absl::StrCat(options.token_loss_min()));
  }
  return absl::OkStatus();
}

}  // namespace

DistillVocabulary VocabularyOf(const v1::LinearDistillLoss& request, const Dims& dims) {
  const v1::DistillTeacher& teacher = request.teacher();
  DistillVocabulary out;
  out.student = request.head().valid_vocab() > 0 ? request.head().valid_vocab() : dims["V"];
  out.teacher = out.common = out.student;
  if (HasTopk(teacher)) return out;
  const int64_t own =
      teacher.teacher_valid_vocab() > 0 ? teacher.teacher_valid_vocab() : dims["TeacherV"];
  out.teacher = std::min(own, out.student);
  if (teacher.vocab_mismatch() == v1::VOCAB_MISMATCH_COMMON) out.common = out.teacher;
  return out;
}

absl::Status CheckDistill(const v1::LinearDistillLoss& request, const Dims& dims) {
  const v1::DistillOptions& options = request.distill();
  LOSSD_RETURN_IF_ERROR(CheckOneTeacher(request.teacher()));
  LOSSD_RETURN_IF_ERROR(CheckOptions(options));
  LOSSD_RETURN_IF_ERROR(HasTopk(request.teacher()) ? CheckTopk(request, dims)
                                                   : CheckWholeTeacher(request, dims));
  const bool has_target = request.head().has_target();
  if (!has_target && options.hard_weight() > 0) {
    return FieldError("target", "given with hard_weight", "absent");
  }
  if (!has_target && request.outputs().has_logprob()) {
    return FieldError("target", "given for logprob", "absent");
  }
  return absl::OkStatus();
}

}  // namespace lossd
