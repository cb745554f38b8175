// The row pass of a pair of logits, lean. A row belongs to a cluster of up to 16 blocks that takes one row after the other. A block keeps
// its slice of both sides in shared memory, and the sweep that writes the gradient fetches the next row into the places that it has just
// read. A thread reads and overwrites what it fetched itself, so that only the reductions are barriers. The arithmetic of a column is
// objectives/divergence_columns.h. Sums are made in an order that depends on the columns alone: thread, warp, block, cluster.
#ifndef LOSSD_KERNELS_CUDA_PAIR_LEAN_CUH_
#define LOSSD_KERNELS_CUDA_PAIR_LEAN_CUH_

#include <cstdint>

#include "kernels/cuda/pair_kernels.h"
#include "kernels/cuda/pair_lanes.cuh"
#include "kernels/cuda/real.cuh"
#include "kernels/cuda/row_kernel.cuh"
#include "kernels/objectives/divergence_columns.h"

namespace lossd {

inline constexpr int kLeanThreads = 256;
inline constexpr int kLeanWarps = kLeanThreads / 32;
inline constexpr int kLeanBlocks = 16;  // of a cluster, at most

struct LeanShape {
  int cluster = 1;
  int32_t slice = 0;  // columns of a block; a multiple of 64
  int32_t shared_bytes = 0;
};

struct LeanLaunch {
  PairLaunch pair;
  JsdSeries series;
  LeanShape shape;
};

// Columns that are fetched by one copy of 16 bytes.
template <class T>
inline constexpr int kLeanVector = 16 / static_cast<int>(sizeof(T));
// A second pass puts a number in fp32 over the teacher's column: a vector then has so many places of 16 bytes, of which the teacher's
// values take the first.
template <Divergence kKind, class T>
inline constexpr int kTeacherPlaces = kIsCompared<kKind> ? 4 / static_cast<int>(sizeof(T)) : 1;

// What the blocks of a row tell each other. A block writes to the others' `blocks`, so that nothing far is read. Buffers alternate from
// row to row: one that is written again has been read before the barrier of the row between.
struct LeanShared {
  ColumnTotals warps[kLeanWarps];
  ColumnTotals blocks[2][kLeanBlocks];
  float2 compared_warps[kLeanWarps];
  float2 compared_blocks[2][kLeanBlocks];
  PairCoefficients factors[2];
};

// Once for each row, by one thread: apart, so that the loops stay near each other.
__device__ __noinline__ inline PairCoefficients FactorsOf(const DivergenceRows& program, int row) {
  return program.Factors(row);
}
__device__ __noinline__ inline PairCoefficients AnswerOf(const DivergenceRows& program, int row,
                                                         const PairStatistics& stats) {
  return program.Row(row, stats);
}
__device__ __noinline__ inline float TemperatureOf(const DivergenceRows& program, int row) {
  return program.Temperature(row);
}
__device__ __noinline__ inline int TargetOf(const DivergenceRows& program, int row) {
  return static_cast<int>(program.target.Index(row));
}

// T: float or __nv_bfloat16, of both sides.
template <Divergence kKind, class T>
class LeanRows {
 public:
  __device__ LeanRows(const LeanLaunch& launch, const Cluster& cluster, LeanShared* shared,
                      uint4* dynamic)
      : in_(launch.pair),
        series_(launch.series),
        cluster_(cluster),
        shared_(shared),
        places_(launch.shape.slice / kVector),
        first_(cluster.rank() * places_),
        student_(dynamic),
        teacher_(dynamic + places_) {
    const int all = (in_.columns + kVector - 1) / kVector;
    const int written = in_.written / kVector;
    count_ = max(0, min(places_, all - first_));
    written_ = max(0, min(places_, written - first_));
    // The place, if any, that columns end in: its thread alone looks at it.
    const int tail = in_.columns % kVector != 0 ? all - 1 - first_ : -1;
    tail_ = tail >= 0 && tail < places_ && tail % kLeanThreads == static_cast<int>(threadIdx.x)
                ? tail
                : -1;
  }

