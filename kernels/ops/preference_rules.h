// The rules between the fields of a preference loss that its descriptor cannot say.
#ifndef LOSSD_KERNELS_OPS_PREFERENCE_RULES_H_
#define LOSSD_KERNELS_OPS_PREFERENCE_RULES_H_

#include "absl/status/status.h"
#include "kernels/core/schema.h"
#include "lossd/v1/preference.pb.h"

namespace lossd {

// Everything about the terms; `head` is null for PreferenceLoss. Looks at no data.
// Errors: INVALID_ARGUMENT with the field ("terms[1].tau"); UNIMPLEMENTED for more terms than a kernel holds.
absl::Status CheckPreferenceTerms(const v1::PreferenceTerms& preference,
                                  const v1::ReferenceHead* head, const Dims& dims,
                                  bool wants_gradient);

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_PREFERENCE_RULES_H_
