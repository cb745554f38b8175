#include "kernels/ops/jensen_shannon.h"

#include "kernels/ops/divergence_bind.h"

namespace lossd {

const std::vector<std::string>& JensenShannonOp::metric_names() const {
  static const auto* const kNone = new std::vector<std::string>;
  return *kNone;
}

absl::Status JensenShannonOp::CheckRequest(const v1::JensenShannon& request,
                                           const Dims& dims) const {
  return CheckDivergence(DivergenceFieldsOf(request), {v1::DISTRIBUTION_KIND_LOGPROBS, false},
                         dims);
}

absl::StatusOr<PendingResult> JensenShannonOp::EnqueueRequest(const v1::JensenShannon& request,
                                                              const OpCall& call,
                                                              Backend& backend) const {
  const DivergenceKind<float> kind = MakeDivergence<float>(Divergence::kJsd, request.beta(), 0);
  return EnqueueDivergence(DivergenceFieldsOf(request), kind, call, backend);
}

void JensenShannonOp::FillReply(const v1::JensenShannon&, const ResultRecord& record,
                                v1::OpReply* reply) const {
  reply->set_sum(record.sum);
  reply->set_count(record.count);
}

}  // namespace lossd
