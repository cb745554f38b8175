// The row pass. A row belongs to a cluster of up to 8 blocks of 256 threads; each block keeps its slice of the row's fp32 logits in
// shared memory, so that they are read once (4 V bytes) and dz is written once (2 or 4 V bytes). A cluster takes one row after the other
// and fetches the next one into the places that the gradient sweep has just read. Rows that do not fit are read up to three times by one
// block. Sums are made in fp32 in an order that depends on V alone: thread, warp, block, cluster.
#ifndef LOSSD_KERNELS_CUDA_ROW_KERNEL_CUH_
#define LOSSD_KERNELS_CUDA_ROW_KERNEL_CUH_

#include <climits>
#include <cstdint>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/packed.cuh"
#include "kernels/cuda/real.cuh"
#include "kernels/cuda/row_kernels.h"
#include "kernels/cuda/row_values.cuh"
#include "kernels/objectives/exp2.h"

namespace lossd {

inline constexpr int kRowThreads = 256;
inline constexpr int kRowWarps = kRowThreads / 32;
// Vectors of 4 logits that a thread has in flight.
inline constexpr int kRowLoads = 8;
// exp of it is 0, and 0 times it is 0: stands for -infinity where both are multiplied.
inline constexpr float kLowest = -200.0f;

// kEverything: a tile with all options. kLean: a tile in the common case alone, for which IsLean stands, with registers for nothing else.
// kCallers: the caller's logits with all options; slices in shared memory are fp32, too.
enum class RowMode { kEverything, kLean, kCallers };

struct RowLaunch {
  RowPass pass;
  RowShape shape;
  bool all_sums = true;  // false: the program reads max, sum_exp and target_d alone
};

// Sums of some columns, relative to a maximum: a warp's own at first, so that no warp waits for another's, then the block's and the row's.
struct RowSums {
  float max = -INFINITY;
  float sum_exp = 0;
  float sum_exp_d = 0;
  float sum_exp_2 = 0;
  float sum_d = 0;
  float weighted_d = 0;
  float weights = 0;
  int columns = 0;
  int argmax = INT_MAX;  // column; INT_MAX: none

  // What is subtracted from z: without a column above -infinity there is none.
  __device__ float Reference() const { return max == -INFINITY ? 0.0f : max; }

  // The same columns relative to a larger maximum. One of NaN makes NaNs of all sums. Without kAll there is no sum but sum_exp.
  template <bool kAll>
  __device__ void MoveTo(float larger) {
    if (max == larger) return;
    const float shift = Reference() - larger;
    const float factor = expf(shift);
    max = larger;
    if constexpr (!kAll) {
      if (sum_exp != 0) sum_exp = __fmul_rn(factor, sum_exp);
      return;
    }
    argmax = INT_MAX;
    sum_d = __fmaf_rn(static_cast<float>(columns), shift, sum_d);
    weighted_d = __fadd_rn(weighted_d, Times(weights, shift));
    // All columns at -infinity: their factors are 0.
    if (sum_exp == 0) return;
    sum_exp_d = __fmul_rn(factor, __fmaf_rn(shift, sum_exp, sum_exp_d));
    sum_exp_2 = __fmul_rn(__fmul_rn(factor, factor), sum_exp_2);
    sum_exp = __fmul_rn(factor, sum_exp);
  }

