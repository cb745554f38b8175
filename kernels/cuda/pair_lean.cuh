// The row pass of a pair of logits, lean. A row belongs to a cluster of up to 16 blocks that takes one row after the other. In a block
// most warps have columns: they read them from shared memory into registers in the first sweep and keep them there to the gradient's. One
// warp more is the clerk: as soon as the columns have been read it lets the copy engine fetch the next row into their place, it exchanges
// sums with the other blocks by mailbox, and it writes a row's outputs while the others are at the next row. The arithmetic of a column is
// objectives/divergence_columns.h. Sums are made in an order that depends on the columns alone: thread, warp, block, cluster.
#ifndef LOSSD_KERNELS_CUDA_PAIR_LEAN_CUH_
#define LOSSD_KERNELS_CUDA_PAIR_LEAN_CUH_

#include <cstdint>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/mailbox.cuh"
#include "kernels/cuda/pair_kernels.h"
#include "kernels/cuda/pair_lanes.cuh"
#include "kernels/cuda/real.cuh"
#include "kernels/cuda/row_kernel.cuh"
#include "kernels/objectives/divergence_columns.h"

namespace lossd {

// Warps with columns in a block, of which a multiprocessor holds one.
inline constexpr int kLeanWarps = 16;
inline constexpr int kLeanThreads = 32 * (kLeanWarps + 1);
inline constexpr int kLeanBlocks = 16;  // of a cluster, at most
// A thread takes its columns in groups of 8, and has up to 4 groups of each side in registers. A group of the block is one of each thread.
inline constexpr int kLeanGroup = 8;
inline constexpr int kLeanGroups = 4;
inline constexpr int kLeanGroupOfWarp = 32 * kLeanGroup;

struct LeanShape {
  int cluster = 1;
  int32_t slice = 0;  // columns of a block; a multiple of 64
  int32_t place = 0;  // the same with room for whole groups
  int32_t shared_bytes = 0;
};

struct LeanLaunch {
  PairLaunch pair;
  JsdSeries series;
  LeanShape shape;
};

// Columns that are read at once, 16 bytes.
template <class T>
inline constexpr int kLeanVector = 16 / static_cast<int>(sizeof(T));

// What the clerk tells the other warps: before a row's first sweep, ...
struct LeanTask {
  ColumnFactors factors;
  bool is_row;  // false: there are no more
};
// ... after it, ...
struct LeanAnswer {
  RowScales scales;
};
// ... and before the gradient's.
struct LeanSlope {
  void* to;  // null: no gradient is wanted
  float total;
  float coefficient;
};

struct alignas(16) LeanCompared {
  float value = 0;
  float y = 0;
};
template <int kLanes>
__device__ __forceinline__ LeanCompared AddLanes(LeanCompared sums) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sums.value = __fadd_rn(sums.value, __shfl_xor_sync(~0u, sums.value, offset));
    sums.y = __fadd_rn(sums.y, __shfl_xor_sync(~0u, sums.y, offset));
  }
  return sums;
}

struct LeanShared {
  Mailbox fetched;  // the block's columns of a row
  // From the other blocks. Two take turns: whoever sends to one again has heard from all that have read it.
  Mailbox mailboxes[2];
  ColumnTotals totals[2][kLeanBlocks];
  LeanCompared compared[2][kLeanBlocks];
  ColumnTotals totals_of_warps[kLeanWarps];
  LeanCompared compared_of_warps[kLeanWarps];
  LeanTask tasks[2];  // of this row and the next one, in turns
  LeanAnswer answer;
  LeanSlope slope;
};

// A block's part of the rows. T: float or __nv_bfloat16, of both sides.
template <Divergence kKind, class T>
class LeanBlock {
 public:
  __device__ LeanBlock(const LeanLaunch& launch, const Cluster& cluster, LeanShared* shared,
                       uint4* dynamic)
      : in_(launch.pair),
        series_(launch.series),
        cluster_(cluster),
        shared_(shared),
        first_(cluster.rank() * launch.shape.slice),
        valid_(min(max(in_.columns - first_, 0), launch.shape.slice)),
        written_(min(max(in_.written - first_, 0), launch.shape.slice)),
        student_(dynamic),
        teacher_(dynamic + launch.shape.place / kVector),
        lane_(threadIdx.x % 32) {}

