// The right to a socket path: a lock file beside it, held for as long as the server lives.
#ifndef LOSSD_SERVER_SOCKET_LOCK_H_
#define LOSSD_SERVER_SOCKET_LOCK_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/unique_fd.h"

namespace lossd {

// gRPC unlinks whatever lies at a path before it binds, so that a second server would steal the first one's socket, and the first one's
// end would remove the second one's. The lock says who may. Thread-compatible.
class SocketLock {
 public:
  // Locks PATH.lock. A socket that a dead server left at the path may then be replaced.
  // Errors: FAILED_PRECONDITION with reason ADDRESS_IN_USE if another process has the lock, or if what lies at the path is no socket;
  // UNAVAILABLE if the directory cannot be written.
  static absl::StatusOr<SocketLock> Take(const std::string& path);
  SocketLock(SocketLock&&) = default;
  SocketLock& operator=(SocketLock&&) = default;
  // Removes the lock file.
  ~SocketLock();

 private:
  SocketLock(std::string file, UniqueFd fd) : file_(std::move(file)), fd_(std::move(fd)) {}
  std::string file_;
  UniqueFd fd_;
};

}  // namespace lossd

#endif  // LOSSD_SERVER_SOCKET_LOCK_H_
