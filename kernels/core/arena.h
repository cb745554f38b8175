// Bump allocator over memory that somebody else owns: the workspace of a device.
#ifndef LOSSD_KERNELS_CORE_ARENA_H_
#define LOSSD_KERNELS_CORE_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lossd {

// An allocation that has not been given back.
struct ArenaPart {
  std::string what;
  uint64_t begin = 0;  // bytes from the start
  uint64_t bytes = 0;  // with what alignment adds
};

// Hands out memory of a fixed range; everything is given back at once by Reset. Thread-compatible.
class Arena {
 public:
  static constexpr uint64_t kAlignment = 256;

  Arena() = default;
  Arena(void* base, uint64_t bytes) : base_(static_cast<std::byte*>(base)), bytes_(bytes) {}

  // `bytes` of memory aligned to kAlignment; contents undefined.
  // Errors: RESOURCE_EXHAUSTED with reason WORKSPACE, saying how much is missing and what `what` is.
  absl::StatusOr<void*> Allocate(uint64_t bytes, const char* what);

  template <class T>
  absl::StatusOr<T*> AllocateArray(int64_t count, const char* what) {
    auto memory = Allocate(static_cast<uint64_t>(count) * sizeof(T), what);
    if (!memory.ok()) return std::move(memory).status();
    return static_cast<T*>(*memory);
  }

  void Reset() { ReleaseTo(0); }
  // Gives back what was allocated since used() was `mark`. On a GPU work that still uses it must come earlier in the same queue.
  void ReleaseTo(uint64_t mark) {
    used_ = mark;
    if (parts_ != nullptr) DropParts();
  }
  // Keeps *parts equal to the allocations from now on. Borrowed; null ends it.
  void ListParts(std::vector<ArenaPart>* parts) { parts_ = parts; }
  // At most `limit` bytes until the next SetLimit; 0 = all.
  void SetLimit(uint64_t limit) { limit_ = limit; }
  uint64_t used() const { return used_; }
  uint64_t available() const;
  uint64_t bytes() const { return bytes_; }

 private:
  void DropParts();

  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t used_ = 0;
  uint64_t limit_ = 0;
  std::vector<ArenaPart>* parts_ = nullptr;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CORE_ARENA_H_