  // The order of the additions is written out: no contraction may differ between kernels.
  template <bool kAll>
  __device__ void Add(const RowSums& other) {
    sum_exp = __fadd_rn(sum_exp, other.sum_exp);
    if constexpr (!kAll) return;
    sum_exp_d = __fadd_rn(sum_exp_d, other.sum_exp_d);
    sum_exp_2 = __fadd_rn(sum_exp_2, other.sum_exp_2);
    sum_d = __fadd_rn(sum_d, other.sum_d);
    weighted_d = __fadd_rn(weighted_d, other.weighted_d);
    weights = __fadd_rn(weights, other.weights);
    columns += other.columns;
    argmax = min(argmax, other.argmax);
  }
  // An error of ex2.approx is 2^-22 of its value, one of its argument |d| 2^-24: nothing beside a sum's own rounding.
  template <bool kAll>
  __device__ void AddColumn(float d) {
    const float e = __expf(d);
    sum_exp = __fadd_rn(sum_exp, e);
    if (!kAll) return;
    sum_exp_d = __fmaf_rn(e, fmaxf(d, kLowest), sum_exp_d);
    sum_exp_2 = __fmaf_rn(e, e, sum_exp_2);
    sum_d = __fadd_rn(sum_d, d);
  }
};

// What the leader tells the blocks of its row.
struct RowAnswer {
  RowCoefficients coefficients;
  float max;
  float inverse_sum;
  float log_sum;
  bool degenerate;
};

struct RowShared {
  RowSums warp_sums[kRowWarps];
  // Of this row and of the one before, which the leader may still read.
  RowSums sums[2];
  float target_raw[2];
  RowAnswer answer;
};

// raw logit -> z, and the derivative of z.
struct LogitTransform {
  float scale;
  float cap;
  float inverse_temperature;

  __device__ float operator()(float raw) const {
    return cap > 0 ? Apply<true>(raw) : Apply<false>(raw);
  }
  template <bool kCap>
  __device__ float Apply(float raw) const {
    float s = __fmul_rn(scale, raw);
    if (kCap) s = __fmul_rn(cap, tanhf(__fdiv_rn(s, cap)));
    return __fmul_rn(s, inverse_temperature);
  }
  // 1 - tanh^2 without its cancellation.
  __device__ float Derivative(float raw) const {
    float derivative = scale * inverse_temperature;
    if (cap > 0) {
      const float e = expf(-2 * fabsf(scale * raw / cap));
      derivative *= 4 * e / ((1 + e) * (1 + e));
    }
    return derivative;
  }
};

// A block's part of one row.
template <RowMode kMode>
class RowBlock {
 public:
  __device__ RowBlock(const RowLaunch& launch, float* dynamic, int rank, int64_t r, int64_t row)
      : pass_(launch.pass),
        on_chip_(launch.shape.on_chip),
        buffer_(dynamic),
        source_(launch.pass.logits + r * launch.pass.logits_stride),
        row_(row) {
    const HeadProblem& head = pass_.head;
    if constexpr (kCallers) reader_ = RowReader(head.logits, row);
    const int slice = static_cast<int>(launch.shape.slice);
    const int padded = static_cast<int>(kCallers ? head.vocab : (head.vocab + 63) / 64 * 64);
    begin_ = rank * slice;
    end_ = max(begin_, min(begin_ + slice, static_cast<int>(head.valid_columns)));
    written_end_ = max(begin_, min(begin_ + slice, padded));
    transform_ = {head.logit_scale, head.softcap, 1.0f / head.Temperature(row)};
    target_ = -1;
    if (head.target) {
      const int64_t column = head.target.Index(row) - head.vocab_start;
      if (column >= 0 && column < head.valid_columns) target_ = static_cast<int>(column);
    }
  }

  __device__ bool Owns(int column) const { return column >= begin_ && column < end_; }
  // Whether this thread is the one that reads the column in every sweep.
  __device__ bool IsMine(int column) const {
    return Owns(column) && (column - begin_) / 4 % kRowThreads == static_cast<int>(threadIdx.x);
  }
  __device__ int target() const { return target_; }
  __device__ const LogitTransform& transform() const { return transform_; }

  // Raw logits of four columns, with bias. Columns from end_ on hold anything.
  __device__ float4 LoadVector(int j) const {
    if constexpr (kCallers) return on_chip_ ? reader_.Load<true>(j) : reader_.Load<false>(j);
    float4 v = __ldcs(reinterpret_cast<const float4*>(source_ + j));
    if (HasBias()) AddBias(j, &v);
    return v;
  }
  __device__ float4 Vector(int j) const {
    return OnChip() ? *reinterpret_cast<const float4*>(buffer_ + (j - begin_)) : LoadVector(j);
  }
  __device__ float Raw(int j) const {
    if (OnChip()) return buffer_[j - begin_];
    if constexpr (kCallers) return reader_.Raw(j);
    return source_[j] + (HasBias() ? Bias(j) : 0.0f);
  }

