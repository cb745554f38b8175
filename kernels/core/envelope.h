// The rules of RunRequest that hold wherever it is run.
#ifndef LOSSD_KERNELS_CORE_ENVELOPE_H_
#define LOSSD_KERNELS_CORE_ENVELOPE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "kernels/core/registry.h"
#include "lossd/v1/service.pb.h"

namespace lossd {

// INVALID_ARGUMENT if the message has a field or value of another version of the protocol. `field`: its name; "" for a request.
absl::Status CheckKnown(const google::protobuf::Message& message, absl::string_view field);

// INVALID_ARGUMENT unless it is in [0, 1).
absl::Status CheckGradientFilter(double gradient_filter);

// Number of operations, unknown fields, gradient_filter. Errors: INVALID_ARGUMENT, with the field.
absl::Status CheckOps(const v1::RunRequest& request);

// Whether what is donated is an input of one of the operations, and one whose memory an output can take.
// Errors: INVALID_ARGUMENT, UNIMPLEMENTED.
absl::Status CheckDonated(const v1::RunRequest& request, const Registry& registry);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CORE_ENVELOPE_H_