 protected:
  static constexpr int kVector = kLeanVector<T>;
  static constexpr bool kCompared = kIsCompared<kKind>;
  static constexpr bool kIsF32 = sizeof(T) == 4;

  // The clerk waits for the other warps, they do not wait. What they wrote is seen after it, what they read may be overwritten.
  __device__ void ReportToClerk() const {
    asm volatile("bar.arrive 1, %0;" ::"n"(kLeanThreads) : "memory");
  }
  __device__ void WaitForReports() const {
    asm volatile("bar.sync 1, %0;" ::"n"(kLeanThreads) : "memory");
  }
  // 16 bytes of logits' dz, or half as much.
  template <bool kNarrow>
  __device__ static void Store(void* to, int place, const float* g) {
    if constexpr (!kIsF32) {
      static_cast<uint4*>(to)[place] = make_uint4(TwoBf16(g[0], g[1]), TwoBf16(g[2], g[3]),
                                                  TwoBf16(g[4], g[5]), TwoBf16(g[6], g[7]));
    } else if constexpr (kNarrow) {
      static_cast<uint2*>(to)[place] = make_uint2(TwoBf16(g[0], g[1]), TwoBf16(g[2], g[3]));
    } else {
      static_cast<float4*>(to)[place] = make_float4(g[0], g[1], g[2], g[3]);
    }
  }
  __device__ bool IsNarrow() const { return in_.dz_mode == DzMode::kBF16; }
  // By some threads: dz of the block's columns is 0.
  __device__ void StoreZeros(void* to, int thread, int threads) const {
    const float zeros[kVector] = {};
    for (int place = thread; place * kVector < written_; place += threads) {
      IsNarrow() ? Store<true>(to, place, zeros) : Store<false>(to, place, zeros);
    }
  }

  const PairLaunch& in_;
  const JsdSeries& series_;
  const Cluster& cluster_;
  LeanShared* const shared_;
  const int first_;    // column of the row: the block's first one
  const int valid_;    // the block's columns of the divergence
  const int written_;  // of the gradient
  uint4* const student_;
  uint4* const teacher_;
  const int lane_;
};

// A warp with columns.
template <Divergence kKind, class T>
class LeanColumns : private LeanBlock<kKind, T> {
 public:
  using Block = LeanBlock<kKind, T>;
  using Block::Block;

  // All rows of the cluster.
  __device__ void Run() {
    __syncthreads();
    for (uint32_t row = 0; shared_->tasks[row & 1].is_row; ++row) {
      factors_ = shared_->tasks[row & 1].factors;
      shared_->fetched.Wait(row & 1);
      RunRow();
    }
  }

 private:
  using Block::in_, Block::series_, Block::shared_, Block::valid_, Block::written_, Block::student_,
      Block::teacher_, Block::lane_;
  using Block::kVector, Block::kCompared;
  static constexpr int kVectors = kLeanGroup / kVector;  // of a group
  using Columns = float[kLeanGroups][kLeanGroup];

  // The block's column at which the warp's part of a group begins; place and column of a lane's vector.
  __device__ int Begin(int group) const {
    return (group * kLeanWarps + static_cast<int>(threadIdx.x) / 32) * kLeanGroupOfWarp;
  }
  __device__ int PlaceOf(int group, int v) const { return Begin(group) / kVector + v * 32 + lane_; }
  __device__ int ColumnOf(int group, int i) const {
    return PlaceOf(group, i / kVector) * kVector + i % kVector;
  }
  __device__ bool IsWhole(int group) const { return Begin(group) + kLeanGroupOfWarp <= valid_; }

  __device__ void LoadGroup(int group, float* student, float* teacher) const;
  __device__ void SetReferences(bool all, ColumnTotals* totals) const;
  __device__ ColumnTotals AddUp(Columns& student, Columns& teacher) const;
  __device__ LeanCompared Compare(const ColumnScales& scales, Columns& student,
                                  Columns& teacher) const;
  template <bool kNarrow>
  __device__ void WriteGradient(void* to, const ColumnSlope& slope, const Columns& student,
                                const Columns& teacher) const;
  __device__ void RunRow() const;

