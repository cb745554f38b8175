#include "client/cpp/session_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/cpp/frames.h"
#include "client/cpp/status.h"

namespace lossd::client {
namespace {

absl::Status ConnectError(const std::string& path, int error) {
  const std::string text = absl::StrCat(path, ": ", strerror(error));
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  if (error == ENOENT || error == ECONNREFUSED) {
    const absl::string_view address = absl::StripSuffix(path, ".session");
    return absl::UnavailableError(absl::StrCat("no lossd listens at unix:", address, " (",
                                               strerror(error),
                                               "): start one with lossd --listen unix:", address));
  }
  return absl::UnavailableError(text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SessionSocket>> SessionSocket::Connect(const std::string& path,
                                                                      absl::Time deadline) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid())
    return absl::ResourceExhaustedError(absl::StrCat("socket: ", strerror(errno)));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": must be a shorter path"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  while (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    // EAGAIN: the server's queue of new connections is full. Nothing tells when it has room again.
    if (errno != EAGAIN && errno != EINTR) return ConnectError(path, errno);
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(path, ": the server does not accept"));
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return std::unique_ptr<SessionSocket>(new SessionSocket(std::move(socket)));
}

absl::StatusOr<v1::SessionReply> SessionSocket::Call(const v1::SessionRequest& request,
                                                     absl::Span<const int> fds,
                                                     std::vector<UniqueFd>* reply_fds,
                                                     absl::Time deadline) {
  std::unique_lock<std::timed_mutex> lock(mu_, std::defer_lock);
  if (!lock.try_lock_until(absl::ToChronoTime(deadline))) {
    return absl::DeadlineExceededError("another request waits on the session socket");
  }
  if (broken_) return absl::UnavailableError("the session socket is closed");
  absl::Status status = SendFrame(socket_.get(), request, fds, deadline);
  if (absl::IsInvalidArgument(status)) return status;  // nothing was sent
  v1::SessionReply reply;
  if (status.ok()) status = ReceiveFrame(socket_.get(), &reply, reply_fds, deadline);
  if (!status.ok()) {
    // A late answer would be taken for the next one's: end the session instead.
    broken_ = true;
    shutdown(socket_.get(), SHUT_RDWR);
    return status;
  }
  if (reply.has_error()) return FromRich(reply.error());
  return reply;
}

bool SessionSocket::ended(absl::Duration patience) const {
  pollfd entry = {socket_.get(), POLLRDHUP, 0};
  const int ready = poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(patience)));
  return ready > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace lossd::client
