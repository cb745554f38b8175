// Who calls an RPC: the listener that it came by, and the session of its token.
#ifndef LOSSD_SERVER_CALLER_H_
#define LOSSD_SERVER_CALLER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/session_table.h"

namespace grpc {
class ServerContextBase;
}

namespace lossd {

inline constexpr char kTokenMetadata[] = "x-lossd-session-bin";

// Whether the call came by the Unix socket. What is neither Unix nor TCP counts as TCP, which may do less.
bool IsUnixCaller(const grpc::ServerContextBase& context);

// The session of the call's token; null without a token.
// Errors: UNAUTHENTICATED with reason STALE_SESSION if the token is of no session of this listener.
absl::StatusOr<std::shared_ptr<Session>> FindSession(const grpc::ServerContextBase& context,
                                                     const SessionTable& sessions);
// The same, where a session is needed. Errors: also UNAUTHENTICATED without a token.
absl::StatusOr<std::shared_ptr<Session>> RequireSession(const grpc::ServerContextBase& context,
                                                        const SessionTable& sessions);

absl::Time DeadlineOf(const grpc::ServerContextBase& context);

}  // namespace lossd

#endif  // LOSSD_SERVER_CALLER_H_
