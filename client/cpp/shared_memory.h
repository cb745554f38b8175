// Host memory that two processes map by one descriptor.
#ifndef LOSSD_CLIENT_CPP_SHARED_MEMORY_H_
#define LOSSD_CLIENT_CPP_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "client/cpp/unique_fd.h"

namespace lossd::client {

// A memfd and this process's mapping of it. Movable through its unique_ptr only. Thread-compatible.
class SharedMemory {
 public:
  // Zero-filled, sealed against shrinking, growing and further seals: the server maps nothing else, since reading behind the end of a
  // shrunken file would kill it. Errors: INVALID_ARGUMENT (0 bytes), RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(uint64_t bytes);
  // Memory that the server made. Errors: RESOURCE_EXHAUSTED; INTERNAL if it is smaller than `bytes`.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Map(UniqueFd fd, uint64_t bytes);

  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

 private:
  SharedMemory(UniqueFd fd, std::byte* data, uint64_t bytes);

  UniqueFd fd_;
  std::byte* const data_;
  const uint64_t bytes_;
};

}  // namespace lossd::client

#endif  // LOSSD_CLIENT_CPP_SHARED_MEMORY_H_
