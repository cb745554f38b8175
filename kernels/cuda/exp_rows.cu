#include <algorithm>
#include <climits>
#include <variant>

#include "kernels/cuda/exp_rows.h"
#include "kernels/cuda/real.cuh"
#include "kernels/objectives/exp2.h"

namespace lossd {
namespace {

constexpr int kThreads = 256;
constexpr int kPairRows = 2 * kExpTileRows;
// What a product over one column of the hidden size loses, relative to its result: random data, H 512 to 8192, H200.
constexpr float kLostPart = 9.3e-10f;
// Parts of a row's tiles that are added up beside each other.
constexpr int kParts = 32;
// Rows of a block of the totals.
constexpr int kTotalRows = 32;
constexpr int kTotalThreads = kTotalRows * kParts;
static_assert(kPairRows % kTotalRows == 0);
// A row whose gradient is the target's entry alone gets so much of the others.
constexpr float kLeastShare = 0x1p-20f;
// A row whose e adds up to less has none that is infinite, in bf16 either.
constexpr float kLargestFinite = 0x1p127f;

__device__ float4 Widen(uint2 v) {
  const float2 low = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&v.x));
  const float2 high = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&v.y));
  return make_float4(low.x, low.y, high.x, high.y);
}
__device__ uint2 Narrow(float4 v) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(v.z, v.w);
  return make_uint2(*reinterpret_cast<const uint32_t*>(&low),
                    *reinterpret_cast<const uint32_t*>(&high));
}

// Column of the row's target among those held here; -1: none.
__device__ int TargetColumn(const HeadProblem& head, int64_t row) {
  if (!head.target) return -1;
  const int64_t column = head.target.Index(row) - head.vocab_start;
  return column >= 0 && column < head.valid_columns ? static_cast<int>(column) : -1;
}

