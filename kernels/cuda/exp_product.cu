#include <cudaTypedefs.h>
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/exp_product.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/objectives/exp2.h"

namespace lossd {
namespace {

using hopper::HoldAccumulators;

// A block has one warpgroup that copies and two that multiply, each a tile of its own: while one is at its exponentials the other has the
// tensor cores. Two blocks are a cluster; they have the same columns and each fetches half of the weight's rows for both.
constexpr int kDepth = 64;  // of a stage, in numbers of the hidden size
constexpr int kStages = 5;
constexpr int kClusterBlocks = 2;
constexpr int kGroupThreads = 128;
constexpr int kThreads = 3 * kGroupThreads;
constexpr int kHiddenBytes = kExpTileRows * kDepth * 2;
constexpr int kWeightBytes = kExpTileColumns * kDepth * 2;
constexpr int kStageBytes = kHiddenBytes + kWeightBytes;
static_assert(kExpWeightBox * kClusterBlocks == kExpTileColumns);
// A warp's 16 rows of 64 columns on their way to memory.
constexpr int kRoundColumns = 64;
constexpr int kRoundBytes = 16 * kRoundColumns * 2;
constexpr int kWarps = 8;
constexpr int kSharedBytes = kStages * kStageBytes + kWarps * kRoundBytes + 1024;
// Of the rows whose hidden states stay in the L2 cache while the weight streams by.
constexpr int kGroupBytes = 16 << 20;

// Of the two warpgroups that multiply; the next one is the second group's.
constexpr int kTurnBarrier = 1;

struct Tile {
  int pair;    // of row tiles
  int column;  // tile
};

// The order of tiles: all columns for a group of rows, then the next group.
struct Tiles {
  int pairs;
  int columns;
  int group;  // pairs of a group

