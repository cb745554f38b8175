// What LinearCrossEntropy and CrossEntropy have in common: the rules between their options, and the course of a call behind the logits.
#ifndef LOSSD_KERNELS_OPS_CROSS_ENTROPY_BIND_H_
#define LOSSD_KERNELS_OPS_CROSS_ENTROPY_BIND_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/op.h"
#include "kernels/linear/head.h"

namespace lossd {

// M is one of the two messages; cross_entropy_bind.cc has both.

// Errors: INVALID_ARGUMENT, UNIMPLEMENTED, with the field.
template <class M>
absl::Status CheckCrossEntropy(const M& request, bool wants_gradients, const Dims& dims);

template <class M>
absl::StatusOr<PendingResult> EnqueueCrossEntropy(const M& request, const HeadProblem& head,
                                                  const HeadGradients& gradients,
                                                  const OpCall& call, Backend& backend);

template <class M>
void FillCrossEntropyReply(const M& request, const ResultRecord& record, v1::OpReply* reply);

const std::vector<std::string>& CrossEntropyMetricNames();

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_CROSS_ENTROPY_BIND_H_
