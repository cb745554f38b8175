#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/listed_product.h"

namespace lossd {
namespace {

// A tile of 128 x 256 for each block of a cluster of two, which have the same columns of d and fetch half of b each, for both.
constexpr int kClusterBlocks = 2;
constexpr int kTileRows = kListedRows / kClusterBlocks;
constexpr int kTileColumns = 256;
constexpr int kStages = 4;
constexpr int kGroupThreads = 128;
constexpr int kThreads = 3 * kGroupThreads;
constexpr int kBoxColumns = 64;
constexpr int kBoxBytes = kListedTerms * kBoxColumns * 2;
constexpr int kBytesOfA = kTileRows * kListedTerms * 2;
constexpr int kBytesOfB = kTileColumns * kListedTerms * 2;
constexpr int kStageBytes = kBytesOfA + kBytesOfB;
constexpr int kSharedBytes = kStages * kStageBytes + 1024;
constexpr int kBoxesOfB =
    kTileColumns / kBoxColumns / kClusterBlocks;  // of each block of the cluster

struct Shared {
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

struct Cursor {
  int stage = 0;
  uint32_t phase = 0;

  __device__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

struct Tiles {
  int columns;
  int count;

  __device__ explicit Tiles(const ListedProduct& p)
      : columns((p.n + kTileColumns - 1) / kTileColumns),
        count((p.m + kListedRows - 1) / kListedRows * columns) {}
};

template <bool kTransposed>
__device__ void CopyTiles(const ListedProduct& p, const Tiles& tiles, uint8_t* stages,
                          Shared* shared, uint32_t rank) {
  hopper::PrefetchMap(&p.a);
  hopper::PrefetchMap(&p.b);
  Cursor cursor;
  for (int i = blockIdx.x / kClusterBlocks; i < tiles.count; i += gridDim.x / kClusterBlocks) {
    const int group = i / tiles.columns;
    const int row = group * kListedRows + static_cast<int>(rank) * kTileRows;
    const int column = i % tiles.columns * kTileColumns;
    const uint16_t* blocks = p.list.blocks + group * p.list.stride;
    const int count = p.list.count[group * p.list.count_stride];
    for (int k = 0; k < count; ++k, cursor.Next()) {
      const int term = blocks[k] * kListedTerms;
      uint64_t* full = &shared->full[cursor.stage];
      hopper::Wait(&shared->empty[cursor.stage], cursor.phase ^ 1);
      hopper::ArriveExpecting(full, kStageBytes);
      uint8_t* a = stages + cursor.stage * kStageBytes;
      if constexpr (kTransposed) {
        hopper::Copy(a, &p.a, row, term, full);
        hopper::Copy(a + kBoxBytes, &p.a, row + kBoxColumns, term, full);
      } else {
        hopper::Copy(a, &p.a, term, row, full);
      }
      uint8_t* b = a + kBytesOfA;
#pragma unroll
      for (int box = 0; box < kBoxesOfB; ++box) {
        const int number = static_cast<int>(rank) * kBoxesOfB + box;
        hopper::CopyToAll(b + number * kBoxBytes, &p.b, column + number * kBoxColumns, term, full,
                          (1 << kClusterBlocks) - 1);
      }
    }
  }
}

// Rows of one warp's 16, of a tile's columns.
__device__ void StoreTile(const ListedProduct& p, const float (&acc)[128], int first, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = first + lane / 4 + 8 * half;
    if (r >= p.m) continue;
    const int64_t row = p.index == nullptr ? r : p.index[r];
    if (row < 0) continue;
    const float f = p.factor == nullptr ? 1.0f : p.factor[r];
    const int64_t begin = row * p.d_stride + column + 2 * (lane % 4);
#pragma unroll
    for (int n = 0; n < kTileColumns / 8; ++n) {
      if (column + 8 * n + 2 * (lane % 4) >= p.n) continue;
      // A row without gradient is 0, whatever its product is.
      float x = f == 0 ? 0.0f : f * acc[4 * n + 2 * half];
      float y = f == 0 ? 0.0f : f * acc[4 * n + 2 * half + 1];
      if (p.dtype == DType::kF32) {
        float2* to = reinterpret_cast<float2*>(static_cast<float*>(p.d) + begin + 8 * n);
        if (p.adds) {
          const float2 old = *to;
          x += old.x, y += old.y;
        }
        *to = make_float2(x, y);
      } else {
        auto* to =
            reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(p.d) + begin + 8 * n);
        if (p.adds) {
          const float2 old = __bfloat1622float2(*to);
          x += old.x, y += old.y;
        }
        *to = __floats2bfloat162_rn(x, y);
      }
    }
  }
}

template <bool kTransposed>
__device__ void MultiplyTiles(const ListedProduct& p, const Tiles& tiles, uint8_t* stages,
                              Shared* shared, uint32_t rank, int group) {
  const int warp = static_cast<int>(threadIdx.x) % kGroupThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool stopped = p.record->code != 0;
  const auto release = [&](int stage) {
    if (lane < kClusterBlocks) hopper::ArriveAt(&shared->empty[stage], static_cast<uint32_t>(lane));
  };
  Cursor cursor;
  for (int i = blockIdx.x / kClusterBlocks; i < tiles.count; i += gridDim.x / kClusterBlocks) {
    const int rows = i / tiles.columns;
    const int count = p.list.count[rows * p.list.count_stride];
    float acc[128];
    if (count == 0) {
#pragma unroll
      for (int j = 0; j < 128; ++j) acc[j] = 0;
    }
    int before = 0;
    for (int k = 0; k < count; ++k, cursor.Next()) {
      hopper::Wait(&shared->full[cursor.stage], cursor.phase);
      const uint8_t* stage = stages + cursor.stage * kStageBytes;
      const uint64_t a = kTransposed
                             ? hopper::ColumnsDescriptor(stage + group * kBoxBytes, kBoxBytes)
                             : hopper::OperandDescriptor(stage + group * (kBytesOfA / 2));
      const uint64_t b = hopper::ColumnsDescriptor(stage + kBytesOfA, kBoxBytes);
      hopper::HoldAccumulators(acc);
      hopper::BeginProducts();
#pragma unroll
      for (int part = 0; part < kListedTerms / 16; ++part) {
        // 16 terms: 32 bytes of a row, or 16 rows of 128 bytes.
        hopper::Multiply64x256<kTransposed>(acc, a + part * (kTransposed ? 128 : 2), b + part * 128,
                                            k > 0 || part > 0);
      }
      hopper::CommitProducts();
      if (k > 0) {
        hopper::WaitForProducts<1>();
        release(before);
      }
      before = cursor.stage;
    }
    hopper::WaitForProducts<0>();
    hopper::HoldAccumulators(acc);
    if (count > 0) release(before);
    if (stopped || (count == 0 && p.adds)) continue;
    const int row =
        rows * kListedRows + static_cast<int>(rank) * kTileRows + 64 * group + 16 * warp;
    StoreTile(p, acc, row, i % tiles.columns * kTileColumns);
  }
}

template <bool kTransposed>
__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(kThreads, 1)
    ListedProductKernel(const __grid_constant__ ListedProduct p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t dynamic[];
  __shared__ Shared shared;
  uint8_t* stages = dynamic + ((1024 - hopper::SharedAddress(dynamic) % 1024) % 1024);
  const uint32_t rank = hopper::ClusterRank();
  const Tiles tiles(p);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      hopper::InitBarrier(&shared.full[i], 1);
      hopper::InitBarrier(&shared.empty[i], 8 * kClusterBlocks);
    }
    hopper::FenceBarriers();
  }
  hopper::ClusterSync();
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (group == 2) {
    hopper::GiveRegisters<40>();
    if (threadIdx.x % kGroupThreads == 0) {
      CopyTiles<kTransposed>(p, tiles, stages, &shared, rank);
    }
  } else {
    hopper::TakeRegisters<232>();
    MultiplyTiles<kTransposed>(p, tiles, stages, &shared, rank, group);
  }
  // The other block may still write here, or arrive.
  __syncwarp();
  hopper::ClusterSync();
#endif
}

}  // namespace

cudaError_t LaunchListedProduct(const ListedProduct& product, cudaStream_t stream) {
  if (product.m == 0 || product.n == 0) return cudaSuccess;
  int device = 0;
  int multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error != cudaSuccess) return error;
  const int64_t tiles = int64_t{(product.m + kListedRows - 1) / kListedRows} *
                        ((product.n + kTileColumns - 1) / kTileColumns);
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>(multiprocessors / kClusterBlocks, tiles) * kClusterBlocks);
  if (product.transposed) {
    ListedProductKernel<true><<<blocks, kThreads, kSharedBytes, stream>>>(product);
  } else {
    ListedProductKernel<false><<<blocks, kThreads, kSharedBytes, stream>>>(product);
  }
  return cudaGetLastError();
}

cudaError_t PrepareListedProduct() {
  const cudaError_t error = cudaFuncSetAttribute(
      ListedProductKernel<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(ListedProductKernel<true>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
}

}  // namespace lossd