  ColumnFactors factors_;
};

// What lies behind the last column is -infinity.
template <Divergence kKind, class T>
__device__ void LeanColumns<kKind, T>::LoadGroup(int group, float* student, float* teacher) const {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    Widen<T>(student_[PlaceOf(group, v)], student + v * kVector);
    Widen<T>(teacher_[PlaceOf(group, v)], teacher + v * kVector);
  }
  if (IsWhole(group)) return;
#pragma unroll
  for (int i = 0; i < kLeanGroup; ++i) {
    if (ColumnOf(group, i) >= valid_) student[i] = teacher[i] = -INFINITY;
  }
}

// References of the warp: from its first few columns, or from all.
template <Divergence kKind, class T>
__device__ void LeanColumns<kKind, T>::SetReferences(bool all, ColumnTotals* totals) const {
  float highest_student = -INFINITY;
  float highest_teacher = -INFINITY;
  const auto take = [&](const float* student, const float* teacher, int count) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      highest_student = fmaxf(highest_student, student[i]);
      highest_teacher = fmaxf(highest_teacher, teacher[i]);
    }
  };
  float student[kLeanGroup];
  float teacher[kLeanGroup];
  if (all) {
#pragma unroll 1
    for (int group = 0; Begin(group) < valid_; ++group) {
      LoadGroup(group, student, teacher);
      take(student, teacher, kLeanGroup);
    }
    highest_student = HighestOfLanes<32>(highest_student);
    highest_teacher = HighestOfLanes<32>(highest_teacher);
  } else {
    Widen<T>(student_[Begin(0) / kVector], student);
    Widen<T>(teacher_[Begin(0) / kVector], teacher);
    take(student, teacher, kVector);
  }
  *totals = ColumnTotals();
  totals->student_reference = ReferenceOf(factors_.student, highest_student);
  totals->teacher_reference = ReferenceOf(factors_.teacher, highest_teacher);
}

// The first sweep; the sums of the warp, in every lane.
template <Divergence kKind, class T>
__device__ ColumnTotals LeanColumns<kKind, T>::AddUp(Columns& student, Columns& teacher) const {
  ColumnTotals totals;
  for (bool all = !IsWhole(0);; all = true) {
    SetReferences(all, &totals);
#pragma unroll
    for (int group = 0; group < kLeanGroups; ++group) {
      if (Begin(group) >= valid_) break;
      LoadGroup(group, student[group], teacher[group]);
#pragma unroll
      for (int i = 0; i < kLeanGroup; ++i) {
        AddColumn<kKind>(factors_, &student[group][i], &teacher[group][i], &totals);
      }
    }
    if (all || !__any_sync(~0u, !totals.IsSafe())) break;
  }
  return AddLanes<kKind, 32>(totals);
}

// The second sweep. It leaves q and y.
template <Divergence kKind, class T>
__device__ LeanCompared LeanColumns<kKind, T>::Compare(const ColumnScales& scales, Columns& student,
                                                       Columns& teacher) const {
  const float beta = in_.program.divergence.beta;
  LeanCompared sums;
#pragma unroll
  for (int group = 0; group < kLeanGroups; ++group) {
    if (Begin(group) >= valid_) break;
#pragma unroll
    for (int i = 0; i < kLeanGroup; ++i) {
      const ComparedColumn column =
          CompareColumn<kKind>(scales, beta, series_, student[group][i], teacher[group][i]);
      sums.value += column.value;
      sums.y += column.y;
      student[group][i] = column.q;
      teacher[group][i] = column.y;
    }
  }
  sums = AddLanes<32>(sums);
  const float unit = UnitOfCompared<kKind>(scales);
  return {unit * sums.value, unit * sums.y};
}

