// Errors as the client gives them: every one may carry a lossd.v1.ErrorDetail, whatever transport brought it.
#ifndef LOSSD_CLIENT_CPP_STATUS_H_
#define LOSSD_CLIENT_CPP_STATUS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "grpcpp/support/status.h"
#include "lossd/v1/error.pb.h"

namespace lossd {

// Field, must_be, is, reason ... of an error; nothing if it has none.
absl::optional<v1::ErrorDetail> ErrorDetailOf(const absl::Status& status);

namespace client {

// A status of the client's own, with a stable reason word.
absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message);
absl::Status MakeError(absl::StatusCode code, const v1::ErrorDetail& detail,
                       absl::string_view message);
// INVALID_ARGUMENT "handle: must be 64 bytes, is 65".
absl::Status FieldError(absl::string_view field, absl::string_view must_be, absl::string_view is);

// Each detail becomes a payload under its type URL. A code that does not exist becomes UNKNOWN.
absl::Status FromRich(const v1::RichStatus& status);

// Details from grpc-status-details-bin, if they decode; code and text in any case.
absl::Status FromGrpc(const grpc::Status& status);

// "what: " before the text; payloads are kept.
absl::Status Prefix(absl::string_view what, const absl::Status& status);

}  // namespace client
}  // namespace lossd

#endif  // LOSSD_CLIENT_CPP_STATUS_H_