  // Starts to copy the slice of a row to shared memory. A thread copies the vectors that it reads in every later sweep.
  __device__ void Fetch() const {
    if (!OnChip()) return;
    if constexpr (kCallers) {
      LoadSlice();
    } else {
      FetchRow(source_);
    }
  }
  __device__ void FetchRow(const float* row) const {
    for (int j = FirstColumn(); j < end_; j += kStep) FetchVector(buffer_ + (j - begin_), row + j);
  }

  // Waits for Fetch; the thread's maximum of z.
  __device__ float Load(bool want_max) {
    if constexpr (kLean) {
      return LoadFetched(want_max);
    } else {
      return on_chip_ ? LoadFetched(want_max) : want_max ? LoadDirectly() : -INFINITY;
    }
  }

  // The thread's sums relative to the warp's maximum. NaN in sum_exp: the row is degenerate. The variants differ in what they leave out, not in a bit of the rest.
  __device__ RowSums Sum(float max, bool all) const {
    if constexpr (!kLean) {
      if (pass_.column_weight != nullptr) return SumColumns<Slope::kCap, true, true>(max);
      if (transform_.cap > 0) return SumColumns<Slope::kCap, true, false>(max);
      if (all) return SumColumns<Slope::kAny, true, false>(max);
    }
    // Products with 1 are exact: nothing changes where they are left out.
    const bool one = transform_.scale == 1 && transform_.inverse_temperature == 1;
    return one ? SumColumns<Slope::kOne, false, false>(max)
               : SumColumns<Slope::kAny, false, false>(max);
  }

 protected:
  static constexpr bool kLean = kMode == RowMode::kLean;
  static constexpr bool kCallers = kMode == RowMode::kCallers;
  static constexpr int kStep = 4 * kRowThreads;
  // What lies between a raw logit and z: nothing, factors, perhaps a cap.
  enum class Slope { kOne, kAny, kCap };

  __device__ bool OnChip() const { return kLean || on_chip_; }
  __device__ bool HasBias() const { return kMode == RowMode::kEverything && pass_.head.bias; }
  __device__ bool HasCap() const { return !kLean && transform_.cap > 0; }
  __device__ float ToZ(float raw) const {
    return HasCap() ? transform_.template Apply<true>(raw) : transform_.template Apply<false>(raw);
  }

  __device__ int FirstColumn() const { return begin_ + 4 * static_cast<int>(threadIdx.x); }

  // Maxima of raw logits, which keep their order, and of z.
  struct Maxima {
    float raw = -INFINITY;
    float z = -INFINITY;
  };
  __device__ void AddVector(const float4& v, int j, Maxima* maxima) const {
    if (!HasCap() && j + 4 <= end_) {
      // Products with positive numbers keep the order: one transform of the largest is enough.
      maxima->raw = MaxOrNan(maxima->raw, MaxOrNan(MaxOrNan(v.x, v.y), MaxOrNan(v.z, v.w)));
      return;
    }
    const float raw[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (j + i < end_) maxima->z = MaxOrNan(maxima->z, ToZ(raw[i]));
    }
  }
  __device__ float Largest(const Maxima& maxima) const {
    return HasCap() ? maxima.z : MaxOrNan(maxima.z, ToZ(maxima.raw));
  }

  __device__ float LoadFetched(bool want_max) {
    WaitForFetches();
    Maxima maxima;
    if (!want_max && !HasBias()) return -INFINITY;
#pragma unroll 4
    for (int j = FirstColumn(); j < end_; j += kStep) {
      float4* place = reinterpret_cast<float4*>(buffer_ + (j - begin_));
      float4 v = *place;
      if (HasBias()) {
        AddBias(j, &v);
        *place = v;
      }
      if (want_max) AddVector(v, j, &maxima);
    }
    return Largest(maxima);
  }

