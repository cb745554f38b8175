// A device with all that computes on it, chosen at run time.
#ifndef LOSSD_KERNELS_BACKEND_H_
#define LOSSD_KERNELS_BACKEND_H_

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
  int device = 0;                // of the cuda backend: number of the GPU
  bool shares_process = false;   // the caller computes in this process too: BackendHolder::Enter
  std::string algorithms;        // of the cuda backend: a file that Tune has written; empty: none
};

// Owns a device and what computes on it. Thread-compatible; the backend itself belongs to the dispatcher.
class BackendHolder {
 public:
  virtual ~BackendHolder() = default;
  virtual Backend backend() = 0;
  // For a caller that computes in this process too (BackendOptions::shares_process), around each call. On a GPU work is enqueued on `stream` (a
  // cudaStream_t; null is CUDA's default stream), see CudaDevice::Enter; on the CPU OpenBLAS has one thread in between. Enter returns what Leave
  // needs.
  virtual absl::StatusOr<int> Enter(void* stream) = 0;
  virtual void Leave(int entered) = 0;
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

#endif  // LOSSD_KERNELS_BACKEND_H_
