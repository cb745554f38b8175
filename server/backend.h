// Which device the server computes on.
#ifndef LOSSD_SERVER_BACKEND_H_
#define LOSSD_SERVER_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/dtype.h"
#include "kernels/core/op.h"
#include "kernels/linear/planner.h"

namespace lossd {

struct BackendOptions {
  std::string name = "auto";     // "cpu", "cuda", "auto"
  uint64_t workspace_bytes = 0;  // 0: the backend's default
  int threads = 0;               // of the cpu backend; 0: all cores
  std::string algorithms;        // of the cuda backend: a file that Tune has written; empty: none
};

// Owns a device and what computes on it. Thread-compatible; the backend itself belongs to the dispatcher.
class BackendHolder {
 public:
  virtual ~BackendHolder() = default;
  virtual Backend backend() = 0;
  // What a planner needs to plan as this device does.
  virtual DeviceDescription Describe() = 0;
};

// "auto" is cuda where it was compiled and a GPU answers, else cpu.
// Errors: UNIMPLEMENTED if cuda was not compiled, NOT_FOUND if there is no GPU, INVALID_ARGUMENT for algorithms on the cpu, else those of the
// backend.
absl::StatusOr<std::unique_ptr<BackendHolder>> CreateBackend(const BackendOptions& options);

// The cuda backend alone, with the same errors.
absl::StatusOr<std::unique_ptr<BackendHolder>> CreateCudaBackend(const BackendOptions& options);

struct TunedShape {
  int64_t rows = 0;
  int64_t hidden = 0;
  int64_t vocab = 0;
  DType model = DType::kBF16;
};

// Times the library's algorithms for the products of heads of these shapes on this machine's GPU, `rounds` times each, prints what it finds,
// and writes the table to `file` at the end.
// Errors: UNIMPLEMENTED if cuda was not compiled, NOT_FOUND if there is no GPU, PERMISSION_DENIED if the file cannot be written, else those
// of the GPU.
absl::Status Tune(const std::vector<TunedShape>& shapes, int rounds, const std::string& file);

// Plans for the described device; what is 0 in *device becomes the backend's default. Needs no GPU.
// Errors: INVALID_ARGUMENT that names the field, UNIMPLEMENTED if cuda was not compiled.
absl::StatusOr<std::unique_ptr<Planner>> CreatePlanner(DeviceDescription* device);
// The cuda backend's.
absl::StatusOr<std::unique_ptr<Planner>> CreateCudaPlanner(DeviceDescription* device);

}  // namespace lossd

#endif  // LOSSD_SERVER_BACKEND_H_
