#include "kernels/ops/kl_divergence.h"

#include "kernels/core/error.h"
#include "kernels/ops/divergence_bind.h"

namespace lossd {

const std::vector<std::string>& KlDivergenceOp::metric_names() const {
  static const auto* const kNone = new std::vector<std::string>;
  return *kNone;
}

absl::Status KlDivergenceOp::CheckRequest(const v1::KlDivergence& request, const Dims& dims) const {
  const v1::DistributionPair& pair = request.pair();
  const bool floored = request.direction() == v1::KL_DIRECTION_FORWARD &&
                       pair.teacher_kind() == v1::DISTRIBUTION_KIND_PROBS;
  if (request.has_teacher_floor() && !floored) {
    return FieldError("teacher_floor", "absent unless direction is FORWARD and teacher_kind PROBS",
                      "given");
  }
  return CheckDivergence(DivergenceFieldsOf(request),
                         {v1::DISTRIBUTION_KIND_LOGPROBS, /*teacher_probs=*/true}, dims);
}

absl::StatusOr<PendingResult> KlDivergenceOp::EnqueueRequest(const v1::KlDivergence& request,
                                                             const OpCall& call,
                                                             Backend& backend) const {
  const bool reverse = request.direction() == v1::KL_DIRECTION_REVERSE;
  DivergenceKind<float> kind =
      MakeDivergence<float>(reverse ? Divergence::kReverseKl : Divergence::kForwardKl, 0, 0);
  kind.teacher_floor = static_cast<float>(request.teacher_floor());
  return EnqueueDivergence(DivergenceFieldsOf(request), kind, call, backend);
}

void KlDivergenceOp::FillReply(const v1::KlDivergence&, const ResultRecord& record,
                               v1::OpReply* reply) const {
  reply->set_sum(record.sum);
  reply->set_count(record.count);
}

}  // namespace lossd