  // All rows of this cluster.
  __device__ void Run() {
    const int64_t step = gridDim.x / cluster_.size();
    // A block must run before another writes to its shared memory.
    cluster_.Sync();
    int64_t r = blockIdx.x / cluster_.size();
    int row = RowAt(r);
    bool fetched = false;
    for (; r < in_.rows; r += step) {
      const int next = RowAt(r + step);
      if (row < 0) {
        Clear(r);
        fetched = false;
      } else {
        if (!fetched) Fetch(FetcherOf(r, row));
        RunRow(r, row, r + step, next);
        fetched = next >= 0;
      }
      row = next;
    }
  }

 private:
  static constexpr int kVector = kLeanVector<T>;
  static constexpr bool kCompared = kIsCompared<kKind>;
  static constexpr bool kIsF32 = sizeof(T) == 4;

  // Number of the row in the call; -1: none, or one that does not count.
  __device__ int RowAt(int64_t r) const {
    if (r >= in_.rows || in_.record->code != 0) return -1;
    if (in_.index != nullptr) return in_.index[r];
    return in_.counted[r] == 0 ? -1 : static_cast<int>(r);
  }
  __device__ static const uint4* RowOf(const PairValues& side, int64_t r, int64_t row) {
    if (kIsF32 && side.tile != nullptr) {
      return reinterpret_cast<const uint4*>(side.tile + r * side.tile_stride);
    }
    return reinterpret_cast<const uint4*>(static_cast<const T*>(side.values.data) +
                                          row * side.values.lead_strides[0]);
  }

  // The slice's places in global memory.
  struct Fetcher {
    const uint4* student;
    const uint4* teacher;
  };
  // A thread's places are threadIdx.x, threadIdx.x + kLeanThreads, ... of the block's.
  __device__ void FetchPlace(const Fetcher& from, int k) const {
    FetchVector(student_ + k, from.student + k);
    FetchVector(teacher_ + k, from.teacher + k);
  }
  __device__ Fetcher FetcherOf(int64_t r, int row) const {
    return {RowOf(in_.student, r, row) + first_, RowOf(in_.teacher, r, row) + first_};
  }
  __device__ void Fetch(const Fetcher& from) const {
    for (int k = threadIdx.x; k < count_; k += kLeanThreads) FetchPlace(from, k);
  }
  // What lies behind the last column becomes -infinity.
  __device__ void CutTail() const {
    T* student = reinterpret_cast<T*>(student_ + tail_);
    T* teacher = reinterpret_cast<T*>(teacher_ + tail_);
    for (int i = in_.columns % kVector; i < kVector; ++i) {
      student[i] = teacher[i] = static_cast<T>(-INFINITY);
    }
  }
  __device__ void LoadPlace(int k, float (&student)[kVector], float (&teacher)[kVector]) const {
    Widen(student_[k], student);
    Widen(teacher_[k], teacher);
  }

  __device__ void RunRow(int64_t r, int row, int64_t next_r, int next);
  __device__ ColumnTotals AddUp() const;
  __device__ ColumnTotals Reduce(ColumnTotals totals) const;
  __device__ DivergenceValue<float> Compare(const ColumnScales& scales, float y_factor) const;
  __device__ void Slopes(int k, const ColumnScales& scales, const ColumnSlope& slope, float total,
                         float (&g)[kVector]) const;
  template <DzMode kMode>
  __device__ void Store(void* to, int k, const float (&g)[kVector]) const;
  template <DzMode kMode>
  __device__ void WriteGradient(int64_t r, int row, const ColumnScales& scales,
                                const DivergenceValue<float>& value, float coefficient,
                                const Fetcher& next) const;
  __device__ void* Destination(int64_t r, int64_t row) const;
  __device__ void Clear(int64_t r) const;
  __device__ void Finish(int64_t r, int row, const ColumnTotals& totals, bool owns_target,
                         float target, float divergence) const;

