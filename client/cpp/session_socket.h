// The client's end of a session socket. Its end of file is the session's end.
#ifndef LOSSD_CLIENT_CPP_SESSION_SOCKET_H_
#define LOSSD_CLIENT_CPP_SESSION_SOCKET_H_

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/cpp/unique_fd.h"
#include "lossd/v1/session.pb.h"

namespace lossd::client {

// Thread-safe: one request and its answer at a time.
class SessionSocket {
 public:
  // Connects to `path`; opens no session yet.
  // Errors: UNAVAILABLE if nothing listens there, PERMISSION_DENIED, DEADLINE_EXCEEDED.
  static absl::StatusOr<std::unique_ptr<SessionSocket>> Connect(const std::string& path,
                                                                absl::Time deadline);

  // Sends `request` with descriptors and waits for its answer; descriptors of the answer are appended to *reply_fds.
  // Errors: the server's; UNAVAILABLE once the socket is closed or out of step.
  absl::StatusOr<v1::SessionReply> Call(const v1::SessionRequest& request,
                                        absl::Span<const int> fds, std::vector<UniqueFd>* reply_fds,
                                        absl::Time deadline);

  // Whether the session's end was seen. Waits up to `patience` for it; does not disturb a call.
  bool ended(absl::Duration patience) const;

 private:
  explicit SessionSocket(UniqueFd socket) : socket_(std::move(socket)) {}

  const UniqueFd socket_;
  std::timed_mutex mu_;
  bool broken_ = false;  // guarded by mu_
};

}  // namespace lossd::client

#endif  // LOSSD_CLIENT_CPP_SESSION_SOCKET_H_
