// The rules between the fields of a policy loss, for every kind of the specification: what must be given, what has no meaning.
#ifndef LOSSD_KERNELS_OPS_POLICY_RULES_H_
#define LOSSD_KERNELS_OPS_POLICY_RULES_H_

#include "absl/status/status.h"
#include "lossd/v1/policy.pb.h"

namespace lossd {

// After the schema's own check. `wants_gradient`: whether the request has a gradient for an output.
// Errors: INVALID_ARGUMENT with the field.
absl::Status CheckPolicyTerms(const v1::PolicyTerms& policy, bool wants_gradient);

absl::Status CheckPolicyOutputs(const v1::PolicyTerms& policy, const v1::PolicyOutputs& outputs);

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_POLICY_RULES_H_
