// The stages of a policy loss and their workspace, with a head or without.
#ifndef LOSSD_KERNELS_OPS_POLICY_RUN_H_
#define LOSSD_KERNELS_OPS_POLICY_RUN_H_

#include <vector>

#include "absl/status/status.h"
#include "kernels/linear/engine.h"
#include "kernels/objectives/policy.h"

namespace lossd {

// A stage and its number of instances.
template <class S, class... More>
StageRun MakePolicyRun(const PolicyProblem& problem, const More&... more) {
  const S stage{problem, more...};
  return {stage, stage.Instances()};
}

// Record, rows and workspace of `engine`, but what only a head needs. `wants_d_logprob`: the derivative with respect to logprob is wanted.
// Errors: RESOURCE_EXHAUSTED.
absl::Status AllocatePolicy(bool wants_d_logprob, HeadEngine* engine, PolicyProblem* problem);

// The stages where log-probabilities are known, from the sequences to the sums (objectives/policy.h). An absent derivative is not wanted.
std::vector<StageRun> PolicyStages(const PolicyProblem& problem,
                                   const PolicyDerivatives& derivatives);

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_POLICY_RUN_H_
