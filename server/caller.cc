#include "server/caller.h"

#include <grpcpp/server_context.h>

#include <chrono>

#include "absl/strings/match.h"

namespace lossd {

bool IsUnixCaller(const grpc::ServerContextBase& context) {
  return absl::StartsWith(context.peer(), "unix:");
}

absl::StatusOr<std::shared_ptr<Session>> FindSession(const grpc::ServerContextBase& context,
                                                     const SessionTable& sessions) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(kTokenMetadata);
  if (found == metadata.end()) return std::shared_ptr<Session>();
  const auto kind = IsUnixCaller(context) ? Session::Kind::kSocket : Session::Kind::kLease;
  return sessions.Find(absl::string_view(found->second.data(), found->second.size()), kind);
}

absl::StatusOr<std::shared_ptr<Session>> RequireSession(const grpc::ServerContextBase& context,
                                                        const SessionTable& sessions) {
  absl::StatusOr<std::shared_ptr<Session>> session = FindSession(context, sessions);
  if (session.ok() && *session == nullptr) {
    return absl::UnauthenticatedError("this call needs a session: its token is missing");
  }
  return session;
}

absl::Time DeadlineOf(const grpc::ServerContextBase& context) {
  const auto deadline = context.deadline();
  // What gRPC makes of "none" lies beyond what the clock can be added to.
  if (deadline > std::chrono::system_clock::now() + std::chrono::hours(24 * 365))
    return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

}  // namespace lossd
