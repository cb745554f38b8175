#include "server/frame.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace lossd {

FrameReader::Progress FrameReader::Read(int socket) {
  const bool in_header = header_bytes_ < sizeof(header_);
  iovec part;
  part.iov_base =
      in_header ? static_cast<void*>(header_ + header_bytes_) : body_.data() + body_bytes_;
  part.iov_len = in_header ? sizeof(header_) - header_bytes_ : body_.size() - body_bytes_;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? Progress::kBlocked : Progress::kEnd;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
      fds_.emplace_back(fd);
    }
  }
  if (got == 0 || (message.msg_flags & MSG_CTRUNC) != 0 || fds_.size() > kMaxFds)
    return Progress::kEnd;
  if (!in_header) {
    body_bytes_ += static_cast<size_t>(got);
  } else if ((header_bytes_ += static_cast<size_t>(got)) == sizeof(header_)) {
    const uint32_t bytes =
        header_[0] | header_[1] << 8 | header_[2] << 16 | static_cast<uint32_t>(header_[3]) << 24;
    if (bytes > max_bytes_) return Progress::kTooLarge;
    body_.assign(bytes, '\0');
    body_bytes_ = 0;
  } else {
    return Progress::kMore;
  }
  return body_bytes_ == body_.size() ? Progress::kFrame : Progress::kMore;
}

std::string FrameReader::TakeFrame() {
  header_bytes_ = 0;
  body_bytes_ = 0;
  return std::exchange(body_, {});
}

void FrameWriter::Add(const std::string& body, UniqueFd fd) {
  const auto size = static_cast<uint32_t>(body.size());
  Frame frame;
  for (int shift = 0; shift < 32; shift += 8)
    frame.bytes.push_back(static_cast<char>(size >> shift & 0xFF));
  frame.bytes += body;
  frame.fd = std::move(fd);
  frames_.push_back(std::move(frame));
}

bool FrameWriter::Flush(int socket) {
  while (!frames_.empty()) {
    Frame& frame = frames_.front();
    iovec part = {frame.bytes.data() + frame.sent, frame.bytes.size() - frame.sent};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (frame.fd) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      const int fd = frame.fd.get();
      std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
    frame.fd.Reset();  // it went with the first byte
    frame.sent += static_cast<size_t>(sent);
    if (frame.sent == frame.bytes.size()) frames_.pop_front();
  }
  return true;
}

}  // namespace lossd