template <Divergence kKind, class T>
template <bool kNarrow>
__device__ void LeanColumns<kKind, T>::WriteGradient(void* to, const ColumnSlope& slope,
                                                     const Columns& student,
                                                     const Columns& teacher) const {
#pragma unroll
  for (int group = 0; group < kLeanGroups; ++group) {
    if (Begin(group) >= written_) break;
    float g[kLeanGroup];
#pragma unroll
    for (int i = 0; i < kLeanGroup; ++i) {
      g[i] = SlopeOfColumn<kKind>(slope, student[group][i], teacher[group][i]);
    }
    if (IsWhole(group)) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        Block::template Store<kNarrow>(to, PlaceOf(group, v), g + v * kVector);
      }
      continue;
    }
#pragma unroll
    for (int i = 0; i < kLeanGroup; ++i) {
      if (ColumnOf(group, i) >= valid_) g[i] = 0;
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (ColumnOf(group, v * kVector) >= written_) break;
      Block::template Store<kNarrow>(to, PlaceOf(group, v), g + v * kVector);
    }
  }
}

template <Divergence kKind, class T>
__device__ void LeanColumns<kKind, T>::RunRow() const {
  const int warp = threadIdx.x / 32;
  Columns student, teacher;
  const ColumnTotals totals = AddUp(student, teacher);
  if (lane_ == 0) shared_->totals_of_warps[warp] = totals;
  this->ReportToClerk();
  __syncthreads();
  const ColumnScales scales =
      ScalesFor(shared_->answer.scales, totals.student_reference, totals.teacher_reference);
  if constexpr (kCompared) {
    const LeanCompared sums = Compare(scales, student, teacher);
    if (lane_ == 0) shared_->compared_of_warps[warp] = sums;
    this->ReportToClerk();
    __syncthreads();
  }
  const LeanSlope row = shared_->slope;
  if (row.to == nullptr) return;
  if (row.coefficient == 0) {
    this->StoreZeros(row.to, threadIdx.x, 32 * kLeanWarps);
    return;
  }
  const ColumnSlope slope =
      SlopeOfValue<kKind>(in_.program.divergence, row.total, scales, row.coefficient);
  if (this->IsNarrow()) {
    WriteGradient<true>(row.to, slope, student, teacher);
  } else {
    WriteGradient<false>(row.to, slope, student, teacher);
  }
}

// The warp that serves the others. All its lanes know what it knows.
template <Divergence kKind, class T>
class LeanClerk : private LeanBlock<kKind, T> {
 public:
  using Block = LeanBlock<kKind, T>;
  using Block::Block;

  __device__ void Run();

 private:
  using Block::in_, Block::cluster_, Block::shared_, Block::first_, Block::valid_, Block::lane_;
  using Block::kVector, Block::kCompared, Block::kIsF32;

  // A row that counts.
  struct Row {
    int r = 0;
    int number = -1;  // in the call; -1: none, there are no more
    float student_slope = 0;
    float teacher_slope = 0;
    int target = -1;
    float target_logit = 0;
  };

  // Number of the row in the call; -1: none, or one that does not count.
  __device__ int NumberOf(int r) const {
    if (r >= in_.rows || stopped_) return -1;
    if (in_.index != nullptr) return in_.index[r];
    return in_.counted[r] == 0 ? -1 : r;
  }
  __device__ static const T* LogitsOf(const PairValues& side, const Row& row) {
    if (kIsF32 && side.tile != nullptr) {
      return reinterpret_cast<const T*>(side.tile + int64_t{row.r} * side.tile_stride);
    }
    return static_cast<const T*>(side.values.data) + row.number * side.values.lead_strides[0];
  }
  __device__ bool IsFirstBlock() const { return cluster_.rank() == 0; }

  __device__ Row NextRow();
  __device__ void Clear(int r) const;
  __device__ void Announce(const Row& row, uint32_t turn) const;
  __device__ void Fetch(const Row& row) const;
  __device__ void* Destination(const Row& row) const;
  template <class Sums>
  __device__ Sums Exchange(Sums (&mail)[2][kLeanBlocks], const Sums& mine);
  __device__ ColumnTotals AddBlocks();
  __device__ LeanCompared CompareBlocks();
  __device__ void Finish(const Row& row, const ColumnTotals& totals, float divergence,
                         bool live) const;

