// Where a thread's packs lie in a row that a team holds in registers, and single elements of rows of any layout.
#ifndef LOSSD_KERNELS_CUDA_ROW_PACKS_CUH_
#define LOSSD_KERNELS_CUDA_ROW_PACKS_CUH_

#include <cstdint>

#include "kernels/core/tensor_view.h"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/packs.cuh"
#include "kernels/cuda/real.cuh"

namespace lossd {

// A block has consecutive packs of the row, its threads have every blockDim.x-th of these.
template <class T, int kCount>
class RowPacks {
 public:
  __device__ RowPacks(const Cluster& cluster, int64_t width)
      : first_(cluster.rank() * static_cast<int>(blockDim.x) * kCount +
               static_cast<int>(threadIdx.x)),
        packs_(static_cast<int>(width / kPackElements<T>)) {}

  __device__ int pack(int k) const { return first_ + k * static_cast<int>(blockDim.x); }
  __device__ bool Holds(int k) const { return pack(k) < packs_; }

  // Zeros where the row has ended.
  __device__ void Load(const RowsView& view, int64_t row, uint4 (&packs)[kCount]) const {
    const char* from = Address(view, row);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      packs[k] = make_uint4(0, 0, 0, 0);
      if (Holds(k)) packs[k] = LoadPack(from + int64_t{pack(k)} * kPackBytes);
    }
  }
  __device__ void Store(const RowsView& view, int64_t row, int k, uint4 bits) const {
    StorePack(Address(view, row) + int64_t{pack(k)} * kPackBytes, bits);
  }

 private:
  static __device__ char* Address(const RowsView& view, int64_t row) {
    return static_cast<char*>(view.data) + view.Offset(row) * static_cast<int64_t>(sizeof(T));
  }

  const int first_;
  const int packs_;
};

__device__ __forceinline__ float LoadElement(const RowsView& view, int64_t row, int64_t j) {
  return LoadReal(view.data, view.dtype, view.Offset(row) + j);
}
__device__ __forceinline__ void StoreElement(const RowsView& view, int64_t row, int64_t j,
                                             float value) {
  StoreReal(view.data, view.dtype, view.Offset(row) + j, value);
}
// Element j of a [H] tensor.
__device__ __forceinline__ float LoadColumn(const RowsView& view, int64_t j) {
  return LoadReal(view.data, view.dtype, view.Offset(j));
}

// To the type and back.
__device__ __forceinline__ float RoundTo(DType type, float value) {
  if (type == DType::kBF16) return FloatMath::Round<Rounding::kBF16>(value);
  if (type == DType::kF16) return FloatMath::Round<Rounding::kF16>(value);
  return value;
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_ROW_PACKS_CUH_
