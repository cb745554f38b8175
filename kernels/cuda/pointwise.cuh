// Kernels that compute every element of some tensors from the same elements of others.
#ifndef LOSSD_KERNELS_CUDA_POINTWISE_CUH_
#define LOSSD_KERNELS_CUDA_POINTWISE_CUH_

#include <cstdint>

#include "kernels/cuda/layer_launch.h"
#include "kernels/cuda/packs.cuh"
#include "kernels/cuda/row_packs.cuh"
#include "kernels/cuda/row_team.cuh"

namespace lossd {

inline constexpr int kPointwiseThreads = 256;

// F has kInputs, kOutputs, kRounding (the type that its formula rounds to; kNone if it does not), and void operator()(const float (&in)[kInputs], float (&out)[kOutputs]) const.
template <class F>
struct PointwiseLaunch {
  F function;
  RowsView in[F::kInputs];
  RowsView out[F::kOutputs];  // absent: not wanted
  int64_t rows = 0;           // 1 where no tensor has a gap
  int64_t units = 0;          // of a row: packs or elements
  RecordTarget record;
};

// The row and the unit in it of a tile's unit `i`.
class PointwiseTile {
 public:
  __device__ PointwiseTile(int64_t first, int64_t rows, int64_t units)
      : rows_(rows), units_(units), row_(rows == 1 ? 0 : first / units) {
    unit_ = first - row_ * units;
  }
  // False behind the last row.
  __device__ bool Find(int i, int64_t* row, int64_t* unit) const {
    *row = row_;
    *unit = unit_ + i;
    if (*unit >= units_) {
      if (rows_ == 1) return false;
      if (units_ < int64_t{1} << 30) {  // so is *unit: a tile is small
        const auto below = static_cast<uint32_t>(*unit) / static_cast<uint32_t>(units_);
        *row += below;
        *unit -= below * units_;
      } else {
        ++*row;
        *unit -= units_;
      }
    }
    return *row < rows_;
  }

 private:
  const int64_t rows_;
  const int64_t units_;
  const int64_t row_;
  int64_t unit_;
};

// A tile of kCount packs for each thread, all of whose loads are under way before the first is used. Bytes: every tensor once.
template <class T, class F, int kCount>
__global__ void __launch_bounds__(kPointwiseThreads)
    PointwiseKernel(const __grid_constant__ PointwiseLaunch<F> launch) {
  constexpr int kElements = kPackElements<T>;
  constexpr int kTile = kCount * kPointwiseThreads;
  if (blockIdx.x == 0) ClearRecord(launch.record.record, launch.record.copy);
  const auto address = [](const RowsView& view, int64_t row, int64_t pack) {
    return static_cast<char*>(view.data) + view.Offset(row) * static_cast<int64_t>(sizeof(T)) +
           pack * kPackBytes;
  };
  const int64_t total = launch.rows * launch.units;
  for (int64_t first = blockIdx.x * int64_t{kTile}; first < total;
       first += gridDim.x * int64_t{kTile}) {
    const PointwiseTile tile(first, launch.rows, launch.units);
    uint4 in[kCount][F::kInputs];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      int64_t row;
      int64_t pack;
      if (!tile.Find(k * kPointwiseThreads + static_cast<int>(threadIdx.x), &row, &pack)) continue;
#pragma unroll
      for (int i = 0; i < F::kInputs; ++i) in[k][i] = LoadPack(address(launch.in[i], row, pack));
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      int64_t row;
      int64_t pack;
      if (!tile.Find(k * kPointwiseThreads + static_cast<int>(threadIdx.x), &row, &pack)) continue;
      float values[F::kInputs][kElements];
      float results[F::kOutputs][kElements];
#pragma unroll
      for (int i = 0; i < F::kInputs; ++i) Unpack<T>(in[k][i], values[i]);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        float arguments[F::kInputs];
        float values_of[F::kOutputs];
#pragma unroll
        for (int i = 0; i < F::kInputs; ++i) arguments[i] = values[i][e];
        launch.function(arguments, values_of);
#pragma unroll
        for (int o = 0; o < F::kOutputs; ++o) results[o][e] = values_of[o];
      }
#pragma unroll
      for (int o = 0; o < F::kOutputs; ++o) {
        if (launch.out[o]) {
          StorePack(address(launch.out[o], row, pack), PackOf<T>(results[o]));
        }
      }
    }
  }
}

