#include "client/demo/channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace lossd::demo {
namespace {

struct Header {
  uint32_t kind;
  uint32_t text_bytes;
  uint64_t number;
};
constexpr size_t kTextBytes = 4096;

absl::Status PeerEnded() { return absl::AbortedError("the other process has ended"); }

}  // namespace

Channel::~Channel() { close(descriptor_); }

absl::Status Channel::Send(const Message& message) {
  const std::string text = message.text.substr(0, kTextBytes);
  const Header header{static_cast<uint32_t>(message.kind), static_cast<uint32_t>(text.size()),
                      message.number};
  std::string packet(reinterpret_cast<const char*>(&header), sizeof(header));
  packet += text;
  ssize_t sent;
  do {
    sent = send(descriptor_, packet.data(), packet.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(packet.size()) ? absl::OkStatus() : PeerEnded();
}

absl::StatusOr<Message> Channel::Receive() {
  char packet[sizeof(Header) + kTextBytes];
  ssize_t got;
  do {
    got = recv(descriptor_, packet, sizeof(packet), 0);
  } while (got < 0 && errno == EINTR);
  if (got < static_cast<ssize_t>(sizeof(Header))) return PeerEnded();
  Header header;
  std::memcpy(&header, packet, sizeof(header));
  return Message{.kind = static_cast<MessageKind>(header.kind),
                 .number = header.number,
                 .text = std::string(packet + sizeof(Header), got - sizeof(Header))};
}

absl::StatusOr<Message> Channel::Receive(MessageKind expected) {
  auto message = Receive();
  if (message.ok() && message->kind != expected) {
    return absl::InternalError(absl::StrCat("channel: must bring message ",
                                            static_cast<uint32_t>(expected), ", brought ",
                                            static_cast<uint32_t>(message->kind)));
  }
  return message;
}

}  // namespace lossd::demo
