// What LinearLogprob and Logprob have in common, and their backward operations: the rules between their options, and the course of a call
// behind the logits.
#ifndef LOSSD_KERNELS_OPS_LOGPROB_BIND_H_
#define LOSSD_KERNELS_OPS_LOGPROB_BIND_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/op.h"
#include "kernels/linear/head.h"

namespace lossd {

// M is one of the two messages; logprob_bind.cc has both.

// Errors: INVALID_ARGUMENT with the field. The head has been checked.
template <class M>
absl::Status CheckLogprob(const M& request, const Dims& dims);
template <class M>
absl::StatusOr<PendingResult> EnqueueLogprob(const M& request, const HeadProblem& problem,
                                             const OpCall& call, Backend& backend);

template <class M>
absl::Status CheckLogprobBackward(const M& request, const Dims& dims);
template <class M>
absl::StatusOr<PendingResult> EnqueueLogprobBackward(const M& request, const HeadProblem& problem,
                                                     const HeadGradients& gradients,
                                                     const OpCall& call, Backend& backend);

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_LOGPROB_BIND_H_
