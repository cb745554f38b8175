// Frames on a non-blocking Unix socket: a 4-byte little-endian length, the bytes, and descriptors that came or go with them.
#ifndef LOSSD_SERVER_FRAME_H_
#define LOSSD_SERVER_FRAME_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "server/unique_fd.h"

namespace lossd {

// Reads one frame at a time, never a byte more: a descriptor that arrives belongs to the frame being read. Thread-compatible.
class FrameReader {
 public:
  static constexpr size_t kMaxFds = 4;

  enum class Progress {
    kMore,      // something was read
    kFrame,     // a frame is complete: TakeFrame and TakeFds
    kBlocked,   // nothing to read now
    kEnd,       // end of file, an error, or more descriptors than kMaxFds
    kTooLarge,  // the frame's length is above the limit
  };

  explicit FrameReader(uint32_t max_bytes) : max_bytes_(max_bytes) {}

  // One read of `socket`.
  Progress Read(int socket);
  std::string TakeFrame();
  std::vector<UniqueFd> TakeFds() { return std::exchange(fds_, {}); }

 private:
  const uint32_t max_bytes_;
  unsigned char header_[4] = {};
  size_t header_bytes_ = 0;
  std::string body_;
  size_t body_bytes_ = 0;
  std::vector<UniqueFd> fds_;
};

// Sends frames as far as the socket takes them. Thread-compatible.
class FrameWriter {
 public:
  // `fd` goes with the frame, or none does.
  void Add(const std::string& body, UniqueFd fd);
  bool empty() const { return frames_.empty(); }
  // False if the peer is gone.
  bool Flush(int socket);

 private:
  struct Frame {
    std::string bytes;
    size_t sent = 0;
    UniqueFd fd;
  };
  std::deque<Frame> frames_;
};

}  // namespace lossd

#endif  // LOSSD_SERVER_FRAME_H_