  __device__ int count() const { return pairs * columns; }
  __device__ Tile operator[](int i) const {
    const int number = i / (group * columns);
    const int in_group = i - number * group * columns;
    const int size = min(group, pairs - number * group);
    return {number * group + in_group % size, in_group / size};
  }
};

struct Shared {
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

__device__ __forceinline__ uint32_t Pack(float low, float high) {
  uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

// A place in the ring of stages.
struct Cursor {
  int stage;
  uint32_t phase;

  __device__ explicit Cursor(int64_t steps)
      : stage(static_cast<int>(steps % kStages)),
        phase(static_cast<uint32_t>(steps / kStages) & 1) {}
  __device__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

__device__ void CopyTiles(const ExpProduct& p, const Tiles& tiles, uint8_t* stages, Shared* shared,
                          uint32_t rank) {
  hopper::PrefetchMap(&p.hidden);
  hopper::PrefetchMap(&p.weight);
  const int steps = (p.hidden_size + kDepth - 1) / kDepth;
  Cursor cursor(0);
  for (int i = blockIdx.x / kClusterBlocks; i < tiles.count(); i += gridDim.x / kClusterBlocks) {
    const Tile tile = tiles[i];
    const int pair = p.pairs == nullptr ? tile.pair : p.pairs[tile.pair];
    const int row = (pair * kClusterBlocks + static_cast<int>(rank)) * kExpTileRows;
    const int column = tile.column * kExpTileColumns + static_cast<int>(rank) * kExpWeightBox;
    for (int k = 0; k < steps; ++k, cursor.Next()) {
      uint64_t* full = &shared->full[cursor.stage];
      hopper::Wait(&shared->empty[cursor.stage], cursor.phase ^ 1);
      hopper::ArriveExpecting(full, kStageBytes);
      uint8_t* stage = stages + cursor.stage * kStageBytes;
      hopper::Copy(stage, &p.hidden, k * kDepth, row, full);
      hopper::CopyToAll(stage + kHiddenBytes + rank * (kWeightBytes / kClusterBlocks), &p.weight,
                        k * kDepth, column, full, (1 << kClusterBlocks) - 1);
    }
  }
}

// Sums of a thread's columns of one row.
template <ExpSums kSums>
struct Sums {
  float exp = 0;
  float exp_d = 0;
  float exp_2 = 0;
  float d = 0;
  float largest = -INFINITY;
  int column = 0;

  __device__ void Add(float value, float e, int j) {
    exp = __fadd_rn(exp, e);
    if constexpr (kSums != ExpSums::kExp) exp_d = __fmaf_rn(e, fmaxf(value, -200.0f), exp_d);
    if constexpr (kSums == ExpSums::kAll) {
      exp_2 = __fmaf_rn(e, e, exp_2);
      d = __fadd_rn(d, value);
      if (value > largest) {
        largest = value;
        column = j;
      }
    }
  }
  // Of the four threads that share the row.
  __device__ void Reduce() {
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
      exp = __fadd_rn(exp, __shfl_xor_sync(~0u, exp, step));
      if constexpr (kSums != ExpSums::kExp)
        exp_d = __fadd_rn(exp_d, __shfl_xor_sync(~0u, exp_d, step));
      if constexpr (kSums == ExpSums::kAll) {
        exp_2 = __fadd_rn(exp_2, __shfl_xor_sync(~0u, exp_2, step));
        d = __fadd_rn(d, __shfl_xor_sync(~0u, d, step));
        const float other = __shfl_xor_sync(~0u, largest, step);
        const int other_column = __shfl_xor_sync(~0u, column, step);
        if (other > largest || (other == largest && other_column < column)) {
          largest = other;
          column = other_column;
        }
      }
    }
  }
  __device__ void Store(float* to, int64_t stride) const {
    to[0] = exp;
    if constexpr (kSums != ExpSums::kExp) to[stride * kSumExpD] = exp_d;
    if constexpr (kSums == ExpSums::kAll) {
      to[stride * kSumExp2] = exp_2;
      to[stride * kSumD] = d;
      to[stride * kLargestD] = largest;
      to[stride * kLargestColumn] = __int_as_float(column);
    }
  }
};

template <ExpSums kSums, bool kStore, bool kBias, bool kMass>
class Epilogue {
 public:
  __device__ Epilogue(const ExpProduct& p, uint8_t* round, int warp)
      : p_(p), round_(round), warp_(warp), lane_(static_cast<int>(threadIdx.x) % 32) {}

  // 16 rows of the warp, from accumulators of the warpgroup's 64 rows that begin at `row`.
  __device__ void Run(const float (&acc)[96], int row, int column_tile) const {
    const int first = row + 16 * warp_;
    const int low = first + lane_ / 4;
    const int high = low + 8;
    const int last = p_.rows - 1;
    const float slope[2] = {__ldg(p_.slope + min(low, last)), __ldg(p_.slope + min(high, last))};
    const float reference[2] = {__ldg(p_.reference + min(low, last)),
                                __ldg(p_.reference + min(high, last))};
    const int begin = column_tile * kExpTileColumns;
    const int target[2] = {__ldg(p_.target + min(low, last)), __ldg(p_.target + min(high, last))};
    const auto here = [begin](int j) { return j >= begin && j < begin + kExpTileColumns; };
    const bool special = begin + kExpTileColumns > p_.columns || here(target[0]) || here(target[1]);
    Sums<kSums> sums[2];
    if (!__any_sync(~0u, special)) {
      Columns<false>(acc, first, begin, slope, reference, target, sums);
    } else {
      Columns<true>(acc, first, begin, slope, reference, target, sums);
    }
    Finish(acc, low, high, column_tile, slope, reference, sums);
  }

 private:
  // kSpecial: the tile ends within these columns, or has a row's target.
  template <bool kSpecial>
  __device__ void Columns(const float (&acc)[96], int first, int begin, const float (&slope)[2],
                          const float (&reference)[2], const int (&target)[2],
                          Sums<kSums> (&sums)[2]) const {
#pragma unroll
    for (int round = 0; round < kExpTileColumns / kRoundColumns; ++round) {
      uint32_t packed[2][2];
      float mass[2] = {0, 0};
#pragma unroll
      for (int n = 0; n < kRoundColumns / 8; ++n) {
        const int at = round * (kRoundColumns / 8) + n;
        const int j = begin + 8 * at + 2 * (lane_ % 4);
        float bias[2] = {0, 0};
        if constexpr (kBias) {
          const float2 b = __ldg(reinterpret_cast<const float2*>(p_.bias + j));
          bias[0] = b.x, bias[1] = b.y;
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float e[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float z = acc[4 * at + 2 * half + i];
            if constexpr (kBias) z += bias[i];
            const float d = __fmaf_rn(z, slope[half], -reference[half]);
            e[i] = FastExp2(d);
            if (kSpecial && j + i >= p_.columns) {
              e[i] = 0;
            } else {
              sums[half].Add(d, e[i], j + i);
            }
            if (kSpecial && j + i == target[half]) {
              const int row = first + lane_ / 4 + 8 * half;
              if (row < p_.rows) p_.target_d[row] = d;
            }
          }
          packed[n % 2][half] = Pack(e[0], e[1]);
          if constexpr (kMass) mass[half] += e[0] + e[1];
        }
        if (kStore && n % 2 == 1) {
          // Row lane % 8 (+ 8 for matrices 1 and 3), 16 bytes n - 1 or n, where its 8 pieces are turned by the row.
          const int r = lane_ % 16;
          const int piece = n - 1 + lane_ / 16;
          hopper::StoreMatrices(round_ + r * (kRoundColumns * 2) + (piece ^ (r % 8)) * 16,
                                packed[0][0], packed[0][1], packed[1][0], packed[1][1]);
        }
      }
      if constexpr (kMass) StoreMass(mass, first, begin / kMassColumns + round);
      if constexpr (kStore) {
        __syncwarp();
        StoreRound<kSpecial>(first, begin + round * kRoundColumns);
        __syncwarp();
      }
    }
  }

  __device__ void StoreMass(const float (&mass)[2], int first, int block) const {
    static_assert(kMassColumns == kRoundColumns);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = mass[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int row = first + lane_ / 4 + 8 * half;
      if (lane_ % 4 != 0 || row >= p_.rows || block >= p_.mass_stride) continue;
      const int exponent = static_cast<int>(__float_as_uint(sum) >> 23 & 0xff);
      p_.mass[row * p_.mass_stride + block] =
          static_cast<uint8_t>(sum == 0 ? 0 : min(255, exponent + 1));
    }
  }

  template <bool kSpecial>
  __device__ void StoreRound(int first, int column) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = 4 * i + lane_ / 8;
      const int piece = lane_ % 8;
      const uint4 v = *reinterpret_cast<const uint4*>(round_ + r * (kRoundColumns * 2) +
                                                      (piece ^ (r % 8)) * 16);
      const int j = column + 8 * piece;
      if (first + r < p_.rows && (!kSpecial || j < p_.columns)) {
        __stcs(reinterpret_cast<uint4*>(p_.e + (first + r) * p_.e_stride + j), v);
      }
    }
  }

