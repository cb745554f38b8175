// Elements of any real type, read as fp32 and written with one rounding.
#ifndef LOSSD_KERNELS_CUDA_REAL_CUH_
#define LOSSD_KERNELS_CUDA_REAL_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/core/dtype.h"

namespace lossd {

__device__ __forceinline__ float LoadReal(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kBF16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    case DType::kF16:
      return __half2float(static_cast<const __half*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

__device__ __forceinline__ void StoreReal(void* data, DType dtype, int64_t i, float value) {
  switch (dtype) {
    case DType::kBF16:
      static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
      return;
    case DType::kF16:
      static_cast<__half*>(data)[i] = __float2half_rn(value);
      return;
    default:
      static_cast<float*>(data)[i] = value;
  }
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_REAL_CUH_