// Raw logit of a column, by a warp.
__device__ float Dot(const ExpRows& in, int64_t r, int column) {
  const uint16_t* x = in.x + r * in.x_stride;
  const auto* w =
      static_cast<const uint16_t*>(in.head.weight.data) + column * in.head.weight.lead_strides[0];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sum = 0;
#pragma unroll 4
  for (int64_t k = 4 * lane; k < in.head.hidden_size; k += 128) {
    const float4 a = Widen(*reinterpret_cast<const uint2*>(x + k));
    const float4 b = Widen(*reinterpret_cast<const uint2*>(w + k));
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
    sum = fmaf(a.z, b.z, sum);
    sum = fmaf(a.w, b.w, sum);
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (in.head.bias)
    sum += LoadReal(in.head.bias.data, in.head.bias.dtype, column * in.head.bias.lead_strides[0]);
  return sum;
}

// A warp for each row.
template <class Program>
__global__ void __launch_bounds__(kThreads)
    ReferencesKernel(const __grid_constant__ ExpRows in, const __grid_constant__ Program program) {
  const int64_t r = blockIdx.x * int64_t{kThreads / 32} + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (r == 0 && lane == 0) *in.pair_count = 0;
  if (r >= in.rows) return;
  if (r % kPairRows == 0 && lane == 0) in.repaired[r / kPairRows] = 0;
  const int64_t row = in.index[r];
  // Of a row that is none: far above whatever its logits are, so that e is 0.
  float slope = 1;
  float reference = 0x1p14f;
  int target = -1;
  float target_z = 0;
  if (row >= 0 && in.record->code == 0 && in.head.valid_columns > 0) {
    slope = in.head.logit_scale / in.head.Temperature(row);
    target = TargetColumn(in.head, row);
    float z = 0;
    if (target >= 0 || !Program::kKnowsStatistics) z = slope * Dot(in, r, max(target, 0));
    if (target >= 0) target_z = z;
    if constexpr (Program::kKnowsStatistics) z = program.KnownStatistics(row).max;
    // A logit of -infinity is no reference.
    reference = isfinite(z) ? z : 0.0f;
  }
  if (lane != 0) return;
  in.slope[r] = slope * kLog2E * (1 + kLostPart * static_cast<float>(in.head.hidden_size));
  in.reference[r] = __fmul_rn(reference, kLog2E);
  in.target[r] = target;
  in.target_z[r] = target_z;
  in.largest[r] = 0;
}

// Sum k of a row over the tiles of a part.
__device__ float PartOf(const ExpRows& in, int k, int64_t r, int part) {
  const float* sums = in.sums + (int64_t{k} * in.tiles) * in.rows + r;
  float sum = 0;
#pragma unroll 8
  for (int tile = part; tile < in.tiles; tile += kParts) sum = __fadd_rn(sum, sums[tile * in.rows]);
  return sum;
}

struct LargestColumn {
  float d = -INFINITY;
  int column = INT_MAX;

  __device__ void Add(float other_d, int other_column) {
    if (other_d > d || (other_d == d && other_column < column)) {
      d = other_d;
      column = other_column;
    }
  }
};
__device__ LargestColumn LargestOf(const ExpRows& in, int64_t r, int part) {
  const float* d = in.sums + (int64_t{kLargestD} * in.tiles) * in.rows + r;
  const float* column = in.sums + (int64_t{kLargestColumn} * in.tiles) * in.rows + r;
  LargestColumn out;
  for (int tile = part; tile < in.tiles; tile += kParts)
    out.Add(d[tile * in.rows], __float_as_int(column[tile * in.rows]));
  return out;
}

// A row with a larger logit than its reference allows. One with an infinite logit has no statistics: nothing helps it.
__device__ void Repair(const ExpRows& in, int64_t r) {
  const float largest = __int_as_float(in.largest[r]);
  if (!(largest > 0 && largest < INFINITY)) return;
  in.reference[r] += largest;
  const int pair = static_cast<int>(r / kPairRows);
  if (atomicExch(in.repaired + pair, 1) == 0) in.pairs[atomicAdd(in.pair_count, 1)] = pair;
}

// A thread has one row and one part of its tiles, then one row and one of its sums.
__global__ void __launch_bounds__(kTotalThreads) TotalsKernel(const __grid_constant__ ExpRows in) {
  constexpr int kMostSums = 4;
  __shared__ float parts[kMostSums][kParts][kTotalRows];
  __shared__ float highest[kParts][kTotalRows];
  __shared__ int columns[kParts][kTotalRows];
  const int lane = static_cast<int>(threadIdx.x) % kTotalRows;
  const int part = static_cast<int>(threadIdx.x) / kTotalRows;
  const int64_t r = blockIdx.x * int64_t{kTotalRows} + lane;
  const bool has_row = r < in.rows;
  const bool has_largest = in.which == ExpSums::kAll;
  const int count = has_largest ? kMostSums : in.which == ExpSums::kEntropy ? 2 : 1;
  if (has_row) {
#pragma unroll
    for (int k = 0; k < kMostSums; ++k) {
      if (k < count) parts[k][part][lane] = PartOf(in, k, r, part);
    }
    if (has_largest) {
      const LargestColumn largest = LargestOf(in, r, part);
      highest[part][lane] = largest.d;
      columns[part][lane] = largest.column;
    }
  }
  __syncthreads();
  if (!has_row) return;
  if (part < count) {
    float sum = 0;
    for (int p = 0; p < kParts; ++p) sum = __fadd_rn(sum, parts[part][p][lane]);
    in.totals[part * in.rows + r] = sum;
    if (part == 0) Repair(in, r);
  } else if (part == kMostSums && has_largest) {
    LargestColumn largest;
    for (int p = 0; p < kParts; ++p) largest.Add(highest[p][lane], columns[p][lane]);
    in.totals[kLargestD * in.rows + r] = largest.d;
    in.totals[kLargestColumn * in.rows + r] = __int_as_float(largest.column);
  }
}

// The totals of a row, by one thread where its tiles were computed anew: in the same order.
__device__ float TotalOf(const ExpRows& in, int k, int64_t r, bool anew) {
  if (!anew) return in.totals[k * in.rows + r];
  float sum = 0;
  for (int part = 0; part < kParts; ++part) sum = __fadd_rn(sum, PartOf(in, k, r, part));
  return sum;
}
__device__ LargestColumn LargestTotal(const ExpRows& in, int64_t r, bool anew) {
  LargestColumn largest;
  if (!anew) {
    largest.Add(in.totals[kLargestD * in.rows + r],
                __float_as_int(in.totals[kLargestColumn * in.rows + r]));
    return largest;
  }
  for (int part = 0; part < kParts; ++part) {
    const LargestColumn of = LargestOf(in, r, part);
    largest.Add(of.d, of.column);
  }
  return largest;
}

// In units of log 2. Exactly 0 where the reference is the target's logit: the same product, not contracted.
__device__ float ExactTargetD(const ExpRows& in, int64_t r) {
  return __fsub_rn(__fmul_rn(in.target_z[r], kLog2E), in.reference[r]);
}

__device__ RowStatistics StatisticsOf(const ExpRows& in, int64_t r, bool owns_target) {
  const bool anew = in.repaired[r / kPairRows] != 0;
  RowStatistics stats;
  stats.max = in.reference[r] * kLn2;
  stats.owns_target = owns_target;
  // The target's logit as the product has it gives way to the exact one.
  float d = 0, old_d = 0, e = 0, old_e = 0;
  if (owns_target) {
    d = ExactTargetD(in, r);
    old_d = in.target_d[r];
    e = exp2f(d);
    old_e = exp2f(old_d);
    stats.target_d = kLn2 * d;
  }
  stats.sum_exp = TotalOf(in, kSumExp, r, anew) - old_e + e;
  if (in.which != ExpSums::kExp) {
    const float sum = TotalOf(in, kSumExpD, r, anew);
    stats.sum_exp_d = kLn2 * (e > 0 && old_e > 0 ? sum - old_e * old_d + e * d : sum);
  }
  if (in.which == ExpSums::kAll) {
    stats.sum_exp_2 = TotalOf(in, kSumExp2, r, anew) - old_e * old_e + e * e;
    const float sum = TotalOf(in, kSumD, r, anew);
    stats.sum_d = kLn2 * (isfinite(d) ? sum - old_d + d : sum);
    const LargestColumn largest = LargestTotal(in, r, anew);
    stats.largest_d = kLn2 * largest.d;
    if (largest.column != INT_MAX)
      stats.argmax = static_cast<int>(in.head.vocab_start) + largest.column;
  }
  // A NaN or +infinity logit, or none above -infinity.
  if (!(stats.sum_exp > 0 && stats.sum_exp < INFINITY)) {
    stats.max = stats.sum_exp == 0 ? -INFINITY : NAN;
    stats.sum_exp = stats.sum_exp_d = stats.sum_exp_2 = NAN;
    stats.sum_d = stats.target_d = stats.largest_d = NAN;
    stats.argmax = -1;
    stats.degenerate = true;
  }
  return stats;
}

// The row's factor, and the target's entry of e.
__device__ float Factor(const ExpRows& in, int64_t r, int target, const RowCoefficients& k,
                        float sum_exp, float slope) {
  float c = k.c;
  if (target < 0) return c / sum_exp * slope;
  if (fabsf(c) < kLeastShare * fabsf(k.a)) c = copysignf(kLeastShare * k.a, c == 0 ? k.a : c);
  const float entry = exp2f(ExactTargetD(in, r)) - (k.a == 0 ? 0.0f : k.a * sum_exp / c);
  const __nv_bfloat16 stored = __float2bfloat16_rn(entry);
  const float rounded = __bfloat162float(stored);
  in.entry[r] = __bfloat16_as_ushort(stored);
  // The rounding of the largest entry goes into the factor; where it is not the largest, all is well without.
  return c / sum_exp * slope * (k.a == 0 || rounded == 0 ? 1.0f : entry / rounded);
}

// A thread for each row: few in a block, so that every multiprocessor has some.
constexpr int kAnswerRows = 32;

template <class Program>
__global__ void __launch_bounds__(kAnswerRows)
    AnswersKernel(const __grid_constant__ ExpRows in, const __grid_constant__ Program program) {
  const int64_t r = blockIdx.x * int64_t{kAnswerRows} + threadIdx.x;
  if (r >= in.rows) return;
  const int64_t row = in.index[r];
  float factor = 0;
  if (row >= 0 && in.record->code == 0) {
    const int target = in.target[r];
    RowStatistics stats;
    if constexpr (Program::kKnowsStatistics) {
      stats = program.KnownStatistics(row);
    } else {
      stats = StatisticsOf(in, r, target >= 0);
    }
    const RowCoefficients k = program.Row(row, stats);
    if (in.stored != nullptr) in.stored[row] = {k, stats.max, stats.sum_exp};
    if (in.factor != nullptr && !k.IsZero()) {
      factor =
          Factor(in, r, target, k, stats.sum_exp, in.head.logit_scale / in.head.Temperature(row));
    }
  }
  if (in.factor == nullptr) return;
  const float sum = TotalOf(in, kSumExp, r, in.repaired[r / kPairRows] != 0);
  in.factor[r] = factor;
  if (in.total != nullptr) in.total[r] = sum;
  // 0 times what is not finite is not 0.
  in.broken[r] = factor == 0 && !(sum < kLargestFinite) ? 1 : 0;
}

// A thread for each row; then the rows to clear by the whole block.
constexpr int kEntryRows = 128;

__global__ void __launch_bounds__(kEntryRows)
    EntriesKernel(const __grid_constant__ ExpRows in, int begin, int columns) {
  __shared__ uint8_t clear[kEntryRows];
  const int64_t first = blockIdx.x * int64_t{kEntryRows};
  const int64_t r = first + threadIdx.x;
  bool clears = false;
  if (r < in.rows) {
    const int j = in.target[r] - begin;
    if (in.factor[r] != 0 && in.target[r] >= 0 && j >= 0 && j < columns) {
      in.e[r * in.e_stride + j] = in.entry[r];
    }
    clears = in.broken[r] != 0;
  }
  clear[threadIdx.x] = clears ? 1 : 0;
  if (!__syncthreads_or(clears)) return;
  for (int i = 0; i < kEntryRows; ++i) {
    if (clear[i] == 0) continue;
    uint4* e = reinterpret_cast<uint4*>(in.e + (first + i) * in.e_stride);
    for (int64_t j = threadIdx.x; j < in.e_stride / 8; j += kEntryRows)
      e[j] = make_uint4(0, 0, 0, 0);
  }
}

// One block: first the rows with a factor, then the others, both in their order.
constexpr int kOrderThreads = 1024;

__global__ void __launch_bounds__(kOrderThreads)
    OrderRowsKernel(const float* factor, int rows, int32_t* order, int32_t* count) {
  __shared__ int sums[kOrderThreads / 32];
  __shared__ int total;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  // Adds up `value` over the threads before this one; the total of all comes back in *all.
  const auto before = [&](bool value, int* all) {
    const unsigned set = __ballot_sync(~0u, value);
    if (lane == 0) sums[warp] = __popc(set);
    __syncthreads();
    if (warp == 0) {
      int sum = sums[lane];
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
      }
      sums[lane] = sum;
      if (lane == 31) total = sum;
    }
    __syncthreads();
    const int result = (warp == 0 ? 0 : sums[warp - 1]) + __popc(set & ((1u << lane) - 1));
    *all = total;
    __syncthreads();
    return result;
  };
  int place = 0;
  for (const bool live : {true, false}) {
    for (int begin = 0; begin < rows; begin += kOrderThreads) {
      const int r = begin + static_cast<int>(threadIdx.x);
      const bool is_one = r < rows && (factor[r] != 0) == live;
      int all = 0;
      const int at = place + before(is_one, &all);
      if (is_one) order[at] = r;
      place += all;
    }
    if (live && threadIdx.x == 0) *count = place;
  }
}