  __device__ void Finish(const float (&acc)[96], int low, int high, int column_tile,
                         const float (&slope)[2], const float (&reference)[2],
                         Sums<kSums> (&sums)[2]) const {
    sums[0].Reduce();
    sums[1].Reduce();
    const int64_t tiles = (p_.columns + kExpTileColumns - 1) / kExpTileColumns;
    if (lane_ % 4 == 0) {
      float* to = p_.sums + column_tile * p_.sums_stride;
      if (low < p_.rows) sums[0].Store(to + low, tiles * p_.sums_stride);
      if (high < p_.rows) sums[1].Store(to + high, tiles * p_.sums_stride);
    }
    if (p_.largest == nullptr) return;
    // Rare: a token that the model holds for all but impossible.
    if (!__any_sync(~0u, !(sums[0].exp <= kExpSumLimit) || !(sums[1].exp <= kExpSumLimit))) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (sums[half].exp <= kExpSumLimit) continue;
      float largest = -INFINITY;
#pragma unroll
      for (int at = 0; at < kExpTileColumns / 8; ++at) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int j = column_tile * kExpTileColumns + 8 * at + 2 * (lane_ % 4) + i;
          float z = acc[4 * at + 2 * half + i];
          if constexpr (kBias) z += p_.bias[j];
          if (j < p_.columns) largest = fmaxf(largest, z);
        }
      }
      // The slope is positive: it keeps the order.
      largest = fmaxf(0.0f, __fmaf_rn(largest, slope[half], -reference[half]));
      const int row = half == 0 ? low : high;
      if (row < p_.rows) atomicMax(p_.largest + row, __float_as_int(largest));
    }
  }

  const ExpProduct& p_;
  uint8_t* const round_;
  const int warp_;
  const int lane_;
};

