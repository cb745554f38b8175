// Owners of page-locked host memory: allocated here, or somebody else's made usable by the GPU.
#ifndef LOSSD_KERNELS_CUDA_PINNED_BUFFER_H_
#define LOSSD_KERNELS_CUDA_PINNED_BUFFER_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/process_exit.h"

namespace lossd {

// Thread-compatible.
class PinnedBuffer {
 public:
  static absl::StatusOr<PinnedBuffer> Create(uint64_t bytes) {
    PinnedBuffer buffer;
    LOSSD_RETURN_IF_CUDA_ERROR(cudaMallocHost(&buffer.data_, bytes), "allocate pinned memory");
    buffer.bytes_ = bytes;
    return buffer;
  }
  PinnedBuffer() = default;
  ~PinnedBuffer() {
    if (data_ != nullptr && !CudaIsUnloading()) cudaFreeHost(data_);
  }
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  uint64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Host memory of somebody else, page-locked while this lives. `owner` keeps the mapping open.
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

#endif  // LOSSD_KERNELS_CUDA_PINNED_BUFFER_H_
