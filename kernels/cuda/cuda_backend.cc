#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/check.h"

namespace lossd {
namespace {

// Half of what the library's manual proposes for Hopper: the products here are large and are seldom split, and with the default
// workspace the other half lets 8192 rows of 128256 logits be one chunk.
constexpr uint64_t kProductBytes = uint64_t{16} << 20;

}  // namespace

uint64_t CudaBackend::ProductBytes(uint64_t workspace_bytes) {
  return std::min(kProductBytes, workspace_bytes / 4);
}

absl::StatusOr<int> CudaBackend::CountDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
      error == cudaErrorSystemDriverMismatch || error == cudaErrorStubLibrary) {
    cudaGetLastError();
    return 0;
  }
  LOSSD_RETURN_IF_CUDA_ERROR(error, "count the devices");
  return count;
}

absl::StatusOr<std::unique_ptr<CudaBackend>> CudaBackend::Create(const CudaOptions& options) {
  LOSSD_ASSIGN_OR_RETURN(const int count, CountDevices());
  if (options.device < 0 || options.device >= count) {
    return FieldError("device", absl::StrCat("the number of one of ", count, " GPUs, from 0 on"),
                      absl::StrCat(options.device));
  }
  if (options.workspace_bytes < kMinWorkspaceBytes) {
    return FieldError("workspace_bytes", absl::StrCat("at least ", kMinWorkspaceBytes),
                      absl::StrCat(options.workspace_bytes));
  }
  auto backend = std::unique_ptr<CudaBackend>(new CudaBackend());
  AlgorithmTable algorithms;
  if (!options.algorithms.empty()) {
    LOSSD_ASSIGN_OR_RETURN(algorithms, AlgorithmTable::Read(options.algorithms));
  }
  const uint64_t product_bytes = ProductBytes(options.workspace_bytes);
  LOSSD_ASSIGN_OR_RETURN(
      backend->device_,
      CudaDevice::Create(options.device, options.workspace_bytes - product_bytes));
  LOSSD_ASSIGN_OR_RETURN(backend->head_, CudaHead::Create(backend->device_.get(), product_bytes,
                                                          std::move(algorithms)));
  LOSSD_ASSIGN_OR_RETURN(backend->layers_, CudaLayers::Create(backend->device_.get()));
  LOSSD_RETURN_IF_ERROR(backend->Warm());
  return backend;
}

absl::Status CudaBackend::Warm() {
  constexpr int64_t kSize = 64;
  Arena& arena = device_->workspace();
  LOSSD_ASSIGN_OR_RETURN(void* memory, arena.Allocate(3 * kSize * kSize * 4, "the first products"));
  LOSSD_RETURN_IF_ERROR(device_->Zero(memory, 3 * kSize * kSize * 4));
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Product product;
    product.m = product.n = product.k = kSize;
    product.inputs = dtype;
    product.a = {memory, kSize, false};
    product.b = {static_cast<std::byte*>(memory) + kSize * kSize * 4, kSize, true};
    product.output = DType::kF32;
    product.d = static_cast<std::byte*>(memory) + 2 * kSize * kSize * 4;
    product.d_stride = kSize;
    LOSSD_RETURN_IF_ERROR(head_->products().Run(product, device_->stream()));
  }
  const absl::Status status = device_->Synchronize();
  arena.Reset();
  return status;
}

}  // namespace lossd