  bool stopped_ = false;
  int next_r_ = 0;   // of this cluster: the first row that NextRow has not looked at
  int numbers_ = 0;  // of 32 rows of this cluster, one in each lane
  int known_ = 0;    // how many of those are left
  uint32_t exchanges_ = 0;
};

// The next row that counts. Rows in front of it that do not are done with.
template <Divergence kKind, class T>
__device__ typename LeanClerk<kKind, T>::Row LeanClerk<kKind, T>::NextRow() {
  const int step = static_cast<int>(gridDim.x) / cluster_.size();
  Row row;
  for (; row.number < 0; next_r_ += step) {
    if (next_r_ >= in_.rows) return row;
    if (known_ == 0) {
      numbers_ = NumberOf(next_r_ + lane_ * step);
      known_ = 32;
    }
    row.r = next_r_;
    row.number = __shfl_sync(~0u, numbers_, 32 - known_);
    --known_;
    if (row.number < 0) Clear(row.r);
  }
  const DivergenceRows& program = in_.program;
  const float inverse_temperature = 1.0f / program.Temperature(row.number);
  row.student_slope = in_.student.logit_scale * inverse_temperature;
  row.teacher_slope = in_.teacher.logit_scale * inverse_temperature;
  // Once the row's sums are known, its gradient may cover the logits.
  if (IsFirstBlock() && program.has_head && program.target) {
    row.target = static_cast<int>(program.target.Index(row.number));
    if (row.target >= 0) {
      row.target_logit = static_cast<float>(LogitsOf(in_.student, row)[row.target]);
    }
  }
  return row;
}

// A row of a tile that is none. The caller's tensors have been filled.
template <Divergence kKind, class T>
__device__ void LeanClerk<kKind, T>::Clear(int r) const {
  if (in_.index == nullptr) return;
  Row row;
  row.r = r;
  void* const to = Destination(row);
  if (to != nullptr) this->StoreZeros(to, lane_, 32);
  if (in_.live != nullptr && IsFirstBlock() && lane_ == 0) in_.live[r] = 0;
}

template <Divergence kKind, class T>
__device__ void LeanClerk<kKind, T>::Announce(const Row& row, uint32_t turn) const {
  if (lane_ != 0) return;
  LeanTask& task = shared_->tasks[turn];
  task.is_row = row.number >= 0;
  task.factors.student = row.student_slope * kLog2E;
  task.factors.teacher = row.teacher_slope * kLog2E;
}

template <Divergence kKind, class T>
__device__ void LeanClerk<kKind, T>::Fetch(const Row& row) const {
  if (lane_ != 0 || row.number < 0) return;
  const uint32_t bytes = (valid_ + kVector - 1) / kVector * 16;
  shared_->fetched.Expect(2 * bytes);
  if (bytes == 0) return;
  shared_->fetched.Fetch(this->student_, LogitsOf(in_.student, row) + first_, bytes);
  shared_->fetched.Fetch(this->teacher_, LogitsOf(in_.teacher, row) + first_, bytes);
}

// Of the block's first column; null where no gradient is wanted. dz in 16 bits may lie over the first half of its row's logits.
template <Divergence kKind, class T>
__device__ void* LeanClerk<kKind, T>::Destination(const Row& row) const {
  if (in_.grad) {
    return static_cast<T*>(in_.grad.data) + row.number * in_.grad.lead_strides[0] + first_;
  }
  if (in_.dz_mode == DzMode::kNone) return nullptr;
  const int64_t bytes = in_.dz_mode == DzMode::kF32 ? 4 : 2;
  return static_cast<char*>(in_.dz) + (row.r * in_.dz_stride + first_) * bytes;
}

// What every block of the cluster has sent, one in each lane (and in the lane 16 above).
template <Divergence kKind, class T>
template <class Sums>
__device__ Sums LeanClerk<kKind, T>::Exchange(Sums (&mail)[2][kLeanBlocks], const Sums& mine) {
  const int turn = exchanges_ & 1;
  const uint32_t parity = exchanges_ >> 1 & 1;
  ++exchanges_;
  Mailbox& mailbox = shared_->mailboxes[turn];
  if (lane_ == 0) mailbox.Expect(cluster_.size() * sizeof(Sums));
  if (lane_ < cluster_.size()) mailbox.Send(&mail[turn][cluster_.rank()], mine, lane_);
  mailbox.Wait(parity);
  const int block = lane_ % kLeanBlocks;
  return block < cluster_.size() ? mail[turn][block] : Sums();
}

