// Everything that the operations need of a GPU, as one object.
#ifndef LOSSD_KERNELS_CUDA_CUDA_BACKEND_H_
#define LOSSD_KERNELS_CUDA_CUDA_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/core/launch_cache.h"
#include "kernels/core/op.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_head.h"
#include "kernels/cuda/cuda_layers.h"

namespace lossd {

struct CudaOptions {
  int device = 0;
  // All scratch memory of the backend, the library's included. At least kMinWorkspaceBytes.
  uint64_t workspace_bytes = 2200000000;
  // A table of lossctl tune; empty: the build's alone.
  std::string algorithms;
};

class CudaBackend {
 public:
  static constexpr uint64_t kMinWorkspaceBytes = uint64_t{8} << 20;

  // What the library's products have of the workspace.
  static uint64_t ProductBytes(uint64_t workspace_bytes);

  // Number of GPUs that can be used; 0 where there is no driver or no GPU. Errors: UNAVAILABLE (GPU_LOST), INTERNAL.
  static absl::StatusOr<int> CountDevices();

  // Allocates, loads every kernel and runs a small product of each type: later calls allocate nothing.
  // Errors: those of CublasLt::Create and AlgorithmTable::Read, INVALID_ARGUMENT (device, workspace_bytes), RESOURCE_EXHAUSTED (GPU_MEMORY), UNAVAILABLE (GPU_LOST).
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Create(const CudaOptions& options);

  // Borrowed from this object.
  Backend backend() { return {device_.get(), head_.get(), &launches_, layers_.get()}; }
  CudaDevice& device() { return *device_; }
  CudaHead& head() { return *head_; }

 private:
  CudaBackend() = default;
  absl::Status Warm();

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<CudaHead> head_;
  std::unique_ptr<CudaLayers> layers_;
  LaunchCache launches_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_CUDA_BACKEND_H_
