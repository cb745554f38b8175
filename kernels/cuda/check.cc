#include "kernels/cuda/check.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"

namespace lossd {

bool IsStickyError(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  // An error of a launch stays in the thread until it is asked for; this call has reported it.
  cudaGetLastError();
  v1::ErrorDetail detail;
  detail.set_cuda_error(static_cast<int32_t>(error));
  absl::StatusCode code = absl::StatusCode::kInternal;
  if (IsStickyError(error)) {
    code = absl::StatusCode::kUnavailable;
    detail.set_reason("GPU_LOST");
  } else if (error == cudaErrorMemoryAllocation) {
    code = absl::StatusCode::kResourceExhausted;
    detail.set_reason("GPU_MEMORY");
  }
  return DetailError(code, detail,
                     absl::StrCat("CUDA could not ", what, ": ", cudaGetErrorName(error), " (",
                                  cudaGetErrorString(error), ")"));
}

absl::Status CublasStatus(cublasStatus_t status, absl::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  if (const cudaError_t error = cudaPeekAtLastError(); IsStickyError(error)) {
    return CudaStatus(error, what);
  }
  const absl::StatusCode code = status == CUBLAS_STATUS_NOT_SUPPORTED
                                    ? absl::StatusCode::kUnimplemented
                                    : absl::StatusCode::kInternal;
  return absl::Status(
      code, absl::StrCat("cuBLASLt could not ", what, ": ", cublasLtGetStatusName(status), " (",
                         cublasLtGetStatusString(status), ")"));
}

}  // namespace lossd
