// Messages between two processes of the demo over one end of a socket pair: a kind and a few bytes. Large arrays go by shared memory.
#ifndef LOSSD_CLIENT_DEMO_CHANNEL_H_
#define LOSSD_CLIENT_DEMO_CHANNEL_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lossd::demo {

enum class MessageKind : uint32_t {
  kHello,   // both ways: the hash of the text
  kSample,  // to the rollout: the weights are in shared memory, a seed; answered by kBatch
  kBatch,   // to the trainer: the batch is in shared memory
  kShow,    // to the rollout: a seed; answered by kText
  kText,    // to the trainer: a sample of text
  kEnd,     // to the rollout
};

struct Message {
  MessageKind kind = MessageKind::kEnd;
  uint64_t number = 0;
  std::string text;  // at most 4 KiB
};

// Owns its descriptor. Not thread-safe.
class Channel {
 public:
  // A SOCK_SEQPACKET end.
  explicit Channel(int descriptor) : descriptor_(descriptor) {}
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Errors: ABORTED if the other process has ended.
  absl::Status Send(const Message& message);
  // Waits. Errors: ABORTED as above; INTERNAL if another kind than `expected` came.
  absl::StatusOr<Message> Receive();
  absl::StatusOr<Message> Receive(MessageKind expected);

 private:
  const int descriptor_;
};

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_CHANNEL_H_
