#include "server/session_socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "server/dispatcher.h"
#include "server/frame.h"
#include "server/listener.h"
#include "server/rich_status.h"
#include "server/session_memory.h"

namespace lossd {
namespace {

v1::SessionReply ErrorReply(const absl::Status& status) {
  v1::SessionReply reply;
  *reply.mutable_error() = ToRichStatus(status);
  return reply;
}

}  // namespace

struct SessionSocket::Connection {
  UniqueFd fd;
  uint32_t uid = 0;
  absl::Time since;
  FrameReader reader{kMaxFrameBytes};
  FrameWriter writer;
  std::shared_ptr<Session> session;
  bool closing = false;  // after the last reply
};

absl::StatusOr<std::unique_ptr<SessionSocket>> SessionSocket::Start(Options options,
                                                                    SessionTable& sessions,
                                                                    Device& device,
                                                                    const v1::ServerInfo& info,
                                                                    const Logger& log) {
  auto socket = std::unique_ptr<SessionSocket>(
      new SessionSocket(std::move(options), sessions, device, info, log));
  LOSSD_RETURN_IF_ERROR(socket->Bind());
  socket->thread_ = std::thread([s = socket.get()] { s->Loop(); });
  return socket;
}

SessionSocket::SessionSocket(Options options, SessionTable& sessions, Device& device,
                             const v1::ServerInfo& info, const Logger& log)
    : options_(std::move(options)), sessions_(sessions), device_(device), info_(info), log_(log) {
  struct stat space;
  if (::stat("/proc/self/ns/pid", &space) == 0) pid_namespace_ = space.st_ino;
}

SessionSocket::~SessionSocket() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
  thread_.join();
  for (const auto& connection : connections_) {
    if (connection->session != nullptr) sessions_.End(connection->session->id());
  }
  ::unlink(options_.path.c_str());
}

absl::Status SessionSocket::Bind() {
  stop_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_) return absl::UnavailableError(absl::StrCat("eventfd: ", std::strerror(errno)));
  LOSSD_ASSIGN_OR_RETURN(listener_, ListenUnix(options_.path, options_.open_to_all));
  return absl::OkStatus();
}

void SessionSocket::Loop() {
  std::vector<pollfd> fds;
  while (true) {
    const absl::Time now = absl::Now();
    const bool accepting = now >= accept_again_;
    fds.clear();
    fds.push_back({stop_.get(), POLLIN, 0});
    fds.push_back({accepting ? listener_.get() : -1, POLLIN, 0});
    for (const auto& connection : connections_) {
      // A client that does not take its replies is not read from.
      const short wanted = connection->writer.empty() ? POLLIN : POLLOUT;
      fds.push_back({connection->fd.get(), wanted, 0});
    }
    const bool ticking = !accepting || Unopened() > 0;
    if (::poll(fds.data(), fds.size(), ticking ? 100 : -1) < 0 && errno != EINTR) {
      log_.Error("session_socket_poll", {{"error", std::strerror(errno)}});
      return;
    }
    if (fds[0].revents != 0) return;
    size_t i = 2;
    for (auto it = connections_.begin(); it != connections_.end(); ++i) {
      Connection& connection = **it;
      const short events = fds[i].revents;
      bool alive = true;
      if (events & POLLOUT) alive = Write(connection);
      if (alive && (events & POLLIN)) alive = Read(connection);
      if (alive && (events & (POLLERR | POLLNVAL))) alive = false;
      // With POLLIN the end of file comes by Read; without, the peer is gone while replies wait.
      if (alive && (events & POLLHUP) && !(events & POLLIN)) alive = false;
      if (alive && connection.closing && connection.writer.empty()) alive = false;
      if (alive && connection.session == nullptr && now - connection.since > kOpenTimeout)
        alive = false;
      if (alive) {
        ++it;
        continue;
      }
      if (connection.session != nullptr) {
        log_.Info("session_end", {{"session", connection.session->id()}});
        sessions_.End(connection.session->id());
      }
      it = connections_.erase(it);
    }
    if (fds[1].revents != 0) Accept();
  }
}

int SessionSocket::Unopened() const {
  return static_cast<int>(std::count_if(connections_.begin(), connections_.end(),
                                        [](const auto& c) { return c->session == nullptr; }));
}

void SessionSocket::Accept() {
  // A few at a time, so that a flood of connections does not keep the others waiting.
  for (int i = 0; i < 16; ++i) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (IsExhausted(errno)) {
        const absl::Time now = absl::Now();
        if (now - accept_again_ > absl::Seconds(1)) {
          log_.Warning("session_socket_accept", {{"error", std::strerror(errno)}});
        }
        accept_again_ = now + absl::Milliseconds(100);
      }
      return;
    }
    ucred peer = {};
    socklen_t size = sizeof(peer);
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) continue;
    auto connection = std::make_unique<Connection>();
    connection->fd = std::move(fd);
    connection->uid = peer.uid;
    connection->since = absl::Now();
    const auto& allowed = options_.allow_uids;
    if (std::find(allowed.begin(), allowed.end(), peer.uid) == allowed.end()) {
      log_.Warning("session_refused", {{"uid", peer.uid}});
      Queue(*connection,
            ErrorReply(absl::PermissionDeniedError(
                absl::StrCat("user ", peer.uid, " may not use this server (flag --allow-uid)"))),
            UniqueFd());
      connection->closing = true;
    } else if (Unopened() >= kMaxUnopened) {
      Queue(*connection,
            ErrorReply(ReasonError(absl::StatusCode::kResourceExhausted, "MAX_CONNECTIONS",
                                   "too many connections that have not opened a session")),
            UniqueFd());
      connection->closing = true;
    }
    // Most replies fit in the socket at once.
    if (!Write(*connection) || (connection->closing && connection->writer.empty())) continue;
    connections_.push_back(std::move(connection));
  }
}

