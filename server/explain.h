// One ExplainRequest from its message to its reply.
#ifndef LOSSD_SERVER_EXPLAIN_H_
#define LOSSD_SERVER_EXPLAIN_H_

#include "absl/status/status.h"
#include "kernels/core/planned_device.h"
#include "kernels/core/registry.h"
#include "lossd/v1/service.pb.h"

namespace lossd {

// `own`: the server's device. Touches no device, and waits for nothing.
// Errors: those of the call; INVALID_ARGUMENT or UNIMPLEMENTED for a device that cannot be planned for.
absl::Status ExplainCall(const Registry& registry, const DeviceDescription& own,
                         const v1::ExplainRequest& request, v1::ExplainReply* reply);

}  // namespace lossd

#endif  // LOSSD_SERVER_EXPLAIN_H_
