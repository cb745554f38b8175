#include "kernels/ops/divergence_bind.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"

namespace lossd {
namespace {

constexpr int64_t kMaxVocab = int64_t{1} << 24;

// The formulas' enums have the numbers of the wire.
static_assert(static_cast<int>(ValueKind::kLogits) == v1::DISTRIBUTION_KIND_LOGITS);
static_assert(static_cast<int>(ValueKind::kLogprobs) == v1::DISTRIBUTION_KIND_LOGPROBS);
static_assert(static_cast<int>(ValueKind::kProbs) == v1::DISTRIBUTION_KIND_PROBS);
static_assert(static_cast<int>(DistillDenominator::kGiven) + 1 == v1::DIVERGENCE_DENOMINATOR_GIVEN);
static_assert(static_cast<int>(DistillDenominator::kCount) + 1 == v1::DIVERGENCE_DENOMINATOR_COUNT);
static_assert(static_cast<int>(DistillDenominator::kElements) + 1 ==
              v1::DIVERGENCE_DENOMINATOR_ELEMENTS);
static_assert(static_cast<int>(DistillDenominator::kGiven) + 1 == v1::DISTILL_DENOMINATOR_GIVEN);
static_assert(static_cast<int>(DistillDenominator::kCount) + 1 == v1::DISTILL_DENOMINATOR_COUNT);

std::string KindName(v1::DistributionKind kind) {
  return ShortEnumName(v1::DistributionKind_descriptor()->FindValueByNumber(kind));
}

absl::Status CheckKinds(const v1::DistributionPair& pair, const AllowedKinds& allowed) {
  const auto fits = [&](v1::DistributionKind kind) {
    return kind == v1::DISTRIBUTION_KIND_LOGITS || kind == allowed.other;
  };
  const std::string kinds = absl::StrCat("LOGITS or ", KindName(allowed.other));
  if (!fits(pair.student_kind())) {
    return FieldError("student_kind", kinds, KindName(pair.student_kind()));
  }
  const bool probs = allowed.teacher_probs && pair.teacher_kind() == v1::DISTRIBUTION_KIND_PROBS;
  if (!fits(pair.teacher_kind()) && !probs) {
    return FieldError("teacher_kind", kinds, KindName(pair.teacher_kind()));
  }
  if (pair.temperature() == 1) return absl::OkStatus();
  if (pair.student_kind() != v1::DISTRIBUTION_KIND_LOGITS ||
      pair.teacher_kind() != v1::DISTRIBUTION_KIND_LOGITS) {
    return FieldError("temperature", "1 unless both kinds are LOGITS",
                      absl::StrCat(pair.temperature()));
  }
  if (pair.temperature() < std::numeric_limits<float>::min() ||
      pair.temperature() > std::numeric_limits<float>::max()) {
    return FieldError("temperature", "within the range of fp32", absl::StrCat(pair.temperature()));
  }
  return absl::OkStatus();
}

PairSide MakeSide(const HeadProblem& head, v1::DistributionKind kind, const v1::Tensor& values,
                  const Binding& binding) {
  PairSide side;
  side.form = PairForm::kValues;
  side.head = head;
  side.kind = static_cast<ValueKind>(kind);
  side.values = BindMatrix(values, binding);
  return side;
}

}  // namespace

absl::Status CheckReduction(const ReductionFields& fields, bool wants_gradient, const Dims& dims) {
  const bool mean = fields.reduction == v1::REDUCTION_MEAN;
  const bool none = fields.reduction == v1::REDUCTION_NONE;
  if (!mean && fields.has_denominator_from) {
    return FieldError("denominator_from", "absent without reduction MEAN", "given");
  }
  const bool given = mean && fields.from == DistillDenominator::kGiven;
  if (given != fields.has_denominator) {
    return FieldError("denominator",
                      given ? "given with reduction MEAN and denominator_from GIVEN"
                            : "absent without reduction MEAN and denominator_from GIVEN",
                      given ? "absent" : absl::StrCat(fields.denominator));
  }
  if (none && fields.has_loss) return FieldError("loss", "absent with reduction NONE", "given");
  const bool has_d_loss = fields.d_loss != nullptr;
  if (!wants_gradient && has_d_loss) {
    return FieldError("d_loss", "absent where no gradient is wanted", "given");
  }
  if (none && wants_gradient && !has_d_loss) {
    return FieldError("d_loss", "given with reduction NONE", "absent");
  }
  const int64_t expected = none ? dims["N"] : 1;
  if (has_d_loss && dims["Upstream"] != expected) {
    return FieldError("d_loss",
                      absl::StrCat("of ", expected, expected == 1 ? " element" : " elements"),
                      absl::StrCat(dims["Upstream"]));
  }
  return absl::OkStatus();
}

void BindReduction(const ReductionFields& fields, const Binding& binding, DivergenceRows* rows) {
  rows->per_row_upstream = fields.reduction == v1::REDUCTION_NONE;
  if (fields.d_loss != nullptr) rows->d_loss = BindColumn(*fields.d_loss, binding);
  rows->from = fields.reduction == v1::REDUCTION_MEAN ? fields.from : DistillDenominator::kGiven;
  rows->denominator = fields.denominator;
}

absl::Status AllocateDivergence(int64_t rows, int32_t metrics, HeadEngine* engine,
                                DivergenceRows* program) {
  program->count = engine->rows().count;
  LOSSD_ASSIGN_OR_RETURN(program->value, engine->Allocate<float>(rows, "row losses"));
  LOSSD_ASSIGN_OR_RETURN(program->degenerate, engine->Allocate<uint8_t>(rows, "degenerate rows"));
  LOSSD_ASSIGN_OR_RETURN(program->negative, engine->Allocate<uint8_t>(rows, "negative rows"));
  if (metrics == 0) return absl::OkStatus();
  program->metrics.rows = rows;
  program->metrics.metrics = metrics;
  LOSSD_ASSIGN_OR_RETURN(program->metrics.values,
                         engine->Allocate<float>(rows * metrics, "metrics"));
  LOSSD_ASSIGN_OR_RETURN(program->metrics.population, engine->Allocate<uint64_t>(rows, "metrics"));
  return absl::OkStatus();
}

absl::Status CheckDivergence(const DivergenceFields& fields, const AllowedKinds& allowed,
                             const Dims& dims) {
  const v1::DistributionPair& pair = *fields.pair;
  if (dims["V"] < 1) return FieldError("student", "of at least 1 column", "of none");
  if (dims["V"] > kMaxVocab) {
    return FieldError("student", "of at most 2^24 columns", absl::StrCat(dims["V"]));
  }
  // Row numbers are 32 bits wide in the kernels.
  if (dims["N"] > std::numeric_limits<int32_t>::max()) {
    return UnimplementedError("student", "of less than 2^31 rows", absl::StrCat(dims["N"]));
  }
  if (pair.valid_vocab() > dims["V"]) {
    return FieldError("valid_vocab", absl::StrCat("at most ", dims["V"]),
                      absl::StrCat(pair.valid_vocab()));
  }
  LOSSD_RETURN_IF_ERROR(CheckKinds(pair, allowed));
  return CheckReduction(fields.reduction, fields.outputs->has_grad_student(), dims);
}

absl::StatusOr<PendingResult> EnqueueDivergence(const DivergenceFields& fields,
                                                const DivergenceKind<float>& kind,
                                                const OpCall& call, Backend& backend) {
  const v1::DistributionPair& pair = *fields.pair;
  const Binding& binding = *call.binding;
  HeadProblem head;
  head.rows = call.dims["N"];
  head.vocab = head.vocab_total = call.dims["V"];
  head.valid_vocab = pair.valid_vocab() > 0 ? pair.valid_vocab() : head.vocab;
  head.valid_columns = head.valid_vocab;
  head.mask = BindColumn(pair.mask(), binding);
  head.temperature = static_cast<float>(pair.temperature());
  LOSSD_ASSIGN_OR_RETURN(HeadEngine engine, HeadEngine::Start(call, backend, head));

  PairPass pass;
  pass.student = MakeSide(head, pair.student_kind(), pair.student(), binding);
  pass.teacher = MakeSide(head, pair.teacher_kind(), pair.teacher(), binding);
  pass.columns = head.valid_columns;
  pass.grad_student = BindMatrix(fields.outputs->grad_student(), binding);
  DivergenceRows& program = pass.program;
  program.divergence = kind;
  program.temperature = head.temperature;
  program.temperature_squared = pair.temperature_squared();
  program.row_weight = BindColumn(pair.row_weight(), binding);
  program.elements = head.valid_columns;
  program.has_head = false;
  program.row_loss = BindColumn(fields.outputs->row_loss(), binding);
  BindReduction(fields.reduction, binding, &program);
  LOSSD_RETURN_IF_ERROR(AllocateDivergence(head.rows, 0, &engine, &program));
  LOSSD_RETURN_IF_ERROR(engine.RunPair(pass));

  DivergenceEndStage end;
  end.rows = head.rows;
  end.counted = engine.rows().counted;
  end.program = program;
  end.teacher_field = call.schema->Find("teacher")->index;
  end.loss = BindColumn(fields.outputs->loss(), binding);
  end.record = engine.record();
  LOSSD_RETURN_IF_ERROR(engine.RunStage(end, end.Instances()));
  return engine.Finish();
}

}  // namespace lossd
