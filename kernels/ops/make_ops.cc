#include "kernels/core/status_macros.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/jensen_shannon.h"
#include "kernels/ops/kl_divergence.h"
#include "kernels/ops/linear_cross_entropy.h"
#include "kernels/ops/linear_distill_loss.h"
#include "kernels/ops/linear_logprob.h"
#include "kernels/ops/linear_logprob_backward.h"
#include "kernels/ops/linear_policy_loss.h"
#include "kernels/ops/linear_preference_loss.h"
#include "kernels/ops/linear_unpaired_loss.h"
#include "kernels/ops/logprob.h"
#include "kernels/ops/logprob_backward.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/policy_loss.h"
#include "kernels/ops/preference_loss.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/softmax.h"
#include "kernels/ops/total_variation.h"
#include "kernels/ops/unpaired_loss.h"

namespace lossd {

absl::StatusOr<std::vector<std::unique_ptr<Op>>> MakeOps() {
  std::vector<std::unique_ptr<Op>> ops;
#define LOSSD_OP(Name, header)                                                         \
  {                                                                                    \
    LOSSD_ASSIGN_OR_RETURN(OpSchema schema, OpSchema::Create(v1::Name::descriptor())); \
    ops.push_back(std::make_unique<Name##Op>(std::move(schema)));                      \
  }
#include "kernels/ops/list.inc"
#undef LOSSD_OP
  return ops;
}

}  // namespace lossd