// A thread has 8 columns and takes the rows in turn, several at a time: what it writes has been read, since order[k] >= k.
constexpr int kMoveThreads = 64;
constexpr int kMoveRows = 16;

__global__ void __launch_bounds__(kMoveThreads)
    MoveRowsKernel(uint16_t* e, int64_t stride, const int32_t* order, int count, int padded) {
  const int64_t j = 8 * (blockIdx.x * int64_t{kMoveThreads} + threadIdx.x);
  if (j >= stride) return;
  uint16_t* column = e + j;
  for (int begin = 0; begin < padded; begin += kMoveRows) {
    uint4 v[kMoveRows];
#pragma unroll
    for (int i = 0; i < kMoveRows; ++i) {
      v[i] = make_uint4(0, 0, 0, 0);
      if (begin + i < count) {
        v[i] = __ldcs(reinterpret_cast<const uint4*>(column + __ldg(order + begin + i) * stride));
      }
    }
#pragma unroll
    for (int i = 0; i < kMoveRows; ++i) {
      if (begin + i < padded) *reinterpret_cast<uint4*>(column + (begin + i) * stride) = v[i];
    }
  }
}

// 4 numbers a thread; a block for each row.
__global__ void __launch_bounds__(kThreads)
    ScaleRowsKernel(uint16_t* to, int64_t to_stride, const uint16_t* x, int64_t x_stride,
                    int64_t width, const float* factor, const int32_t* order) {
  const int64_t i = blockIdx.x;
  const int64_t r = order == nullptr ? i : order[i];
  const float f = factor[r];
  for (int64_t k = 4 * threadIdx.x; k < width; k += 4 * kThreads) {
    float4 v = make_float4(0, 0, 0, 0);
    if (f != 0) {
      v = Widen(*reinterpret_cast<const uint2*>(x + r * x_stride + k));
      v = make_float4(v.x * f, v.y * f, v.z * f, v.w * f);
    }
    *reinterpret_cast<uint2*>(to + i * to_stride + k) = Narrow(v);
  }
}

