// Rows of the caller's tensors, of any model type, start and width, four columns at a time.
#ifndef LOSSD_KERNELS_CUDA_ROW_VALUES_CUH_
#define LOSSD_KERNELS_CUDA_ROW_VALUES_CUH_

#include <cstdint>

#include "kernels/core/tensor_view.h"
#include "kernels/cuda/real.cuh"

namespace lossd {

// First element of row `row`.
__device__ __forceinline__ void* RowAddress(const RowsView& view, int64_t row) {
  return static_cast<char*>(view.data) +
         view.Offset(row) * static_cast<int64_t>(SizeOf(view.dtype));
}

// Reads one row. Columns from the width on hold anything.
class RowReader {
 public:
  RowReader() = default;
  // `width`: columns that lie in memory.
  __device__ RowReader(const void* source, DType dtype, int width)
      : source_(source),
        dtype_(dtype),
        width_(width),
        vectors_(reinterpret_cast<uintptr_t>(source) % (4 * SizeOf(dtype)) == 0) {}
  __device__ RowReader(const RowsView& view, int64_t row)
      : RowReader(RowAddress(view, row), view.dtype, static_cast<int>(view.width)) {}

  __device__ DType dtype() const { return dtype_; }
  __device__ float Raw(int j) const { return LoadReal(source_, dtype_, j); }
  // Columns j ... j + 3, j a multiple of 4. kOnce: what is read need not stay in the cache.
  template <bool kOnce>
  __device__ float4 Load(int j) const {
    return dtype_ == DType::kF32 ? LoadF32<kOnce>(j) : Convert(LoadHalves<kOnce>(j));
  }
  template <bool kOnce>
  __device__ float4 LoadF32(int j) const {
    const float* from = static_cast<const float*>(source_) + j;
    if (IsWhole(j)) return Get<kOnce>(reinterpret_cast<const float4*>(from));
    float4 v = make_float4(0, 0, 0, 0);
    if (j < width_) v.x = from[0];
    if (j + 1 < width_) v.y = from[1];
    if (j + 2 < width_) v.z = from[2];
    if (j + 3 < width_) v.w = from[3];
    return v;
  }
  // The bits of four numbers of a 16-bit type.
  template <bool kOnce>
  __device__ uint2 LoadHalves(int j) const {
    const uint16_t* from = static_cast<const uint16_t*>(source_) + j;
    if (IsWhole(j)) return Get<kOnce>(reinterpret_cast<const uint2*>(from));
    uint32_t half[4] = {0, 0, 0, 0};
    for (int i = 0; i < 4; ++i) {
      if (j + i < width_) half[i] = from[i];
    }
    return make_uint2(half[0] | half[1] << 16, half[2] | half[3] << 16);
  }
  __device__ float4 Convert(uint2 v) const {
    if (dtype_ == DType::kBF16) {
      // The bits of a bf16 are the upper half of the same number in fp32.
      return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
                         __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
    }
    const __half2* halves = reinterpret_cast<const __half2*>(&v);
    const float2 low = __half22float2(halves[0]);
    const float2 high = __half22float2(halves[1]);
    return make_float4(low.x, low.y, high.x, high.y);
  }

 private:
  // The end of a row may be the end of its memory.
  __device__ bool IsWhole(int j) const { return vectors_ && j + 4 <= width_; }
  template <bool kOnce, class T>
  __device__ static T Get(const T* from) {
    return kOnce ? __ldcs(from) : *from;
  }

  const void* source_ = nullptr;
  DType dtype_ = DType::kUnspecified;
  int width_ = 0;
  bool vectors_ = false;
};

// Columns j ... j + 3 of a row of `width` columns, each rounded once.
__device__ __forceinline__ void StoreFour(void* row, DType dtype, int width, int j,
                                          const float* g) {
  const bool whole = j + 4 <= width && reinterpret_cast<uintptr_t>(row) % (4 * SizeOf(dtype)) == 0;
  if (!whole) {
    for (int i = 0; i < 4 && j + i < width; ++i) StoreReal(row, dtype, j + i, g[i]);
    return;
  }
  if (dtype == DType::kF32) {
    __stcs(reinterpret_cast<float4*>(static_cast<float*>(row) + j),
           make_float4(g[0], g[1], g[2], g[3]));
  } else if (dtype == DType::kBF16) {
    __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(g[0], g[1]), __floats2bfloat162_rn(g[2], g[3])};
    __stcs(reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(row) + j),
           *reinterpret_cast<uint2*>(pair));
  } else {
    __half2 pair[2] = {__floats2half2_rn(g[0], g[1]), __floats2half2_rn(g[2], g[3])};
    __stcs(reinterpret_cast<uint2*>(static_cast<__half*>(row) + j),
           *reinterpret_cast<uint2*>(pair));
  }
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_ROW_VALUES_CUH_
