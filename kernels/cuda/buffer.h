// Owners of memory that the CUDA runtime allocates.
#ifndef LOSSD_KERNELS_CUDA_BUFFER_H_
#define LOSSD_KERNELS_CUDA_BUFFER_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/process_exit.h"

namespace lossd {

// Thread-compatible. Contents are undefined after Create.
template <cudaError_t (*kAllocate)(void**, size_t), cudaError_t (*kFree)(void*)>
class CudaBuffer {
 public:
  // `what` for the error's text: "allocate the workspace".
  static absl::StatusOr<CudaBuffer> Create(uint64_t bytes, absl::string_view what) {
    CudaBuffer buffer;
    LOSSD_RETURN_IF_CUDA_ERROR(kAllocate(&buffer.data_, bytes), what);
    buffer.bytes_ = bytes;
    return buffer;
  }
  CudaBuffer() = default;
  ~CudaBuffer() {
    if (data_ != nullptr && !CudaIsUnloading()) kFree(data_);
  }
  CudaBuffer(CudaBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  CudaBuffer& operator=(CudaBuffer&& other) noexcept {
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

using DeviceBuffer = CudaBuffer<cudaMalloc, cudaFree>;
// Page-locked host memory.
using PinnedBuffer = CudaBuffer<cudaMallocHost, cudaFreeHost>;

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_BUFFER_H_
