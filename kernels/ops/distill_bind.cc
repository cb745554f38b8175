#include "kernels/ops/distill_bind.h"

#include "kernels/linear/bind_head.h"
#include "kernels/ops/distill_rules.h"
#include "kernels/ops/divergence_bind.h"

namespace lossd {
namespace {

// The formulas' enums have the numbers of the wire.
static_assert(static_cast<int>(Divergence::kForwardKl) == v1::DIVERGENCE_FORWARD_KL);
static_assert(static_cast<int>(Divergence::kReverseKl) == v1::DIVERGENCE_REVERSE_KL);
static_assert(static_cast<int>(Divergence::kJsd) == v1::DIVERGENCE_JSD);
static_assert(static_cast<int>(Divergence::kMixed) == v1::DIVERGENCE_MIXED);
static_assert(static_cast<int>(Divergence::kTvd) == v1::DIVERGENCE_TVD);
static_assert(static_cast<int>(Divergence::kCosine) == v1::DIVERGENCE_COSINE);
static_assert(static_cast<int>(TopkTail::kDrop) == v1::TOPK_TAIL_DROP);
static_assert(static_cast<int>(TopkTail::kRenormalise) == v1::TOPK_TAIL_RENORMALISE);
static_assert(static_cast<int>(TopkTail::kGhost) == v1::TOPK_TAIL_GHOST);
static_assert(static_cast<int>(TopkTail::kZeroOutside) == v1::TOPK_TAIL_ZERO_OUTSIDE);

PairSide BindTeacher(const v1::LinearDistillLoss& request, const HeadProblem& student,
                     const Dims& dims, const Binding& binding) {
  const v1::DistillTeacher& teacher = request.teacher();
  PairSide side;
  HeadProblem& head = side.head;
  head.rows = student.rows;
  head.temperature = student.temperature;
  head.temperature_rows = student.temperature_rows;
  head.hidden_size = dims["TeacherH"];
  head.vocab = head.vocab_total = dims["TeacherV"];
  head.valid_vocab = head.valid_columns = VocabularyOf(request, dims).teacher;
  head.logit_scale = static_cast<float>(teacher.teacher_logit_scale());
  head.softcap = static_cast<float>(teacher.teacher_softcap());
  if (teacher.has_teacher_topk_ids()) {
    side.form = PairForm::kTopk;
    side.topk_ids = BindMatrix(teacher.teacher_topk_ids(), binding);
    side.topk_logprob = BindMatrix(teacher.teacher_topk_logprob(), binding);
  } else if (teacher.has_teacher_logits()) {
    side.form = PairForm::kValues;
    side.values = BindMatrix(teacher.teacher_logits(), binding);
  } else {
    head.hidden = BindMatrix(teacher.teacher_hidden(), binding);
    head.weight = BindMatrix(teacher.teacher_weight(), binding);
    head.bias = BindColumn(teacher.teacher_bias(), binding);
  }
  return side;
}

TopkOptions<float> MakeTopk(const v1::DistillTeacher& teacher,
                            const DivergenceKind<float>& divergence) {
  TopkOptions<float> out;
  out.divergence = divergence;
  if (teacher.has_tail()) out.tail = static_cast<TopkTail>(teacher.tail());
  out.outside_logprob = static_cast<float>(teacher.outside_logprob());
  out.has_floor = teacher.has_logprob_floor();
  if (out.has_floor) out.floor = static_cast<float>(teacher.logprob_floor());
  return out;
}

}  // namespace

PairPass BindDistill(const v1::LinearDistillLoss& request, const HeadProblem& head,
                     const Dims& dims, const Binding& binding) {
  const v1::DistillOptions& options = request.distill();
  const v1::DistillOutputs& outputs = request.outputs();
  PairPass pass;
  pass.student.head = head;
  pass.teacher = BindTeacher(request, head, dims, binding);
  pass.columns = VocabularyOf(request, dims).common;
  pass.gradients = BindGradients(request.gradients(), binding);
  pass.overlap = BindColumn(outputs.overlap(), binding);

  DivergenceRows& rows = pass.program;
  rows.divergence = MakeDivergence<float>(static_cast<Divergence>(options.divergence()),
                                          options.beta(), options.mix_weight());
  rows.topk = MakeTopk(request.teacher(), rows.divergence);
  rows.topk_tempered = request.teacher().teacher_topk_tempered();
  rows.temperature = head.temperature;
  rows.temperature_rows = head.temperature_rows;
  rows.temperature_squared = options.temperature_squared();
  if (options.has_token_loss_min()) rows.loss_min = static_cast<float>(options.token_loss_min());
  if (options.has_token_loss_max()) rows.loss_max = static_cast<float>(options.token_loss_max());
  rows.soft_weight = static_cast<float>(options.soft_weight());
  rows.hard_weight = static_cast<float>(options.hard_weight());
  rows.row_weight = BindColumn(options.row_weight(), binding);
  rows.valid_vocab = head.valid_vocab;
  rows.target = head.target;
  rows.row_loss = BindColumn(outputs.row_loss(), binding);
  rows.logprob = BindColumn(outputs.logprob(), binding);
  rows.lse = BindColumn(outputs.lse(), binding);
  rows.entropy = BindColumn(outputs.entropy(), binding);
  rows.student_mass = BindColumn(outputs.student_mass(), binding);
  rows.teacher_mass = BindColumn(outputs.teacher_mass(), binding);
  BindReduction(
      ReductionOf(request, outputs.has_loss(), request.has_d_loss() ? &request.d_loss() : nullptr),
      binding, &rows);
  return pass;
}

}  // namespace lossd
