// Host memory of somebody else, made usable by the GPU.
#ifndef LOSSD_KERNELS_CUDA_HOST_REGISTRATION_H_
#define LOSSD_KERNELS_CUDA_HOST_REGISTRATION_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/process_exit.h"

namespace lossd {

// The memory is page-locked while this lives. `owner` keeps the mapping open.
class HostRegistration {
 public:
  static absl::StatusOr<std::shared_ptr<const HostRegistration>> Create(
      void* host, uint64_t bytes, std::shared_ptr<const void> owner) {
    auto registration = std::make_shared<HostRegistration>();
    LOSSD_RETURN_IF_CUDA_ERROR(
        cudaHostRegister(host, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
        "register host memory");
    registration->host_ = host;
    registration->owner_ = std::move(owner);
    LOSSD_RETURN_IF_CUDA_ERROR(cudaHostGetDevicePointer(&registration->device_, host, 0),
                               "map host memory");
    return registration;
  }
  HostRegistration() = default;
  ~HostRegistration() {
    if (host_ != nullptr && !CudaIsUnloading()) cudaHostUnregister(host_);
  }
  HostRegistration(const HostRegistration&) = delete;
  HostRegistration& operator=(const HostRegistration&) = delete;

  // The memory's address on the GPU.
  std::byte* device() const { return static_cast<std::byte*>(device_); }

 private:
  void* host_ = nullptr;
  void* device_ = nullptr;
  std::shared_ptr<const void> owner_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_HOST_REGISTRATION_H_
