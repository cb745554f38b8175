// Copies of rows between the caller's tensors and packed memory, and the last steps of gradients. All are bound by memory; none is a
// visible part of a large call.
#include <algorithm>

#include "kernels/cuda/head_kernels.h"
#include "kernels/cuda/real.cuh"

namespace lossd {
namespace {

constexpr int kThreads = 256;

__device__ const char* At(const void* data, DType dtype, int64_t offset) {
  return static_cast<const char*>(data) + offset * static_cast<int64_t>(SizeOf(dtype));
}
__device__ char* At(void* data, DType dtype, int64_t offset) {
  return static_cast<char*>(data) + offset * static_cast<int64_t>(SizeOf(dtype));
}

// One row by one block; equal types are copied in vectors of 16 bytes where the addresses allow it.
__device__ void CopyRow(void* to, DType to_dtype, const void* from, DType from_dtype,
                        int64_t width) {
  const int64_t bytes = width * static_cast<int64_t>(SizeOf(to_dtype));
  const auto alignment = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) |
                         static_cast<uintptr_t>(bytes);
  if (to_dtype == from_dtype && alignment % 16 == 0) {
    for (int64_t i = threadIdx.x; i < bytes / 16; i += kThreads) {
      static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
    }
    return;
  }
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    StoreReal(to, to_dtype, i, LoadReal(from, from_dtype, i));
  }
}

__device__ void ClearRow(void* to, DType dtype, int64_t width) {
  for (int64_t i = threadIdx.x; i < width; i += kThreads) StoreReal(to, dtype, i, 0.0f);
}

__global__ void PackRowsKernel(PackedRows to, const __grid_constant__ RowsView from, int64_t first,
                               const int32_t* index, const uint8_t* live) {
  const int64_t r = blockIdx.x;
  void* out = At(to.data, to.dtype, r * to.stride);
  const int64_t row = index == nullptr ? first + r : index[r];
  if (row < 0 || (live != nullptr && live[r] == 0)) {
    ClearRow(out, to.dtype, to.width);
    return;
  }
  CopyRow(out, to.dtype, At(static_cast<const void*>(from.data), from.dtype, from.Offset(row)),
          from.dtype, to.width);
}

__global__ void ClearDeadRowsKernel(PackedRows rows, const uint8_t* live) {
  const int64_t r = blockIdx.x;
  if (live[r] == 0) ClearRow(At(rows.data, rows.dtype, r * rows.stride), rows.dtype, rows.width);
}

__global__ void ScatterRowsKernel(const __grid_constant__ RowsView to, PackedRows from,
                                  const int32_t* index, const uint8_t* live,
                                  const ResultRecord* record) {
  const int64_t r = blockIdx.x;
  const int64_t row = index[r];
  if (row < 0 || record->code != 0) return;
  void* out = At(to.data, to.dtype, to.Offset(row));
  if (live[r] == 0) {
    ClearRow(out, to.dtype, from.width);
    return;
  }
  CopyRow(out, to.dtype, At(static_cast<const void*>(from.data), from.dtype, r * from.stride),
          from.dtype, from.width);
}

__global__ void FinishRowsKernel(const __grid_constant__ RowsView to, int64_t first,
                                 PackedRows from, bool accumulate, const ResultRecord* record) {
  if (record->code != 0) return;
  const int64_t r = blockIdx.x;
  void* out = At(to.data, to.dtype, to.Offset(first + r));
  const float* in = static_cast<const float*>(from.data) + r * from.stride;
  for (int64_t i = threadIdx.x; i < from.width; i += kThreads) {
    const float old = accumulate ? LoadReal(out, to.dtype, i) : 0.0f;
    StoreReal(out, to.dtype, i, accumulate ? old + in[i] : in[i]);
  }
}

__global__ void ZeroRowsKernel(const __grid_constant__ RowsView to, int64_t first,
                               const ResultRecord* record) {
  if (record->code != 0) return;
  ClearRow(At(to.data, to.dtype, to.Offset(first + blockIdx.x)), to.dtype, to.width);
}

// partials[part][j] over the part's rows.
__global__ void SumColumnPartsKernel(PackedRows dz, const float* factor, float* partials) {
  const int64_t j = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (j >= dz.width) return;
  const int64_t each = (dz.rows + kBiasParts - 1) / kBiasParts;
  const int64_t begin = blockIdx.y * each;
  const int64_t end = min(dz.rows, begin + each);
  float sum = 0;
  for (int64_t r = begin; r < end; ++r) {
    const float f = factor == nullptr ? 1.0f : factor[r];
    if (f != 0) sum += f * LoadReal(dz.data, dz.dtype, r * dz.stride + j);
  }
  partials[blockIdx.y * dz.width + j] = sum;
}

