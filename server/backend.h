// Which device the server computes on.
#ifndef LOSSD_SERVER_BACKEND_H_
#define LOSSD_SERVER_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/core/op.h"

namespace lossd {

struct BackendOptions {
  std::string name = "auto";     // "cpu", "cuda", "auto"
  uint64_t workspace_bytes = 0;  // 0: the backend's default
  int threads = 0;               // of the cpu backend; 0: all cores
};

// Owns a device and what computes on it. Thread-compatible; the backend itself belongs to the dispatcher.
class BackendHolder {
 public:
  virtual ~BackendHolder() = default;
  virtual Backend backend() = 0;
};

// "auto" is cuda where it was compiled and a GPU answers, else cpu.
// Errors: UNIMPLEMENTED if cuda was not compiled, NOT_FOUND if there is no GPU, else those of the backend.
absl::StatusOr<std::unique_ptr<BackendHolder>> CreateBackend(const BackendOptions& options);

// The cuda backend alone, with the same errors.
absl::StatusOr<std::unique_ptr<BackendHolder>> CreateCudaBackend(const BackendOptions& options);

}  // namespace lossd

#endif  // LOSSD_SERVER_BACKEND_H_