__global__ void __launch_bounds__(kThreads)
    ScatterScaledKernel(const __grid_constant__ RowsView to, const float* from, int64_t from_stride,
                        int64_t begin, int64_t width, const int32_t* index, const float* factor,
                        const int32_t* order, const ResultRecord* record) {
  const int64_t i = begin + blockIdx.x;
  const int64_t r = order == nullptr ? i : order[i];
  const int64_t row = index[r];
  if (row < 0 || record->code != 0) return;
  const float f = factor[r];
  char* out = static_cast<char*>(to.data) + to.Offset(row) * static_cast<int64_t>(SizeOf(to.dtype));
  const float* in = from + blockIdx.x * from_stride;
  if (to.dtype == DType::kBF16 && reinterpret_cast<uintptr_t>(out) % 8 == 0 && width % 4 == 0) {
    for (int64_t k = 4 * threadIdx.x; k < width; k += 4 * kThreads) {
      float4 v = make_float4(0, 0, 0, 0);
      if (f != 0) {
        v = *reinterpret_cast<const float4*>(in + k);
        v = make_float4(v.x * f, v.y * f, v.z * f, v.w * f);
      }
      *reinterpret_cast<uint2*>(out + 2 * k) = Narrow(v);
    }
    return;
  }
  for (int64_t k = threadIdx.x; k < width; k += kThreads)
    StoreReal(out, to.dtype, k, f != 0 ? f * in[k] : 0.0f);
}