__global__ void SumPartsKernel(const float* partials, int64_t columns, float* sums, bool accumulate,
                               const float* alpha) {
  const int64_t j = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (j >= columns) return;
  float sum = 0;
  for (int part = 0; part < kBiasParts; ++part) sum += partials[part * columns + j];
  if (alpha != nullptr) sum *= *alpha;
  sums[j] = accumulate ? sums[j] + sum : sum;
}

__global__ void InitScalarsKernel(DzScalars* scalars) { *scalars = {1, 1, 0, 1, 0}; }

__global__ void ScaleFromMaxKernel(DzScalars* scalars) {
  const float largest = __uint_as_float(scalars->dz_max);
  float scale = 1;
  if (largest > 0 && largest < INFINITY) {
    int exponent = 0;
    frexpf(largest, &exponent);
    // Both the scale and its inverse stay normal numbers.
    scale = ldexpf(1.0f, min(max(14 - exponent, -120), 120));
  }
  scalars->scale = scale;
  scalars->alpha = 1 / scale;
  scalars->dz_max = 0;
}

unsigned Blocks(int64_t count) { return static_cast<unsigned>(count); }

}  // namespace

cudaError_t LaunchPackRows(const PackedRows& to, const RowsView& from, int64_t first,
                           const int32_t* index, const uint8_t* live, cudaStream_t stream) {
  if (to.rows == 0) return cudaSuccess;
  PackRowsKernel<<<Blocks(to.rows), kThreads, 0, stream>>>(to, from, first, index, live);
  return cudaGetLastError();
}

cudaError_t LaunchClearDeadRows(const PackedRows& rows, const uint8_t* live, cudaStream_t stream) {
  if (rows.rows == 0) return cudaSuccess;
  ClearDeadRowsKernel<<<Blocks(rows.rows), kThreads, 0, stream>>>(rows, live);
  return cudaGetLastError();
}

cudaError_t LaunchScatterRows(const RowsView& to, const PackedRows& from, const int32_t* index,
                              const uint8_t* live, const ResultRecord* record,
                              cudaStream_t stream) {
  if (from.rows == 0) return cudaSuccess;
  ScatterRowsKernel<<<Blocks(from.rows), kThreads, 0, stream>>>(to, from, index, live, record);
  return cudaGetLastError();
}

cudaError_t LaunchFinishRows(const RowsView& to, int64_t first, const PackedRows& from,
                             bool accumulate, const ResultRecord* record, cudaStream_t stream) {
  if (from.rows == 0) return cudaSuccess;
  FinishRowsKernel<<<Blocks(from.rows), kThreads, 0, stream>>>(to, first, from, accumulate, record);
  return cudaGetLastError();
}

cudaError_t LaunchZeroRows(const RowsView& to, int64_t first, int64_t last,
                           const ResultRecord* record, cudaStream_t stream) {
  if (first >= last) return cudaSuccess;
  ZeroRowsKernel<<<Blocks(last - first), kThreads, 0, stream>>>(to, first, record);
  return cudaGetLastError();
}

cudaError_t LaunchSumColumns(const PackedRows& dz, float* partials, float* sums, bool accumulate,
                             const float* alpha, const float* factor, cudaStream_t stream) {
  if (dz.width == 0) return cudaSuccess;
  const unsigned blocks = Blocks((dz.width + kThreads - 1) / kThreads);
  SumColumnPartsKernel<<<dim3(blocks, kBiasParts), kThreads, 0, stream>>>(dz, factor, partials);
  SumPartsKernel<<<blocks, kThreads, 0, stream>>>(partials, dz.width, sums, accumulate, alpha);
  return cudaGetLastError();
}

cudaError_t LaunchInitScalars(DzScalars* scalars, cudaStream_t stream) {
  InitScalarsKernel<<<1, 1, 0, stream>>>(scalars);
  return cudaGetLastError();
}

cudaError_t LaunchScaleFromMax(DzScalars* scalars, cudaStream_t stream) {
  ScaleFromMaxKernel<<<1, 1, 0, stream>>>(scalars);
  return cudaGetLastError();
}

cudaError_t PrepareHeadKernels() {
  cudaFuncAttributes attributes;
  const void* kernels[] = {reinterpret_cast<const void*>(PackRowsKernel),
                           reinterpret_cast<const void*>(ClearDeadRowsKernel),
                           reinterpret_cast<const void*>(ScatterRowsKernel),
                           reinterpret_cast<const void*>(FinishRowsKernel),
                           reinterpret_cast<const void*>(ZeroRowsKernel),
                           reinterpret_cast<const void*>(SumColumnPartsKernel),
                           reinterpret_cast<const void*>(SumPartsKernel),
                           reinterpret_cast<const void*>(InitScalarsKernel),
                           reinterpret_cast<const void*>(ScaleFromMaxKernel)};
  for (const void* kernel : kernels) {
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
        error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

}  // namespace lossd
