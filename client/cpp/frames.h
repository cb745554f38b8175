// Messages over the session socket: a 4-byte little-endian length, the message, descriptors beside it.
#ifndef LOSSD_CLIENT_CPP_FRAMES_H_
#define LOSSD_CLIENT_CPP_FRAMES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/cpp/unique_fd.h"
#include "google/protobuf/message_lite.h"

namespace lossd::client {

// Larger frames are refused on both sides: a wrong length must not become an allocation.
inline constexpr size_t kMaxFrameBytes = size_t{16} << 20;
// Descriptors that one frame may carry.
inline constexpr int kMaxFrameFds = 8;

// Length and message. Errors: INVALID_ARGUMENT above kMaxFrameBytes.
absl::Status EncodeFrame(const google::protobuf::MessageLite& message, std::string* bytes);

// Both work on a non-blocking stream socket and wait no longer than `deadline`.
// After an error other than INVALID_ARGUMENT of SendFrame the socket is out of step: close it.
// Errors: UNAVAILABLE if the other side is gone, DEADLINE_EXCEEDED, INTERNAL for a malformed frame.
absl::Status SendFrame(int socket, const google::protobuf::MessageLite& message,
                       absl::Span<const int> fds, absl::Time deadline);
// Descriptors that came with the frame are appended to *fds, close-on-exec.
absl::Status ReceiveFrame(int socket, google::protobuf::MessageLite* message,
                          std::vector<UniqueFd>* fds, absl::Time deadline);

}  // namespace lossd::client

#endif  // LOSSD_CLIENT_CPP_FRAMES_H_
