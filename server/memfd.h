// Host memory shared by descriptor. Only memory that cannot shrink is mapped: reading behind a shrunken file would kill the server.
#ifndef LOSSD_SERVER_MEMFD_H_
#define LOSSD_SERVER_MEMFD_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "server/unique_fd.h"

namespace lossd {

// A mapping of shared host memory, unmapped with the object. Thread-compatible.
class HostMapping {
 public:
  HostMapping(std::byte* base, uint64_t bytes) : base_(base), bytes_(bytes) {}
  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;
  ~HostMapping();

  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* const base_;
  const uint64_t bytes_;
};

// Maps all of a client's memfd; `fd` may be closed afterwards.
// Errors: INVALID_ARGUMENT with field "memfd" if it is not a memfd sealed against shrinking, is empty, lies in huge pages, or does not
// allow `writable`; RESOURCE_EXHAUSTED.
absl::StatusOr<std::shared_ptr<HostMapping>> MapMemfd(int fd, bool writable);

// Zero-filled memory of our own, sealed against shrinking and growing.
struct OwnMemfd {
  UniqueFd fd;
  std::shared_ptr<HostMapping> mapping;
};
// Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<OwnMemfd> CreateMemfd(uint64_t bytes);

}  // namespace lossd

#endif  // LOSSD_SERVER_MEMFD_H_