template <ExpSums kSums, bool kStore, bool kBias, bool kMass>
__device__ void MultiplyTiles(const ExpProduct& p, const Tiles& tiles, uint8_t* stages,
                              Shared* shared, uint32_t rank, int group) {
  const int warp = static_cast<int>(threadIdx.x) % kGroupThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int steps = (p.hidden_size + kDepth - 1) / kDepth;
  uint8_t* round = stages + kStages * kStageBytes + (4 * group + warp) * kRoundBytes;
  const Epilogue<kSums, kStore, kBias, kMass> epilogue(p, round, warp);
  const auto release = [&](int stage) {
    if (lane < kClusterBlocks) hopper::ArriveAt(&shared->empty[stage], static_cast<uint32_t>(lane));
  };
  // The stages' barriers tell one phase from the next alone: a group that multiplies has the ring to itself. The other may follow once all
  // stages of the tile have arrived.
  if (group == 1) hopper::NamedArrive<2 * kGroupThreads>(kTurnBarrier);
  int number = 0;
  for (int i = blockIdx.x / kClusterBlocks; i < tiles.count();
       i += gridDim.x / kClusterBlocks, ++number) {
    if (number % 2 != group) continue;
    const Tile tile = tiles[i];
    const int pair = p.pairs == nullptr ? tile.pair : p.pairs[tile.pair];
    float low[96];
    float high[96];
    Cursor cursor(int64_t{number} * steps);
    int before = 0;
    hopper::NamedSync<2 * kGroupThreads>(kTurnBarrier + group);
    for (int k = 0; k < steps; ++k, cursor.Next()) {
      hopper::Wait(&shared->full[cursor.stage], cursor.phase);
      const uint8_t* stage = stages + cursor.stage * kStageBytes;
      uint64_t a = hopper::OperandDescriptor(stage);
      uint64_t b = hopper::OperandDescriptor(stage + kHiddenBytes);
      constexpr uint64_t kHalf = (kHiddenBytes / 2) >> 4;
      HoldAccumulators(low);
      HoldAccumulators(high);
      hopper::BeginProducts();
#pragma unroll
      for (int part = 0; part < kDepth / 16; ++part) {
        const int adds = k > 0 || part > 0;
        hopper::Multiply64x192(low, a + 2 * part, b + 2 * part, adds);
        hopper::Multiply64x192(high, a + kHalf + 2 * part, b + 2 * part, adds);
      }
      hopper::CommitProducts();
      if (k > 0) {
        hopper::WaitForProducts<1>();
        release(before);
      }
      before = cursor.stage;
    }
    hopper::NamedArrive<2 * kGroupThreads>(kTurnBarrier + 1 - group);
    hopper::WaitForProducts<0>();
    HoldAccumulators(low);
    HoldAccumulators(high);
    release(before);
    const int row = (pair * kClusterBlocks + static_cast<int>(rank)) * kExpTileRows;
    epilogue.Run(low, row, tile.column);
    epilogue.Run(high, row + 64, tile.column);
  }
}

