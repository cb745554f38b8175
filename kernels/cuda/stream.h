// Owner of a CUDA stream.
#ifndef LOSSD_KERNELS_CUDA_STREAM_H_
#define LOSSD_KERNELS_CUDA_STREAM_H_

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/status/statusor.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/process_exit.h"

namespace lossd {

// Thread-compatible. Does not order itself with the default stream.
class Stream {
 public:
  static absl::StatusOr<Stream> Create() {
    Stream stream;
    LOSSD_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking),
                               "create a stream");
    return stream;
  }
  Stream() = default;
  ~Stream() {
    if (stream_ != nullptr && !CudaIsUnloading()) cudaStreamDestroy(stream_);
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_STREAM_H_
