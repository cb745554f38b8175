// libcublasLt, loaded at run time: a program or library with the CUDA backend starts where it is not installed, and shares the one that is
// loaded already in the process of another framework.
#ifndef LOSSD_KERNELS_CUDA_CUBLASLT_LIBRARY_H_
#define LOSSD_KERNELS_CUDA_CUBLASLT_LIBRARY_H_

#include "absl/status/status.h"

namespace lossd {

// Before any function of cublasLt.h is called. Loads once, and never unloads. Thread-safe.
// Errors: NOT_FOUND if there is no libcublasLt of this build's major version.
absl::Status LoadCublasLt();

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_CUBLASLT_LIBRARY_H_