  __device__ float LoadDirectly() {
    Maxima maxima;
    for (int j0 = FirstColumn(); j0 < end_; j0 += kStep * kRowLoads) {
      float4 v[kRowLoads];
#pragma unroll
      for (int u = 0; u < kRowLoads; ++u) {
        const int j = j0 + u * kStep;
        if (j < end_) v[u] = LoadVector(j);
      }
#pragma unroll
      for (int u = 0; u < kRowLoads; ++u) {
        const int j = j0 + u * kStep;
        if (j < end_) AddVector(v[u], j, &maxima);
      }
    }
    return Largest(maxima);
  }

  // The caller's numbers as fp32.
  __device__ void LoadSlice() const {
    for (int j0 = FirstColumn(); j0 < end_; j0 += kStep * kRowLoads) {
      float4 v[kRowLoads];
#pragma unroll
      for (int u = 0; u < kRowLoads; ++u) {
        const int j = j0 + u * kStep;
        if (j < end_) v[u] = LoadVector(j);
      }
#pragma unroll
      for (int u = 0; u < kRowLoads; ++u) {
        const int j = j0 + u * kStep;
        if (j < end_) *reinterpret_cast<float4*>(buffer_ + (j - begin_)) = v[u];
      }
    }
  }

  template <Slope kSlope>
  __device__ float Transform(float raw) const {
    if (kSlope == Slope::kOne) return raw;
    return kSlope == Slope::kCap ? ToZ(raw) : transform_.template Apply<false>(raw);
  }

  template <Slope kSlope, bool kAll, bool kWeighted>
  __device__ RowSums SumColumns(float warp_max) const {
    RowSums sums;
    sums.max = warp_max;
    const float max = sums.Reference();
#pragma unroll 2
    for (int j = FirstColumn(); j < end_; j += kStep) {
      const float4 v = Vector(j);
      float z[4] = {v.x, v.y, v.z, v.w};
      const int columns = min(4, end_ - j);
      if (kAll) sums.columns += columns;
      bool has_max = false;
      if (columns == 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) z[i] = Transform<kSlope>(z[i]);
#pragma unroll
        for (int i = 0; i < 4; ++i) sums.template AddColumn<kAll>(__fsub_rn(z[i], max));
        has_max = kAll && fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3])) == max;
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i >= columns) continue;
          z[i] = Transform<kSlope>(z[i]);
          sums.template AddColumn<kAll>(__fsub_rn(z[i], max));
          has_max = kAll && (has_max || z[i] == max);
        }
      }
      if (has_max) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i < columns && z[i] == max) sums.argmax = min(sums.argmax, j + i);
        }
      }
      if (kWeighted) {
        const float* weight = pass_.column_weight + pass_.head.vocab_start + j;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i >= columns) continue;
          sums.weighted_d = __fadd_rn(sums.weighted_d, Times(weight[i], __fsub_rn(z[i], max)));
          sums.weights = __fadd_rn(sums.weights, weight[i]);
        }
      }
    }
    return sums;
  }

  __device__ void AddBias(int j, float4* v) const {
    v->x += Bias(j);
    v->y += Bias(j + 1);
    v->z += Bias(j + 2);
    v->w += Bias(j + 3);
  }
  __device__ float Bias(int j) const {
    // The padding behind the last column has no bias.
    if (j >= end_) return 0;
    return LoadReal(pass_.head.bias.data, pass_.head.bias.dtype,
                    j * pass_.head.bias.lead_strides[0]);
  }

  const RowPass& pass_;
  const bool on_chip_;
  float* const buffer_;        // the slice, or raw logits of ids where the slice does not fit
  const float* const source_;  // the row
  const int64_t row_;
  int begin_, end_, written_end_;
  int target_;
  LogitTransform transform_;
  RowReader reader_;  // kCallers
};

// The gradient of one row's columns.
template <RowMode kMode>
class RowGradient : public RowBlock<kMode> {
  using Block = RowBlock<kMode>;
  using Block::begin_;
  using Block::buffer_;
  using Block::end_;
  using Block::kCallers;
  using Block::kLean;
  using Block::pass_;
  using Block::row_;
  using Block::target_;
  using Block::transform_;
  using Block::written_end_;

