// One side of a pair of rows, as a block sees its slice of it.
#ifndef LOSSD_KERNELS_CUDA_PAIR_SIDE_CUH_
#define LOSSD_KERNELS_CUDA_PAIR_SIDE_CUH_

#include <climits>
#include <cstdint>

#include "kernels/cuda/pair_kernels.h"
#include "kernels/cuda/row_kernel.cuh"
#include "kernels/cuda/row_values.cuh"

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
    // A tile has its padding.
    reader_ = side.tile != nullptr
                  ? RowReader(side.tile + r * side.tile_stride, DType::kF32, INT_MAX - 4)
                  : RowReader(side.values, row);
  }

  __device__ int columns() const { return side_.columns; }
  __device__ ValueKind kind() const { return side_.kind; }
  __device__ const LogitTransform& transform() const { return transform_; }

  // Raw values of columns j ... j + 3, bias included, from global memory; keeps them on the chip.
  __device__ float4 Load(int j) const {
    if (j >= side_.columns) return make_float4(0, 0, 0, 0);
    if (reader_.dtype() == DType::kF32) {
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
    return reader_.Convert(v);
  }
  // The same columns again, by the thread that loaded them.
  __device__ float4 Again(int j) const {
    if (!on_chip_) return Load(j);
    if (j >= side_.columns) return make_float4(0, 0, 0, 0);
    if (reader_.dtype() == DType::kF32)
      return *reinterpret_cast<const float4*>(storage_ + (j - begin_) * 4);
    return reader_.Convert(*reinterpret_cast<const uint2*>(storage_ + (j - begin_) * 2));
  }
  // One column, by any thread, before anything is written over the row.
  __device__ float Raw(int j) const {
    const float value = reader_.Raw(j);
    return side_.bias ? value + Bias(j) : value;
  }

 private:
  // What is read once need not stay in the cache.
  __device__ float4 LoadF32(int j) const {
    return on_chip_ ? reader_.LoadF32<true>(j) : reader_.LoadF32<false>(j);
  }
  __device__ uint2 LoadHalves(int j) const {
    return on_chip_ ? reader_.LoadHalves<true>(j) : reader_.LoadHalves<false>(j);
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
  RowReader reader_;
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