// Any layout and types, an element at a time.
template <class F>
__global__ void __launch_bounds__(kPointwiseThreads)
    AnyPointwiseKernel(const __grid_constant__ PointwiseLaunch<F> launch) {
  if (blockIdx.x == 0) ClearRecord(launch.record.record, launch.record.copy);
  const int64_t total = launch.rows * launch.units;
  for (int64_t first = blockIdx.x * int64_t{kPointwiseThreads}; first < total;
       first += gridDim.x * int64_t{kPointwiseThreads}) {
    const PointwiseTile tile(first, launch.rows, launch.units);
    int64_t row;
    int64_t j;
    if (!tile.Find(static_cast<int>(threadIdx.x), &row, &j)) continue;
    float arguments[F::kInputs];
    float values[F::kOutputs];
#pragma unroll
    for (int i = 0; i < F::kInputs; ++i) arguments[i] = LoadElement(launch.in[i], row, j);
    launch.function(arguments, values);
#pragma unroll
    for (int o = 0; o < F::kOutputs; ++o) {
      if (launch.out[o]) StoreElement(launch.out[o], row, j, values[o]);
    }
  }
}

// The kernel of a function for tensors of type T in packs. A formula that rounds to another type has none.
template <class T, class F, int kCount>
const void* PackedKernelOf() {
  if constexpr (F::kRounding == Rounding::kNone || F::kRounding == RealType<T>::kRounding) {
    return reinterpret_cast<const void*>(&PointwiseKernel<T, F, kCount>);
  } else {
    return nullptr;
  }
}
template <class F, int kCount>
const void* PackedKernelOf(DType type) {
  if (type == DType::kF32) return PackedKernelOf<float, F, kCount>();
  if (type == DType::kBF16) return PackedKernelOf<__nv_bfloat16, F, kCount>();
  return PackedKernelOf<__half, F, kCount>();
}

// Enqueues; `launch` has function, in, out and record. Rows and width must be at least 1.
template <class F, int kCount>
cudaError_t LaunchPointwise(PointwiseLaunch<F> launch, int64_t rows, int64_t width,
                            cudaStream_t stream, bool* packed) {
  const DType type = launch.in[0].dtype;
  *packed = true;
  bool flat = true;
  const auto look = [&](const RowsView& view) {
    if (!view) return;
    *packed = *packed && IsPacked(view, type);
    flat = flat && view.lead_rank == 1 && (view.rows == 1 || view.lead_strides[0] == width);
  };
  for (const RowsView& view : launch.in) look(view);
  for (const RowsView& view : launch.out) look(view);
  const int elements = *packed ? kPackBytes / static_cast<int>(SizeOf(type)) : 1;
  launch.rows = flat ? 1 : rows;
  launch.units = (flat ? rows * width : width) / elements;
  const int64_t tile = int64_t{kPointwiseThreads} * (*packed ? kCount : 1);
  TeamGrid grid;
  grid.threads = kPointwiseThreads;
  const int64_t tiles = (launch.rows * launch.units + tile - 1) / tile;
  grid.teams = tiles < (int64_t{1} << 30) ? tiles : int64_t{1} << 30;
  const void* kernel = *packed ? PackedKernelOf<F, kCount>(type)
                               : reinterpret_cast<const void*>(&AnyPointwiseKernel<F>);
  return LaunchTeams(kernel, &launch, grid, stream);
}

template <class F, int kCount>
cudaError_t PreparePointwise() {
  cudaError_t error = PrepareLayerKernel(reinterpret_cast<const void*>(&AnyPointwiseKernel<F>));
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const void* kernel = PackedKernelOf<F, kCount>(type);
    if (kernel != nullptr && error == cudaSuccess) error = PrepareLayerKernel(kernel);
  }
  return error;
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_POINTWISE_CUH_