  const PairLaunch& in_;
  const JsdSeries& series_;
  const Cluster& cluster_;
  LeanShared* const shared_;
  const int places_;  // of 16 bytes, for each side of the slice
  const int first_;   // the slice's first place, counted in the row
  uint4* const student_;
  uint4* const teacher_;
  int count_;    // places with columns of the divergence
  int written_;  // places of the gradient
  int tail_;
  ColumnFactors factors_;
  int turn_ = 0;
  int leader_ = 0;  // rank of the block that writes the row's outputs
};

template <Divergence kKind, class T>
__device__ ColumnTotals LeanRows<kKind, T>::AddUp() const {
  ColumnTotals totals;
#pragma unroll(kIsF32 ? 2 : 1)
  for (int k = threadIdx.x; k < count_; k += kLeanThreads) {
    float student[kVector];
    float teacher[kVector];
    LoadPlace(k, student, teacher);
    AddColumns<kKind>(factors_, student, teacher, &totals);
  }
  return totals;
}

template <Divergence kKind, class T>
__device__ ColumnTotals LeanRows<kKind, T>::Reduce(ColumnTotals totals) const {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  totals = CombineLanes<kKind, 32>(totals);
  if (lane == 0) shared_->warps[warp] = totals;
  __syncthreads();
  if (warp == 0) {
    totals = CombineLanes<kKind, kLeanWarps>(shared_->warps[lane % kLeanWarps]);
    if (lane < cluster_.size()) {
      *cluster_.Of(&shared_->blocks[turn_][cluster_.rank()], lane) = totals;
    }
  }
  cluster_.Sync();
  const int block = lane % kLeanBlocks;
  return CombineLanes<kKind, kLeanBlocks>(block < cluster_.size() ? shared_->blocks[turn_][block]
                                                                  : ColumnTotals());
}

// The second pass. It leaves y_factor y in the teacher's places, and q in the student's if they are wide enough.
template <Divergence kKind, class T>
__device__ DivergenceValue<float> LeanRows<kKind, T>::Compare(const ColumnScales& scales,
                                                              float y_factor) const {
  const DivergenceKind<float>& kind = in_.program.divergence;
  float2 sums = make_float2(0, 0);
  for (int k = threadIdx.x; k < count_; k += kLeanThreads) {
    float student[kVector];
    float teacher[kVector];
    LoadPlace(k, student, teacher);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const ComparedColumn column =
          CompareColumn<kKind>(factors_, scales, kind.beta, series_, student[i], teacher[i]);
      sums.x += column.value;
      sums.y += column.y;
      student[i] = column.q;
      teacher[i] = y_factor * column.y;
    }
    if (kIsF32) {
      reinterpret_cast<float4*>(student_)[k] =
          make_float4(student[0], student[1], student[2], student[3]);
    }
#pragma unroll
    for (int part = 0; part < kVector / 4; ++part) {
      reinterpret_cast<float4*>(teacher_)[part * places_ + k] = make_float4(
          teacher[4 * part], teacher[4 * part + 1], teacher[4 * part + 2], teacher[4 * part + 3]);
    }
  }
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  sums = AddLanes<32>(sums);
  if (lane == 0) shared_->compared_warps[warp] = sums;
  __syncthreads();
  if (warp == 0) {
    sums = AddLanes<kLeanWarps>(shared_->compared_warps[lane % kLeanWarps]);
    if (lane < cluster_.size()) {
      *cluster_.Of(&shared_->compared_blocks[turn_][cluster_.rank()], lane) = sums;
    }
  }
  cluster_.Sync();
  const int block = lane % kLeanBlocks;
  sums = AddLanes<kLeanBlocks>(block < cluster_.size() ? shared_->compared_blocks[turn_][block]
                                                       : make_float2(0, 0));
  return ValueOfCompared<kKind>(kind, scales, sums.x, sums.y);
}

// dz of a place. `total`: coefficient times the value's total, of a compared kind.
template <Divergence kKind, class T>
__device__ void LeanRows<kKind, T>::Slopes(int k, const ColumnScales& scales,
                                           const ColumnSlope& slope, float total,
                                           float (&g)[kVector]) const {
  float student[kVector];
  if constexpr (kCompared) {
    Widen(student_[k], student);
#pragma unroll
    for (int part = 0; part < kVector / 4; ++part) {
      float y[4];
      Widen(teacher_[part * places_ + k], y);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float q = student[4 * part + i];
        if (!kIsF32) {
          q = FastExp2(fmaf(q, factors_.student, -scales.student_reference)) *
              scales.student_inverse;
        }
        g[4 * part + i] = fmaf(q, -total, y[i]);
      }
    }
  } else {
    float teacher[kVector];
    LoadPlace(k, student, teacher);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      g[i] = SlopeOfColumn<kKind>(factors_, scales, slope, student[i], teacher[i]);
    }
  }
}

