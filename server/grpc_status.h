// absl::Status to and from grpc::Status, details included.
#ifndef LOSSD_SERVER_GRPC_STATUS_H_
#define LOSSD_SERVER_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace lossd {

// The detail travels in grpc-status-details-bin as a RichStatus, which has the wire shape of google.rpc.Status. Texts are cut to the
// limits of rich_status.h.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace lossd

#endif  // LOSSD_SERVER_GRPC_STATUS_H_
