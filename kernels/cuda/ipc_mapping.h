// Owner of another process's device memory, opened by its handle.
#ifndef LOSSD_KERNELS_CUDA_IPC_MAPPING_H_
#define LOSSD_KERNELS_CUDA_IPC_MAPPING_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/process_exit.h"

namespace lossd {

// Immutable: shared by everybody whose work may still touch the memory.
class IpcMapping {
 public:
  // The handle has sizeof(cudaIpcMemHandle_t) bytes.
  static absl::StatusOr<std::shared_ptr<const IpcMapping>> Open(absl::string_view bytes) {
    cudaIpcMemHandle_t handle;
    std::memcpy(&handle, bytes.data(), sizeof(handle));
    auto mapping = std::make_shared<IpcMapping>();
    LOSSD_RETURN_IF_CUDA_ERROR(
        cudaIpcOpenMemHandle(&mapping->base_, handle, cudaIpcMemLazyEnablePeerAccess),
        "open a memory handle");
    return mapping;
  }
  IpcMapping() = default;
  ~IpcMapping() {
    if (base_ != nullptr && !CudaIsUnloading()) cudaIpcCloseMemHandle(base_);
  }
  IpcMapping(const IpcMapping&) = delete;
  IpcMapping& operator=(const IpcMapping&) = delete;

  std::byte* base() const { return static_cast<std::byte*>(base_); }

 private:
  void* base_ = nullptr;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_IPC_MAPPING_H_