template <Divergence kKind, class T>
template <DzMode kMode>
__device__ void LeanRows<kKind, T>::Store(void* to, int k, const float (&g)[kVector]) const {
  if constexpr (!kIsF32) {
    static_cast<uint4*>(to)[k] = make_uint4(TwoBf16(g[0], g[1]), TwoBf16(g[2], g[3]),
                                            TwoBf16(g[4], g[5]), TwoBf16(g[6], g[7]));
  } else if constexpr (kMode == DzMode::kBF16) {
    static_cast<uint2*>(to)[k] = make_uint2(TwoBf16(g[0], g[1]), TwoBf16(g[2], g[3]));
  } else {
    static_cast<float4*>(to)[k] = make_float4(g[0], g[1], g[2], g[3]);
  }
}

// Of the slice's first column; null where no gradient is wanted. dz in 16 bits lies over the first half of its row's logits.
template <Divergence kKind, class T>
__device__ void* LeanRows<kKind, T>::Destination(int64_t r, int64_t row) const {
  const int64_t column = int64_t{first_} * kVector;
  if (in_.grad) return static_cast<T*>(in_.grad.data) + row * in_.grad.lead_strides[0] + column;
  if (in_.dz_mode == DzMode::kNone) return nullptr;
  const int64_t bytes = in_.dz_mode == DzMode::kF32 ? 4 : 2;
  return static_cast<char*>(in_.dz) + (r * in_.dz_stride + column) * bytes;
}

template <Divergence kKind, class T>
template <DzMode kMode>
__device__ void LeanRows<kKind, T>::WriteGradient(int64_t r, int row, const ColumnScales& scales,
                                                  const DivergenceValue<float>& value,
                                                  float coefficient, const Fetcher& next) const {
  void* to = Destination(r, row);
  const float zeros[kVector] = {};
  int k = threadIdx.x;
  if (coefficient != 0) {
    ColumnSlope slope = {};
    if constexpr (!kCompared) {
      slope = SlopeOfTotals<kKind>(in_.program.divergence, value, scales, coefficient);
    }
    const float total = coefficient * value.total;
    const bool fetches = next.student != nullptr;
#pragma unroll(kIsF32 ? 2 : 1)
    for (; k < count_; k += kLeanThreads) {
      float g[kVector];
      Slopes(k, scales, slope, total, g);
      if (fetches) FetchPlace(next, k);
      Store<kMode>(to, k, g);
    }
    if (tail_ >= 0) {
      constexpr int kBytes = kMode == DzMode::kF32 ? 4 : 2;
      for (int i = in_.columns % kVector; i < kVector; ++i) {
        StoreReal(static_cast<char*>(to) + int64_t{tail_} * kVector * kBytes,
                  kMode == DzMode::kF32 ? DType::kF32 : DType::kBF16, i, 0.0f);
      }
    }
  } else if (next.student != nullptr) {
    Fetch(next);
  }
  for (; k < written_; k += kLeanThreads) Store<kMode>(to, k, zeros);
}

// A row of a tile that is none. The caller's tensors have been filled.
template <Divergence kKind, class T>
__device__ void LeanRows<kKind, T>::Clear(int64_t r) const {
  if (in_.index == nullptr) return;
  void* to = Destination(r, 0);
  const float zeros[kVector] = {};
  if (to != nullptr) {
    for (int k = threadIdx.x; k < written_; k += kLeanThreads) {
      if (in_.dz_mode == DzMode::kBF16) {
        Store<DzMode::kBF16>(to, k, zeros);
      } else {
        Store<DzMode::kF32>(to, k, zeros);
      }
    }
  }
  if (in_.live != nullptr && cluster_.rank() == 0 && threadIdx.x == 0) in_.live[r] = 0;
}

