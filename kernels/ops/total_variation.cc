#include "kernels/ops/total_variation.h"

#include "kernels/ops/divergence_bind.h"

namespace lossd {

const std::vector<std::string>& TotalVariationOp::metric_names() const {
  static const auto* const kNone = new std::vector<std::string>;
  return *kNone;
}

absl::Status TotalVariationOp::CheckRequest(const v1::TotalVariation& request,
                                            const Dims& dims) const {
  return CheckDivergence(DivergenceFieldsOf(request), {v1::DISTRIBUTION_KIND_PROBS, false}, dims);
}

absl::StatusOr<PendingResult> TotalVariationOp::EnqueueRequest(const v1::TotalVariation& request,
                                                               const OpCall& call,
                                                               Backend& backend) const {
  const DivergenceKind<float> kind = MakeDivergence<float>(Divergence::kTvd, 0, 0);
  return EnqueueDivergence(DivergenceFieldsOf(request), kind, call, backend);
}

void TotalVariationOp::FillReply(const v1::TotalVariation&, const ResultRecord& record,
                                 v1::OpReply* reply) const {
  reply->set_sum(record.sum);
  reply->set_count(record.count);
}

}  // namespace lossd
