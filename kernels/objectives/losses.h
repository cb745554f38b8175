// The losses on log-probabilities that the caller has, each as one thing: what a backend needs that runs a whole call at once. The stages
// that they stand for are those of policy.h, preference.h, unpaired.h and sequence_stages.h. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_LOSSES_H_
#define LOSSD_KERNELS_OBJECTIVES_LOSSES_H_

#include <cstdint>
#include <variant>

#include "kernels/core/host_device.h"
#include "kernels/objectives/policy.h"
#include "kernels/objectives/preference.h"
#include "kernels/objectives/sequence_stages.h"
#include "kernels/objectives/unpaired.h"

namespace lossd {

// Of each: IsCounted of a row, without an array of what counts; Groups, the instances of the first stage.
struct PolicyLossCall {
  PolicyProblem problem;
  PolicyDerivatives derivatives;

  LOSSD_HD bool IsCounted(int64_t row) const { return problem.IsCounted(row); }
  LOSSD_HD int64_t Groups() const { return problem.sequences; }
};

struct PreferenceLossCall {
  PreferenceProblem problem;
  NllMaskStage nll;  // without rows if the call has no nll_mask

  LOSSD_HD bool IsCounted(int64_t row) const {
    return nll.rows > 0 ? nll.IsRead(row) : problem.sequences.InMask(row);
  }
  LOSSD_HD int64_t Groups() const { return problem.Pairs(); }
};

struct UnpairedLossCall {
  UnpairedProblem problem;

  LOSSD_HD bool IsCounted(int64_t row) const { return problem.sequences.InMask(row); }
  LOSSD_HD int64_t Groups() const { return problem.sequences.sequences; }
};

using LossCall = std::variant<PolicyLossCall, PreferenceLossCall, UnpairedLossCall>;

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_LOSSES_H_