 public:
  // `next`: logits of the row that this block's sweep fetches as it goes; may be null.
  __device__ RowGradient(const Block& block, const RowAnswer& answer, const float* next)
      : Block(block), answer_(answer), zero_(answer.coefficients.IsZero()), next_(next) {
    const RowCoefficients& k = answer.coefficients;
    plain_ = !zero_ && k.c != 0 && k.u == 0 && k.h == 0 && !this->HasCap();
    slope_ = transform_.scale * transform_.inverse_temperature;
    plain_factor_ = k.c * answer.inverse_sum * slope_;
    plain_slope_ = slope_ * kLog2E;
    plain_offset_ = -answer.max * kLog2E;
  }

  // Everything but the target's and the ids' terms, before the derivative of z.
  template <bool kAccurate>
  __device__ float Base(float raw, int j) const {
    if (zero_) return 0;
    const RowCoefficients& k = answer_.coefficients;
    const float d = this->ToZ(raw) - answer_.max;
    const float p = (kAccurate ? expf(d) : __expf(d)) * answer_.inverse_sum;
    float g = k.c != 0 ? k.c * p : 0.0f;
    if (k.u != 0) {
      g -= pass_.column_weight != nullptr
               ? Times(pass_.column_weight[pass_.head.vocab_start + j], k.u)
               : k.u;
    }
    if (k.h != 0) {
      // fmax drops a NaN, but p has it too.
      g -= k.h * (p * (fmaxf(d, kLowest) - answer_.log_sum + k.entropy));
    }
    return g;
  }
  template <bool kAccurate>
  __device__ float Column(float raw, int j) const {
    if (j >= end_) return 0;
    return Scaled(Base<kAccurate>(raw, j), raw);
  }
  // The whole entry of a column that is the target or an id.
  __device__ float Entry(float raw, int j) const {
    float g = Base<true>(raw, j);
    if (j == target_) g -= answer_.coefficients.a;
    const RowColumns& columns = pass_.columns;
    if (!kLean && columns.d_ids_logprob) {
      const float* d = columns.d_ids_logprob.Row<const float>(row_);
      for (int64_t k = 0; k < columns.ids.width; ++k) {
        if (columns.ids.Index(row_, k) - pass_.head.vocab_start == j) g += d[k];
      }
    }
    return Scaled(g, raw);
  }

  // Writes all columns, then the special ones. All threads of the block must call.
  __device__ float Run(void* dz_row, float scale, float target_raw) {
    if constexpr (kCallers) {
      WriteCallers(dz_row);
      return WriteEntries(dz_row, 1, target_raw);
    } else {
      return RunTile(dz_row, scale, target_raw);
    }
  }

 private:
  __device__ void WriteCallers(void* row) {
    const DType dtype = pass_.grad.dtype;
    const auto store = [&](int j, const float* g) {
      StoreFour(row, dtype, static_cast<int>(pass_.head.vocab), j, g);
    };
    dtype == DType::kF32 ? Sweep<true>(store) : Sweep<false>(store);
  }