// By one thread of the cluster, while the others are ahead.
template <Divergence kKind, class T>
__device__ void LeanRows<kKind, T>::Finish(int64_t r, int row, const ColumnTotals& totals,
                                           bool owns_target, float target, float divergence) const {
  PairStatistics stats;
  stats.divergence = divergence;
  if (in_.program.has_head) {
    RowStatistics& student = stats.student;
    // The reference is as good as the maximum: both are only what sums are relative to.
    student.max = kLn2 * totals.student_reference;
    student.sum_exp = totals.student_sum;
    student.owns_target = owns_target;
    if (student.owns_target) {
      student.target_d = kLn2 * fmaf(target, factors_.student, -totals.student_reference);
    }
    if (!(student.sum_exp > 0)) {
      student.max = student.sum_exp == 0 ? -INFINITY : NAN;
      student.sum_exp = student.sum_exp_d = student.sum_exp_2 = NAN;
      student.sum_d = student.target_d = NAN;
      student.degenerate = true;
    }
    stats.hard_sum_exp = student.sum_exp;
  }
  const PairCoefficients coefficients = AnswerOf(in_.program, row, stats);
  if (in_.live != nullptr) in_.live[r] = coefficients.IsZero() ? 0 : 1;
}

template <Divergence kKind, class T>
__device__ void LeanRows<kKind, T>::RunRow(int64_t r, int row, int64_t next_r, int next) {
  const DivergenceRows& program = in_.program;
  const float inverse_temperature =
      1.0f / (program.temperature_rows ? TemperatureOf(program, row) : program.temperature);
  const float student_slope = in_.student.logit_scale * inverse_temperature;
  factors_.student = student_slope * kLog2E;
  factors_.teacher = in_.teacher.logit_scale * inverse_temperature * kLog2E;
  const bool leader = cluster_.rank() == leader_ && threadIdx.x == 0;
  // What a gradient in place will cover, before the first barrier; while the row is on its way.
  int target_id = -1;
  float target = 0;
  if (leader && program.has_head && program.target) {
    target_id = TargetOf(program, row);
    if (target_id >= 0) {
      target = reinterpret_cast<const float*>(RowOf(in_.student, r, row))[target_id];
    }
  }
  if (threadIdx.x == 0) shared_->factors[turn_] = FactorsOf(program, row);

  WaitForFetches();
  if (tail_ >= 0) CutTail();
  const ColumnTotals totals = Reduce(AddUp());
  ColumnScales scales = ScalesOf(totals);
  // Two divisions for each row: left to itself the compiler divides anew in each column that chooses between them.
  asm volatile("" : "+f"(scales.student_inverse), "+f"(scales.teacher_inverse));
  const PairCoefficients factors = shared_->factors[turn_];
  // A hard term of weight 0 is 0, or makes a NaN of everything if the upstream gradient is infinite.
  float coefficient = factors.hard == 0 ? factors.soft * student_slope : NAN;
  DivergenceValue<float> value;
  if constexpr (kCompared) {
    value = Compare(scales, FactorOfY<kKind>(program.divergence, coefficient));
  } else {
    value = ValueOfTotals<kKind>(program.divergence, totals, scales);
  }
  if (program.IsOutside(value.value)) coefficient = 0;

  const Fetcher next_row = next < 0 ? Fetcher{} : FetcherOf(next_r, next);
  if (in_.grad) {
    WriteGradient<kIsF32 ? DzMode::kF32 : DzMode::kBF16>(r, row, scales, value, coefficient,
                                                         next_row);
  } else if (in_.dz_mode == DzMode::kBF16) {
    WriteGradient<DzMode::kBF16>(r, row, scales, value, coefficient, next_row);
  } else if (kIsF32 && in_.dz_mode == DzMode::kF32) {
    WriteGradient<DzMode::kF32>(r, row, scales, value, coefficient, next_row);
  } else if (next >= 0) {
    Fetch(next_row);
  }
  if (leader) Finish(r, row, totals, target_id >= 0, target, value.value);
  turn_ ^= 1;
  leader_ = leader_ + 1 == cluster_.size() ? 0 : leader_ + 1;
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PAIR_LEAN_CUH_
