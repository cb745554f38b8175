// What a session asks of memory and events, whichever transport the request came by.
#ifndef LOSSD_SERVER_SESSION_MEMORY_H_
#define LOSSD_SERVER_SESSION_MEMORY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "lossd/v1/session.pb.h"
#include "server/session.h"
#include "server/unique_fd.h"

namespace lossd {

// What a client says of itself. Errors: INVALID_ARGUMENT (name), FAILED_PRECONDITION with reason PROTOCOL.
absl::Status CheckOpenRequest(const v1::OpenSessionRequest& request);

// Registers memory of the client. `fd` is the attached descriptor, or none.
// Errors: INVALID_ARGUMENT with the field (length of a handle, seals, size), UNIMPLEMENTED (no such handles on this backend),
// FAILED_PRECONDITION with reason WRONG_GPU, PID_COLLISION or HANDLE_IN_USE, and those of RegionTable::Add.
absl::StatusOr<v1::RegisterRegionReply> RegisterRegion(Device& device, Session& session,
                                                       const v1::RegisterRegionRequest& request,
                                                       UniqueFd fd);

// Errors: NOT_FOUND.
absl::StatusOr<v1::UnregisterRegionReply> UnregisterRegion(
    Session& session, const v1::UnregisterRegionRequest& request);

// Allocates memory for the session. Host memory's descriptor goes to *fd.
// Errors: INVALID_ARGUMENT, RESOURCE_EXHAUSTED with reason QUOTA_MEMORY, HOST_MEMORY or the device's, UNIMPLEMENTED.
absl::StatusOr<v1::AllocateRegionReply> AllocateRegion(Device& device, Session& session,
                                                       const v1::AllocateRegionRequest& request,
                                                       UniqueFd* fd);

v1::ListRegionsReply ListRegions(Session& session);

// Opens the client's events and makes as many done events.
// Errors: INVALID_ARGUMENT (length), UNIMPLEMENTED, RESOURCE_EXHAUSTED with reason QUOTA_EVENTS.
absl::StatusOr<v1::RegisterEventsReply> RegisterEvents(Device& device, Session& session,
                                                       const v1::RegisterEventsRequest& request);

}  // namespace lossd

#endif  // LOSSD_SERVER_SESSION_MEMORY_H_