// From the warps' sums of the first sweep to the row's.
template <Divergence kKind, class T>
__device__ ColumnTotals LeanClerk<kKind, T>::AddBlocks() {
  const ColumnTotals block =
      CombineLanes<kKind, kLeanWarps>(shared_->totals_of_warps[lane_ % kLeanWarps]);
  return CombineLanes<kKind, kLeanBlocks>(Exchange(shared_->totals, block));
}

template <Divergence kKind, class T>
__device__ LeanCompared LeanClerk<kKind, T>::CompareBlocks() {
  const LeanCompared block = AddLanes<kLeanWarps>(shared_->compared_of_warps[lane_ % kLeanWarps]);
  return AddLanes<kLeanBlocks>(Exchange(shared_->compared, block));
}

// The outputs of a row, by its first block.
template <Divergence kKind, class T>
__device__ void LeanClerk<kKind, T>::Finish(const Row& row, const ColumnTotals& totals,
                                            float divergence, bool live) const {
  if (!IsFirstBlock() || lane_ != 0) return;
  PairStatistics stats;
  stats.divergence = divergence;
  if (in_.program.has_head) {
    RowStatistics& student = stats.student;
    // The reference is as good as the maximum: both are only what sums are relative to.
    student.max = kLn2 * totals.student_reference;
    student.sum_exp = totals.student_sum;
    student.owns_target = row.target >= 0;
    student.target_d =
        kLn2 * fmaf(row.target_logit, row.student_slope * kLog2E, -totals.student_reference);
    if (!(student.sum_exp > 0)) {
      student.max = student.sum_exp == 0 ? -INFINITY : NAN;
      student.sum_exp = student.sum_exp_d = student.sum_exp_2 = NAN;
      student.sum_d = student.target_d = NAN;
      student.degenerate = true;
    }
    stats.hard_sum_exp = student.sum_exp;
  }
  in_.program.WriteRow(row.number, stats);
  if (in_.live != nullptr) in_.live[row.r] = live ? 1 : 0;
}

template <Divergence kKind, class T>
__device__ void LeanClerk<kKind, T>::Run() {
  const DivergenceRows& program = in_.program;
  const double inverse_denominator = program.InverseDenominator();
  stopped_ = in_.record->code != 0;
  next_r_ = static_cast<int>(blockIdx.x) / cluster_.size();
  Row row = NextRow();
  Announce(row, 0);
  Fetch(row);
  __syncthreads();
  for (uint32_t turn = 1; row.number >= 0; turn ^= 1) {
    // While the other warps are at this row's first sweep.
    const Row next = NextRow();
    Announce(next, turn);
    const PairCoefficients factors = program.Factors(row.number, inverse_denominator);
    this->WaitForReports();
    Fetch(next);
    const ColumnTotals totals = AddBlocks();
    const RowScales scales = ScalesOf(totals);
    if (lane_ == 0) shared_->answer.scales = scales;
    DivergenceValue<float> value;
    if constexpr (kCompared) {
      __syncthreads();
      this->WaitForReports();
      const LeanCompared compared = CompareBlocks();
      value = ValueOfCompared<kKind>(program.divergence, scales, compared.value, compared.y);
    } else {
      value = ValueOfTotals<kKind>(program.divergence, scales, totals.x, totals.y);
    }
    const bool outside = program.IsOutside(value.value);
    // A hard term of weight 0 is 0, or makes a NaN of everything if the upstream gradient is infinite.
    float coefficient = factors.hard == 0 ? factors.soft * row.student_slope : NAN;
    if (outside) coefficient = 0;
    if (lane_ == 0) shared_->slope = {Destination(row), value.total, coefficient};
    __syncthreads();
    // While they write the gradient.
    const bool live = factors.hard != 0 || (factors.soft != 0 && !outside);
    Finish(row, totals, value.value, live);
    row = next;
  }
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PAIR_LEAN_CUH_
