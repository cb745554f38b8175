#include "server/listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

constexpr int kBacklog = 128;
// A few at a time, so that a flood at one address does not keep the others waiting.
constexpr int kAcceptsPerTurn = 64;
constexpr absl::Duration kExhaustedPause = absl::Milliseconds(100);

absl::Status SystemError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("cannot listen: ", what, ": ", std::strerror(errno)));
}

UniqueFd NewSocket(int family) {
  return UniqueFd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// The address as the system has it. False if the host is no numeric address.
bool ToSystem(const std::string& host, int port, sockaddr_storage* address, socklen_t* size) {
  auto* v4 = reinterpret_cast<sockaddr_in*>(address);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(address);
  const auto net_port = htons(static_cast<uint16_t>(port));
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = net_port;
    *size = sizeof(*v4);
    return true;
  }
  if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) != 1) return false;
  v6->sin6_family = AF_INET6;
  v6->sin6_port = net_port;
  *size = sizeof(*v6);
  return true;
}

}  // namespace

bool IsExhausted(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

absl::StatusOr<UniqueFd> ListenUnix(const std::string& path, bool open_to_all) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": too long for a socket path"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket = NewSocket(AF_UNIX);
  if (!socket) return SystemError(path);
  ::unlink(path.c_str());
  // The file's mode before listen: until then nobody can connect.
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::chmod(path.c_str(), open_to_all ? 0666 : 0600) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    return SystemError(path);
  }
  return socket;
}

absl::StatusOr<UniqueFd> ListenTcp(const std::string& host, int* port) {
  const std::string name = absl::StrCat(host, " port ", *port);
  sockaddr_storage address = {};
  socklen_t size = 0;
  if (!ToSystem(host, *port, &address, &size)) {
    return absl::InvalidArgumentError(absl::StrCat(host, ": not a numeric address"));
  }
  UniqueFd socket = NewSocket(address.ss_family);
  if (!socket) return SystemError(name);
  // A port of connections that still linger may be used again at once; small frames go out at once (connections inherit it).
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), generic, size) != 0 || ::listen(socket.get(), kBacklog) != 0 ||
      ::getsockname(socket.get(), generic, &size) != 0) {
    return SystemError(name);
  }
  *port =
      ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&address)->sin_port
                                         : reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  return socket;
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Start(std::vector<ListenAddress>& addresses,
                                                          bool open_to_all, const Logger& log,
                                                          Taker take) {
  auto listener = std::unique_ptr<Listener>(new Listener(log, std::move(take)));
  listener->stop_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener->stop_) return SystemError("eventfd");
  for (ListenAddress& address : addresses) {
    absl::StatusOr<UniqueFd> socket = address.is_unix ? ListenUnix(address.path, open_to_all)
                                                      : ListenTcp(address.host, &address.port);
    LOSSD_RETURN_IF_ERROR(socket.status());
    listener->sockets_.push_back(*std::move(socket));
    if (address.is_unix) listener->paths_.push_back(address.path);
  }
  listener->thread_ = std::thread([l = listener.get()] { l->Loop(); });
  return listener;
}

Listener::~Listener() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
    thread_.join();
  }
  for (const std::string& path : paths_) ::unlink(path.c_str());
}

void Listener::Loop() {
  std::vector<pollfd> fds;
  while (true) {
    const bool accepting = absl::Now() >= accept_again_;
    fds.assign(1, {stop_.get(), POLLIN, 0});
    for (const UniqueFd& socket : sockets_) {
      fds.push_back({accepting ? socket.get() : -1, POLLIN, 0});
    }
    const int pause = static_cast<int>(absl::ToInt64Milliseconds(kExhaustedPause));
    if (::poll(fds.data(), fds.size(), accepting ? -1 : pause) < 0 && errno != EINTR) {
      log_.Error("listener_poll", {{"error", std::strerror(errno)}});
      return;
    }
    if (fds[0].revents != 0) return;
    for (size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents != 0) Accept(fds[i].fd);
    }
  }
}

void Listener::Accept(int socket) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    UniqueFd connection(::accept4(socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection) {
      take_(std::move(connection));
      continue;
    }
    if (IsExhausted(errno)) {
      // Once for each time that it runs out, not ten times a second.
      const absl::Time now = absl::Now();
      if (now - accept_again_ > absl::Seconds(1)) {
        log_.Warning("accept", {{"error", std::strerror(errno)}});
      }
      accept_again_ = now + kExhaustedPause;
    }
    return;
  }
}

}  // namespace lossd
