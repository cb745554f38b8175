#include "client/demo/exchange.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"

namespace lossd::demo {

absl::StatusOr<int> CreateExchange() {
  const int descriptor = memfd_create("lossd_demo", MFD_CLOEXEC);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, "memfd_create");
  if (ftruncate(descriptor, sizeof(Exchange)) != 0) {
    const int error = errno;
    close(descriptor);
    return absl::ErrnoToStatus(error, "ftruncate of the shared memory");
  }
  return descriptor;
}

absl::StatusOr<Exchange*> MapExchange(int descriptor) {
  void* memory = mmap(nullptr, sizeof(Exchange), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap of the shared memory");
  return static_cast<Exchange*>(memory);
}

void RowsOfBatch(const int32_t* pieces, int32_t* contexts, int32_t* targets) {
  for (int64_t b = 0; b < kSequences; ++b) {
    for (int64_t t = 0; t < kLength; ++t) {
      const int64_t row = b * kLength + t;
      const int32_t* from = pieces + b * kSequencePieces + t;
      std::memcpy(contexts + row * kContext, from, kContext * sizeof(int32_t));
      targets[row] = from[kContext];
    }
  }
}

}  // namespace lossd::demo