bool SessionSocket::Write(Connection& connection) {
  return connection.writer.Flush(connection.fd.get());
}

bool SessionSocket::Read(Connection& connection) {
  // Bounded for the sake of the others; poll comes back for the rest.
  for (int i = 0; i < 32 && connection.writer.empty() && !connection.closing; ++i) {
    switch (connection.reader.Read(connection.fd.get())) {
      case FrameReader::Progress::kFrame:
        if (!HandleFrame(connection) || !Write(connection)) return false;
        break;
      case FrameReader::Progress::kMore:
        break;
      case FrameReader::Progress::kBlocked:
        return true;
      case FrameReader::Progress::kEnd:
        return false;
      case FrameReader::Progress::kTooLarge:
        Queue(connection,
              ErrorReply(FieldError("frame", absl::StrCat("at most ", kMaxFrameBytes, " bytes"),
                                    "larger")),
              UniqueFd());
        connection.closing = true;
        return Write(connection);
    }
  }
  return true;
}

bool SessionSocket::HandleFrame(Connection& connection) {
  v1::SessionRequest request;
  std::vector<UniqueFd> fds = connection.reader.TakeFds();
  const bool parsed = request.ParseFromString(connection.reader.TakeFrame());
  UniqueFd reply_fd;
  absl::StatusOr<v1::SessionReply> reply = v1::SessionReply();
  const size_t wanted = request.has_register_() && request.register_().memfd() ? 1 : 0;
  if (!parsed) {
    reply = FieldError("frame", "a lossd.v1.SessionRequest", "not one");
  } else if (fds.size() != wanted) {
    reply =
        FieldError("fds", absl::StrCat(wanted, " attached descriptors"), absl::StrCat(fds.size()));
  } else {
    reply = Handle(connection, request, wanted == 1 ? std::move(fds[0]) : UniqueFd(), &reply_fd);
  }
  if (options_.on_device_lost && IsDeviceLost(reply.status())) {
    options_.on_device_lost(reply.status());
  }
  // Without a session there is nothing to keep a connection for that speaks nonsense.
  if (!reply.ok() && connection.session == nullptr) connection.closing = true;
  Queue(connection, reply.ok() ? *reply : ErrorReply(reply.status()), std::move(reply_fd));
  return true;
}

absl::StatusOr<v1::SessionReply> SessionSocket::Handle(Connection& connection,
                                                       const v1::SessionRequest& request,
                                                       UniqueFd fd, UniqueFd* reply_fd) {
  v1::SessionReply reply;
  if (request.has_open()) {
    LOSSD_ASSIGN_OR_RETURN(*reply.mutable_open(), Open(connection, request.open()));
    return reply;
  }
  if (connection.session == nullptr)
    return absl::UnauthenticatedError("the first request must be open");
  Session& session = *connection.session;
  switch (request.request_case()) {
    case v1::SessionRequest::kRegister: {
      LOSSD_ASSIGN_OR_RETURN(*reply.mutable_register_(),
                             RegisterRegion(device_, session, request.register_(), std::move(fd)));
      return reply;
    }
    case v1::SessionRequest::kUnregister: {
      LOSSD_ASSIGN_OR_RETURN(*reply.mutable_unregister(),
                             UnregisterRegion(session, request.unregister()));
      return reply;
    }
    case v1::SessionRequest::kAllocate: {
      LOSSD_ASSIGN_OR_RETURN(*reply.mutable_allocate(),
                             AllocateRegion(device_, session, request.allocate(), reply_fd));
      return reply;
    }
    case v1::SessionRequest::kList:
      *reply.mutable_list() = ListRegions(session);
      return reply;
    case v1::SessionRequest::kRegisterEvents: {
      LOSSD_ASSIGN_OR_RETURN(*reply.mutable_register_events(),
                             RegisterEvents(device_, session, request.register_events()));
      return reply;
    }
    case v1::SessionRequest::kOpen:
    case v1::SessionRequest::REQUEST_NOT_SET:
      break;
  }
  return FieldError("request", "one that this server knows", "absent or unknown");
}

absl::StatusOr<v1::OpenSessionReply> SessionSocket::Open(Connection& connection,
                                                         const v1::OpenSessionRequest& request) {
  if (connection.session != nullptr)
    return absl::FailedPreconditionError("open: the session is open already");
  LOSSD_RETURN_IF_ERROR(CheckOpenRequest(request));
  LOSSD_ASSIGN_OR_RETURN(connection.session,
                         sessions_.Open(Session::Kind::kSocket, request.client_name()));
  connection.session->set_pid_collision(request.pid() == ::getpid() &&
                                        request.has_pid_namespace() &&
                                        request.pid_namespace() != pid_namespace_);
  log_.Info("session_open", {{"session", connection.session->id()},
                             {"client", request.client_name()},
                             {"uid", connection.uid}});
  v1::OpenSessionReply reply;
  reply.set_session(connection.session->id());
  reply.set_token(connection.session->token());
  *reply.mutable_server() = info_;
  return reply;
}

void SessionSocket::Queue(Connection& connection, const v1::SessionReply& reply, UniqueFd fd) {
  connection.writer.Add(reply.SerializeAsString(), std::move(fd));
}

}  // namespace lossd
