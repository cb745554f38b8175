// Rules about fields that must be there, or must not, because of other fields.
#ifndef LOSSD_KERNELS_OPS_PRESENCE_RULES_H_
#define LOSSD_KERNELS_OPS_PRESENCE_RULES_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/core/error.h"

namespace lossd {

// Refuses a field that is present where it has no meaning: "must be absent <why>".
inline absl::Status AbsentUnless(bool allowed, bool present, absl::string_view field,
                                 absl::string_view why) {
  if (allowed || !present) return absl::OkStatus();
  return FieldError(field, absl::StrCat("absent ", why), "present");
}

// Refuses the absence of a field that is needed: "must be given <why>".
inline absl::Status GivenIf(bool needed, bool present, absl::string_view field,
                            absl::string_view why) {
  if (!needed || present) return absl::OkStatus();
  return FieldError(field, absl::StrCat("given ", why), "absent");
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_PRESENCE_RULES_H_
