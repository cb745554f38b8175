// From CUDA's and cuBLAS's codes to absl::Status: the one place where this is done.
#ifndef LOSSD_KERNELS_CUDA_CHECK_H_
#define LOSSD_KERNELS_CUDA_CHECK_H_

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lossd {

// Whether the error has destroyed the context, so that every later call fails too.
bool IsStickyError(cudaError_t error);

// ok for cudaSuccess. `what` names the call and what it was for ("allocate the workspace").
// Errors: UNAVAILABLE with reason GPU_LOST and the CUDA error's number for sticky errors, RESOURCE_EXHAUSTED (GPU_MEMORY) for
// memory, INTERNAL otherwise.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

// The same for cuBLASLt. A failed execution is looked up in the runtime, since that is how a lost GPU shows there.
absl::Status CublasStatus(cublasStatus_t status, absl::string_view what);

}  // namespace lossd

#define LOSSD_RETURN_IF_CUDA_ERROR(expr, what)                          \
  do {                                                                  \
    if (cudaError_t lossd_cuda_ = (expr); lossd_cuda_ != cudaSuccess) { \
      return ::lossd::CudaStatus(lossd_cuda_, what);                    \
    }                                                                   \
  } while (false)

#endif  // LOSSD_KERNELS_CUDA_CHECK_H_
