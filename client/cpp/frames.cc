#include "client/cpp/frames.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace lossd::client {
namespace {

constexpr size_t kHeadBytes = 4;

absl::Status Gone(absl::string_view doing) {
  return absl::UnavailableError(absl::StrCat("the server closed the session socket while ", doing));
}

// Waits until the socket is ready for `events`.
absl::Status Wait(int socket, short events, absl::Time deadline) {
  while (true) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError("the server does not answer on the session socket");
    }
    pollfd entry = {socket, events, 0};
    const int64_t wait_ms = std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, 60000);
    const int ready = poll(&entry, 1, static_cast<int>(wait_ms));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("session socket: ", strerror(errno)));
    }
  }
}

bool IsRetry(int error) { return error == EINTR || error == EAGAIN || error == EWOULDBLOCK; }

// Takes every descriptor out of a received message, so that none is leaked.
void TakeFds(msghdr& header, std::vector<UniqueFd>* fds) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
       control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof fd);
      fds->emplace_back(fd);
    }
  }
}

absl::Status ReceiveBytes(int socket, char* to, size_t bytes, std::vector<UniqueFd>* fds,
                          absl::Time deadline) {
  size_t have = 0;
  while (have < bytes) {
    iovec part = {to + have, bytes - have};
    alignas(cmsghdr) char control[CMSG_SPACE(kMaxFrameFds * sizeof(int))];
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got > 0) {
      TakeFds(header, fds);
      if ((header.msg_flags & MSG_CTRUNC) != 0) {
        return absl::InternalError("more descriptors than a frame may carry, or none left to open");
      }
      have += got;
      continue;
    }
    if (got == 0 || errno == ECONNRESET) return Gone("it was to answer");
    if (!IsRetry(errno)) {
      return absl::UnavailableError(absl::StrCat("session socket: ", strerror(errno)));
    }
    const absl::Status ready = Wait(socket, POLLIN, deadline);
    if (!ready.ok()) return ready;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status EncodeFrame(const google::protobuf::MessageLite& message, std::string* bytes) {
  const size_t size = message.ByteSizeLong();
  if (size > kMaxFrameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a session message must have at most ", kMaxFrameBytes, " bytes, has ", size));
  }
  for (int shift = 0; shift < 32; shift += 8) bytes->push_back(static_cast<char>(size >> shift));
  message.AppendToString(bytes);
  return absl::OkStatus();
}

absl::Status SendFrame(int socket, const google::protobuf::MessageLite& message,
                       absl::Span<const int> fds, absl::Time deadline) {
  if (fds.size() > static_cast<size_t>(kMaxFrameFds)) {
    return absl::InvalidArgumentError(
        absl::StrCat("at most ", kMaxFrameFds, " descriptors a frame"));
  }
  std::string bytes;
  const absl::Status encoded = EncodeFrame(message, &bytes);
  if (!encoded.ok()) return encoded;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFrameFds * sizeof(int))] = {};
  size_t sent = 0;
  while (sent < bytes.size()) {
    iovec part = {bytes.data() + sent, bytes.size() - sent};
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (sent == 0 && !fds.empty()) {  // descriptors ride on the first bytes
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
    }
    const ssize_t put = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put > 0) {
      sent += put;
      continue;
    }
    if (put < 0 && (errno == EPIPE || errno == ECONNRESET)) return Gone("it was to be asked");
    if (put < 0 && !IsRetry(errno)) {
      return absl::UnavailableError(absl::StrCat("session socket: ", strerror(errno)));
    }
    const absl::Status ready = Wait(socket, POLLOUT, deadline);
    if (!ready.ok()) return ready;
  }
  return absl::OkStatus();
}

absl::Status ReceiveFrame(int socket, google::protobuf::MessageLite* message,
                          std::vector<UniqueFd>* fds, absl::Time deadline) {
  char head[kHeadBytes];
  absl::Status status = ReceiveBytes(socket, head, sizeof head, fds, deadline);
  if (!status.ok()) return status;
  size_t size = 0;
  for (size_t i = 0; i < kHeadBytes; ++i) {
    size |= static_cast<size_t>(static_cast<unsigned char>(head[i])) << (8 * i);
  }
  if (size > kMaxFrameBytes) {
    return absl::InternalError(absl::StrCat("the server sent a frame of ", size, " bytes"));
  }
  std::string bytes(size, '\0');
  status = ReceiveBytes(socket, bytes.data(), size, fds, deadline);
  if (!status.ok()) return status;
  if (!message->ParseFromString(bytes)) {
    return absl::InternalError("the server sent a frame that does not decode");
  }
  return absl::OkStatus();
}

}  // namespace lossd::client