__global__ void __launch_bounds__(kThreads)
    BiasKernel(const __grid_constant__ RowsView bias, int64_t columns, int64_t padded, float* to) {
  const int64_t j = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (j < padded)
    to[j] = j < columns ? LoadReal(bias.data, bias.dtype, j * bias.lead_strides[0]) : 0.0f;
}

unsigned Blocks(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

template <class Program>
cudaError_t Load() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, ReferencesKernel<Program>);
  return error == cudaSuccess ? cudaFuncGetAttributes(&attributes, AnswersKernel<Program>) : error;
}
template <class... Programs>
cudaError_t LoadAll(std::variant<Programs...>*) {
  cudaError_t error = cudaSuccess;
  ((error = error == cudaSuccess ? Load<Programs>() : error), ...);
  return error;
}

}  // namespace

cudaError_t LaunchExpReferences(const ExpRows& rows, const RowProgram& program,
                                cudaStream_t stream) {
  if (rows.rows == 0) return cudaSuccess;
  return std::visit(
      [&](const auto& of) {
        ReferencesKernel<<<Blocks(rows.rows, kThreads / 32), kThreads, 0, stream>>>(rows, of);
        return cudaGetLastError();
      },
      program);
}

cudaError_t LaunchExpTotals(const ExpRows& rows, cudaStream_t stream) {
  if (rows.rows == 0) return cudaSuccess;
  TotalsKernel<<<Blocks(rows.rows, kTotalRows), kTotalThreads, 0, stream>>>(rows);
  return cudaGetLastError();
}