  __device__ float RunTile(void* dz_row, float scale, float target_raw) {
    float largest = 0;
    switch (kLean ? DzMode::kBF16 : pass_.dz_mode) {
      case DzMode::kF32:
        Sweep<true>([&](int j, const float* g) {
          *reinterpret_cast<float4*>(static_cast<float*>(dz_row) + j) =
              make_float4(g[0], g[1], g[2], g[3]);
        });
        break;
      case DzMode::kBF16:
        Sweep<false>([&](int j, const float* g) {
          __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(g[0], g[1]),
                                    __floats2bfloat162_rn(g[2], g[3])};
          *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(dz_row) + j) =
              *reinterpret_cast<uint2*>(pair);
        });
        break;
      case DzMode::kF16:
        Sweep<false>([&](int j, const float* g) {
          __half2 pair[2] = {__floats2half2_rn(g[0] * scale, g[1] * scale),
                             __floats2half2_rn(g[2] * scale, g[3] * scale)};
          *reinterpret_cast<uint2*>(static_cast<__half*>(dz_row) + j) =
              *reinterpret_cast<uint2*>(pair);
        });
        break;
      case DzMode::kMeasure:
        Sweep<false>([&](int, const float* g) {
          for (int i = 0; i < 4; ++i) largest = fmaxf(largest, fabsf(g[i]));
        });
        break;
      case DzMode::kNone:
        return 0;
    }
    return fmaxf(largest, WriteEntries(dz_row, scale, target_raw));
  }

  // The target's and the ids'. The largest of them.
  __device__ float WriteEntries(void* dz_row, float scale, float target_raw) {
    float largest = 0;
    __syncthreads();
    const bool has_ids = !kLean && pass_.columns.d_ids_logprob.present;
    if (threadIdx.x == 0 && this->Owns(target_) && (answer_.coefficients.a != 0 || has_ids)) {
      largest = fmaxf(largest, Put(dz_row, scale, target_, target_raw));
    }
    if (!has_ids) return largest;
    const RowsView& ids = pass_.columns.ids;
    for (int k = threadIdx.x; k < ids.width; k += kRowThreads) {
      const int64_t id = ids.Index(row_, k);
      const int64_t column = id - pass_.head.vocab_start;
      if (id < 0 || column < begin_ || column >= end_ || column == target_) continue;
      bool first = true;
      for (int64_t before = 0; before < k; ++before) first = first && ids.Index(row_, before) != id;
      if (!first) continue;
      const int j = static_cast<int>(column);
      largest = fmaxf(largest, Put(dz_row, scale, j, this->OnChip() ? this->Raw(j) : buffer_[k]));
    }
    return largest;
  }

  __device__ float Plain(float raw) const {
    return plain_factor_ * FastExp2(__fmaf_rn(raw, plain_slope_, plain_offset_));
  }
  __device__ float Scaled(float g, float raw) const {
    return g == 0 ? 0.0f : g * transform_.Derivative(raw);
  }

  template <bool kAccurate, class Store>
  __device__ void Sweep(Store store) {
    // The same count for all threads, for the barrier.
    for (int j0 = begin_; j0 < written_end_; j0 += 4 * kRowThreads) {
      const int j = j0 + 4 * threadIdx.x;
      float g[4] = {0, 0, 0, 0};
      if (!kAccurate && plain_ && j < end_) {
        // c p alone, as in cross entropy and policy losses without an entropy term: two operations and an exponential.
        const float4 v = this->Vector(j);
        g[0] = Plain(v.x);
        g[1] = j + 1 < end_ ? Plain(v.y) : 0.0f;
        g[2] = j + 2 < end_ ? Plain(v.z) : 0.0f;
        g[3] = j + 3 < end_ ? Plain(v.w) : 0.0f;
      } else if (!kLean && j < end_) {
        const float4 v = this->Vector(j);
        g[0] = Column<kAccurate>(v.x, j);
        g[1] = Column<kAccurate>(v.y, j + 1);
        g[2] = Column<kAccurate>(v.z, j + 2);
        g[3] = Column<kAccurate>(v.w, j + 3);
      }
      if (next_ != nullptr && j < end_) FetchVector(buffer_ + (j - begin_), next_ + j);
      // In place, dz of these columns falls on logits of earlier columns and of these: all must have been read.
      if (!this->OnChip()) __syncthreads();
      if (j < written_end_) store(j, g);
    }
  }

  __device__ float Put(void* dz_row, float scale, int j, float raw) const {
    const float g = Entry(raw, j);
    if constexpr (kCallers) {
      StoreReal(dz_row, pass_.grad.dtype, j, g);
      return 0;
    }
    if (!kLean && pass_.dz_mode == DzMode::kF32) {
      StoreReal(dz_row, DType::kF32, j, g);
    } else if (kLean || pass_.dz_mode == DzMode::kBF16) {
      StoreReal(dz_row, DType::kBF16, j, g);
    } else if (pass_.dz_mode == DzMode::kF16) {
      StoreReal(dz_row, DType::kF16, j, g * scale);
    }
    return fabsf(g);
  }

  RowAnswer answer_;
  bool zero_;
  bool plain_;
  const float* next_;
  float slope_;
  float plain_factor_;
  float plain_slope_;
  float plain_offset_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_ROW_KERNEL_CUH_
