// Errors that name the field. Every refusal of the library is made here, so that text and detail never differ.
#ifndef LOSSD_KERNELS_CORE_ERROR_H_
#define LOSSD_KERNELS_CORE_ERROR_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "lossd/v1/error.pb.h"

namespace lossd {

// Where the detail is kept in an absl::Status.
inline constexpr char kErrorDetailUrl[] = "type.googleapis.com/lossd.v1.ErrorDetail";

// INVALID_ARGUMENT "clip_low: must be between 0 and 1, is 1.5", with the detail attached.
absl::Status FieldError(absl::string_view field, absl::string_view must_be, absl::string_view is);

// UNIMPLEMENTED "kind: must be PPO or REINFORCE in this build, is GSPO".
absl::Status UnimplementedError(absl::string_view field, absl::string_view must_be,
                                absl::string_view is);

// Any code with a stable reason word; message says what to do.
absl::Status ReasonError(absl::StatusCode code, absl::string_view reason,
                         absl::string_view message);

// A status with the given detail; the text is made of it when `message` is empty.
absl::Status DetailError(absl::StatusCode code, const v1::ErrorDetail& detail,
                         absl::string_view message = "");

// The detail of a status, if it has one.
absl::optional<v1::ErrorDetail> GetErrorDetail(const absl::Status& status);

// The same status with the operation's name and index in the request added to its detail.
absl::Status AnnotateOp(const absl::Status& status, absl::string_view op, int index);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CORE_ERROR_H_