cudaError_t LaunchExpAnswers(const ExpRows& rows, const RowProgram& program, cudaStream_t stream) {
  if (rows.rows == 0) return cudaSuccess;
  return std::visit(
      [&](const auto& of) {
        AnswersKernel<<<Blocks(rows.rows, kAnswerRows), kAnswerRows, 0, stream>>>(rows, of);
        return cudaGetLastError();
      },
      program);
}

cudaError_t LaunchExpEntries(const ExpRows& rows, int64_t begin, int64_t columns,
                             cudaStream_t stream) {
  if (rows.rows == 0) return cudaSuccess;
  EntriesKernel<<<Blocks(rows.rows, kEntryRows), kEntryRows, 0, stream>>>(
      rows, static_cast<int>(begin), static_cast<int>(columns));
  return cudaGetLastError();
}

cudaError_t LaunchOrderRows(const ExpRows& rows, int32_t* order, int32_t* count,
                            cudaStream_t stream) {
  OrderRowsKernel<<<1, kOrderThreads, 0, stream>>>(rows.factor, static_cast<int>(rows.rows), order,
                                                   count);
  return cudaGetLastError();
}

cudaError_t LaunchMoveRows(const ExpRows& rows, const int32_t* order, int64_t count, int64_t padded,
                           cudaStream_t stream) {
  if (padded == 0) return cudaSuccess;
  MoveRowsKernel<<<Blocks(rows.e_stride / 8, kMoveThreads), kMoveThreads, 0, stream>>>(
      rows.e, rows.e_stride, order, static_cast<int>(count), static_cast<int>(padded));
  return cudaGetLastError();
}

cudaError_t LaunchScaleRows(uint16_t* to, int64_t to_stride, const uint16_t* x, int64_t x_stride,
                            int64_t rows, int64_t width, const float* factor, const int32_t* order,
                            cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  ScaleRowsKernel<<<Blocks(rows, 1), kThreads, 0, stream>>>(to, to_stride, x, x_stride, width,
                                                            factor, order);
  return cudaGetLastError();
}

cudaError_t LaunchScatterScaledRows(const RowsView& to, const float* from, int64_t from_stride,
                                    int64_t begin, int64_t rows, const int32_t* index,
                                    const float* factor, const int32_t* order,
                                    const ResultRecord* record, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  ScatterScaledKernel<<<Blocks(rows, 1), kThreads, 0, stream>>>(
      to, from, from_stride, begin, to.width, index, factor, order, record);
  return cudaGetLastError();
}

cudaError_t LaunchExpBias(const RowsView& bias, int64_t columns, int64_t padded, float* to,
                          cudaStream_t stream) {
  if (padded == 0) return cudaSuccess;
  BiasKernel<<<Blocks(padded, kThreads), kThreads, 0, stream>>>(bias, columns, padded, to);
  return cudaGetLastError();
}

cudaError_t PrepareExpRows() {
  cudaFuncAttributes attributes;
  cudaError_t error = LoadAll(static_cast<RowProgram*>(nullptr));
  for (const void* kernel :
       {reinterpret_cast<const void*>(TotalsKernel), reinterpret_cast<const void*>(EntriesKernel),
        reinterpret_cast<const void*>(OrderRowsKernel),
        reinterpret_cast<const void*>(MoveRowsKernel),
        reinterpret_cast<const void*>(ScaleRowsKernel),
        reinterpret_cast<const void*>(ScatterScaledKernel),
        reinterpret_cast<const void*>(BiasKernel)}) {
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  }
  return error;
}

}  // namespace lossd
