// One side of a pair of rows, as a block sees its slice of it.
#ifndef LOSSD_KERNELS_CUDA_PAIR_SIDE_CUH_
#define LOSSD_KERNELS_CUDA_PAIR_SIDE_CUH_

#include <cstdint>

#include "kernels/cuda/pair_kernels.h"
#include "kernels/cuda/real.cuh"
#include "kernels/cuda/row_kernel.cuh"

namespace lossd {

inline constexpr int kPairThreads = 256;
inline constexpr int kPairWarps = kPairThreads / 32;
inline constexpr int kPairStep = 4 * kPairThreads;

// Values of four columns, before the transform; columns that do not exist hold anything.
class PairColumns {
 public:
  // `storage`: the block's shared memory for this side, where `on_chip`.
  __device__ PairColumns(const PairValues& side, bool on_chip, char* storage, int begin, int64_t r,
                         int64_t row, float inverse_temperature)
      : side_(side), on_chip_(on_chip), storage_(storage), begin_(begin) {
    transform_ = {side.logit_scale, side.softcap, inverse_temperature};
    if (side.tile != nullptr) {
      dtype_ = DType::kF32;
      source_ = side.tile + r * side.tile_stride;
      vectors_ = true;
    } else {
      dtype_ = side.values.dtype;
      const int64_t bytes = SizeOf(dtype_);
      source_ = static_cast<const char*>(side.values.data) + side.values.Offset(row) * bytes;
      vectors_ = reinterpret_cast<uintptr_t>(source_) % (4 * bytes) == 0;
    }
  }

  __device__ int columns() const { return side_.columns; }
  __device__ ValueKind kind() const { return side_.kind; }
  __device__ const LogitTransform& transform() const { return transform_; }

  // Raw values of columns j ... j + 3, bias included, from global memory; keeps them on the chip.
  __device__ float4 Load(int j) const {
    if (j >= side_.columns) return make_float4(0, 0, 0, 0);
    if (dtype_ == DType::kF32) {
      float4 v = LoadF32(j);
      if (side_.bias) {
        v.x += Bias(j);
        v.y += Bias(j + 1);
        v.z += Bias(j + 2);
        v.w += Bias(j + 3);
      }
      if (on_chip_) *reinterpret_cast<float4*>(storage_ + (j - begin_) * 4) = v;
      return v;
    }
    const uint2 v = LoadHalves(j);
    if (on_chip_) *reinterpret_cast<uint2*>(storage_ + (j - begin_) * 2) = v;
    return Convert(v);
  }
  // The same columns again, by the thread that loaded them.
  __device__ float4 Again(int j) const {
    if (!on_chip_) return Load(j);
    if (j >= side_.columns) return make_float4(0, 0, 0, 0);
    if (dtype_ == DType::kF32) return *reinterpret_cast<const float4*>(storage_ + (j - begin_) * 4);
    return Convert(*reinterpret_cast<const uint2*>(storage_ + (j - begin_) * 2));
  }
  // One column, by any thread, before anything is written over the row.
  __device__ float Raw(int j) const {
    const float value = LoadReal(source_, dtype_, j);
    return side_.bias ? value + Bias(j) : value;
  }

 private:
  // The end of a row of the caller's tensor may be the end of its memory; a tile has its padding.
  __device__ bool IsWhole(int j) const {
    return vectors_ && (side_.tile != nullptr || j + 4 <= side_.values.width);
  }
  // What is read once need not stay in the cache.
  template <class T>
  __device__ T Fetch(const T* from) const {
    return on_chip_ ? __ldcs(from) : *from;
  }
  __device__ float4 LoadF32(int j) const {
    const float* from = static_cast<const float*>(source_) + j;
    if (IsWhole(j)) return Fetch(reinterpret_cast<const float4*>(from));
    float4 v = make_float4(0, 0, 0, 0);
    v.x = from[0];
    if (j + 1 < side_.columns) v.y = from[1];
    if (j + 2 < side_.columns) v.z = from[2];
    if (j + 3 < side_.columns) v.w = from[3];
    return v;
  }
  __device__ uint2 LoadHalves(int j) const {
    const uint16_t* from = static_cast<const uint16_t*>(source_) + j;
    if (IsWhole(j)) return Fetch(reinterpret_cast<const uint2*>(from));
    uint32_t half[4] = {0, 0, 0, 0};
    for (int i = 0; i < 4; ++i) {
      if (j + i < side_.columns) half[i] = from[i];
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
  __device__ float Bias(int j) const {
    if (j >= side_.columns) return 0;
    return LoadReal(side_.bias.data, side_.bias.dtype, j * side_.bias.lead_strides[0]);
  }

  const PairValues& side_;
  const bool on_chip_;
  char* const storage_;
  const int begin_;
  LogitTransform transform_;
  const void* source_;
  DType dtype_;
  bool vectors_;
};

// A side's distribution: log p = z - max - log_sum and p = e / sum, where e is exp(z - max), or the probability itself.
struct PairScale {
  float max = 0;
  float log_sum = 0;
  float inverse_sum = 1;
};

// z - max of a column and its exponential, by the kind of the values.
struct PairElement {
  float z;
  float d;  // log p + log_sum
  float e;  // p / inverse_sum
};

__device__ __forceinline__ PairElement ElementOf(const PairColumns& side, float max, float raw) {
  PairElement out;
  out.z = side.transform()(raw);
  switch (side.kind()) {
    case ValueKind::kLogits:
      out.d = out.z - max;
      out.e = __expf(out.d);
      break;
    case ValueKind::kLogprobs:
      out.d = out.z;
      out.e = __expf(out.d);
      break;
    case ValueKind::kProbs:
      out.d = logf(out.z);
      out.e = out.z;
      break;
  }
  return out;
}

// Where the teacher has no column.
__device__ __forceinline__ PairElement NoElement() { return {0.0f, -INFINITY, 0.0f}; }

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PAIR_SIDE_CUH_
