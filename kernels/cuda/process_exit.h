// Whether the process is on its way out: CUDA must not be called from destructors then.
#ifndef LOSSD_KERNELS_CUDA_PROCESS_EXIT_H_
#define LOSSD_KERNELS_CUDA_PROCESS_EXIT_H_

#include <cuda_runtime_api.h>

namespace lossd {

// The runtime unloads itself at exit and answers so; it is the only witness that needs no global of ours.
inline bool CudaIsUnloading() {
  int device = 0;
  return cudaGetDevice(&device) == cudaErrorCudartUnloading;
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PROCESS_EXIT_H_