template <ExpSums kSums, bool kStore, bool kBias, bool kMass>
__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(kThreads, 1)
    ExpProductKernel(const __grid_constant__ ExpProduct p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t dynamic[];
  __shared__ Shared shared;
  uint8_t* stages = dynamic + ((1024 - hopper::SharedAddress(dynamic) % 1024) % 1024);
  const uint32_t rank = hopper::ClusterRank();
  Tiles tiles;
  tiles.pairs = p.pairs == nullptr
                    ? (p.rows + kClusterBlocks * kExpTileRows - 1) / (kClusterBlocks * kExpTileRows)
                    : *p.pair_count;
  tiles.columns = (p.columns + kExpTileColumns - 1) / kExpTileColumns;
  tiles.group = max(1, kGroupBytes / (kClusterBlocks * kExpTileRows * 2 * p.hidden_size));
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      hopper::InitBarrier(&shared.full[i], 1);
      // Each warp of the warpgroup that has multiplied, in each block.
      hopper::InitBarrier(&shared.empty[i], 4 * kClusterBlocks);
    }
    hopper::FenceBarriers();
  }
  hopper::ClusterSync();
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (group == 2) {
    hopper::GiveRegisters<24>();
    if (threadIdx.x % kGroupThreads == 0) CopyTiles(p, tiles, stages, &shared, rank);
  } else {
    hopper::TakeRegisters<240>();
    MultiplyTiles<kSums, kStore, kBias, kMass>(p, tiles, stages, &shared, rank, group);
  }
  // The other block may still write here, or arrive.
  __syncwarp();
  hopper::ClusterSync();
#endif
}

// Which of the kernels.
struct Variant {
  ExpSums sums;
  bool store;
  bool bias;
  bool mass;
};

template <ExpSums kSums, bool kStore, bool kMass, class F>
cudaError_t WithBias(const Variant& variant, F f) {
  return variant.bias ? f(ExpProductKernel<kSums, kStore, true, kMass>)
                      : f(ExpProductKernel<kSums, kStore, false, kMass>);
}
template <ExpSums kSums, class F>
cudaError_t WithSums(const Variant& variant, F f) {
  if (!variant.store) return WithBias<kSums, false, false>(variant, f);
  return variant.mass ? WithBias<kSums, true, true>(variant, f)
                      : WithBias<kSums, true, false>(variant, f);
}
template <class F>
cudaError_t WithKernel(const Variant& variant, F f) {
  switch (variant.sums) {
    case ExpSums::kExp:
      return WithSums<ExpSums::kExp>(variant, f);
    case ExpSums::kEntropy:
      return WithSums<ExpSums::kEntropy>(variant, f);
    case ExpSums::kAll:
      break;
  }
  return WithSums<ExpSums::kAll>(variant, f);
}

}  // namespace

bool HasExpProduct(int major, int minor) { return major == 9 && minor == 0; }

CUresult MakeExpMap(const void* data, int64_t rows, int64_t columns, int64_t stride, int box_rows,
                    CUtensorMap* map) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
      cudaGetLastError();
      function = nullptr;
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  if (encode == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const cuuint64_t extents[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride * 2)};
  const cuuint32_t box[2] = {kDepth, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), extents, strides,
                box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

cudaError_t LaunchExpProduct(const ExpProduct& product, ExpSums sums, cudaStream_t stream) {
  if (product.rows == 0 || product.columns == 0) return cudaSuccess;
  int device = 0;
  int multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const int64_t pairs =
      (product.rows + kClusterBlocks * kExpTileRows - 1) / (kClusterBlocks * kExpTileRows);
  const int64_t columns = (product.columns + kExpTileColumns - 1) / kExpTileColumns;
  const auto clusters = std::min<int64_t>(multiprocessors / kClusterBlocks, pairs * columns);
  const Variant variant = {sums, product.e != nullptr, product.bias != nullptr,
                           product.mass != nullptr};
  return WithKernel(variant, [&](auto* kernel) {
    kernel<<<static_cast<unsigned>(clusters * kClusterBlocks), kThreads, kSharedBytes, stream>>>(
        product);
    return cudaGetLastError();
  });
}

cudaError_t PrepareExpProduct() {
  cudaError_t error = cudaSuccess;
  for (const ExpSums sums : {ExpSums::kExp, ExpSums::kEntropy, ExpSums::kAll}) {
    for (int bits = 0; bits < 8; ++bits) {
      const Variant variant = {sums, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
      const cudaError_t next = WithKernel(variant, [](auto* kernel) {
        return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kSharedBytes);
      });
      if (error == cudaSuccess) error = next;
    }
  }
  return error;
}

}  // namespace lossd
