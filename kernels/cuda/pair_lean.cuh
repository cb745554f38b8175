// The row pass of a pair of logits, lean. A row belongs to a cluster of up to 16 blocks that takes one row after the other. In a block
// most warps have columns: they read them from shared memory into registers in the first sweep and keep them there to the gradient's. One
// warp more is the clerk: as soon as the columns have been read it lets the copy engine fetch the next row into their place, it exchanges
// sums with the other blocks by mailbox, and it writes a row's outputs while the others are at the next row. Two blocks share a
// multiprocessor, so that one computes while the other waits. The arithmetic of a column is objectives/divergence_columns.h. Sums are made
// in an order that depends on the columns alone: thread, warp, block, cluster.
#ifndef LOSSD_KERNELS_CUDA_PAIR_LEAN_CUH_
#define LOSSD_KERNELS_CUDA_PAIR_LEAN_CUH_

#include <cstdint>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/pair_lanes.cuh"
#include "kernels/cuda/pair_lean_shared.cuh"
#include "kernels/cuda/real.cuh"
#include "kernels/cuda/row_kernel.cuh"
#include "kernels/objectives/divergence_columns.h"

namespace lossd {

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
        warps_(launch.shape.warps),
        first_(cluster.rank() * launch.shape.slice),
        valid_(min(max(in_.columns - first_, 0), launch.shape.slice)),
        written_(min(max(in_.written - first_, 0), launch.shape.slice)),
        range_(launch.shape.range),
        student_(dynamic),
        teacher_(dynamic + warps_ * range_ / kVector),
        lane_(threadIdx.x % 32) {}

 protected:
  static constexpr int kVector = kLeanVector<T>;
  static constexpr bool kCompared = kIsCompared<kKind>;
  static constexpr bool kIsF32 = sizeof(T) == 4;

  // The clerk waits for the other warps, they do not wait. What they wrote is seen after it, what they read may be overwritten.
  __device__ void ReportToClerk() const {
    asm volatile("bar.arrive 1, %0;" ::"r"(32 * (warps_ + 1)) : "memory");
  }
  __device__ void WaitForReports() const {
    asm volatile("bar.sync 1, %0;" ::"r"(32 * (warps_ + 1)) : "memory");
  }
  // 16 bytes' worth of columns.
  template <bool kNarrow>
  __device__ static void Store(void* to, int place, const float* g) {
    __builtin_assume(__isGlobal(to));
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
  const int warps_;
  const int first_;    // column of the row: the block's first one
  const int valid_;    // the block's columns of the divergence
  const int written_;  // of the gradient
  const int range_;    // columns of a warp
  uint4* const student_;
  uint4* const teacher_;
  const int lane_;
};

// A warp with columns. Columns are counted in the warp's range.
template <Divergence kKind, class T>
class LeanColumns : private LeanBlock<kKind, T> {
 public:
  using Block = LeanBlock<kKind, T>;
  __device__ LeanColumns(const LeanLaunch& launch, const Cluster& cluster, LeanShared* shared,
                         uint4* dynamic)
      : Block(launch, cluster, shared, dynamic),
        warp_(threadIdx.x / 32),
        begin_(warp_ * this->range_),
        valid_(min(Block::valid_ - begin_, this->range_)),
        written_(min(Block::written_ - begin_, this->range_)),
        student_(Block::student_ + begin_ / kVector + lane_),
        teacher_(Block::teacher_ + begin_ / kVector + lane_) {}

  // All rows of the cluster.
  __device__ void Run() {
    __syncthreads();
    for (uint32_t row = 0; shared_->tasks[row & 1].is_row; ++row) {
      shared_->fetched.Wait(row & 1);
      RunRow(shared_->tasks[row & 1]);
    }
  }

 private:
  using Block::in_, Block::series_, Block::shared_, Block::lane_;
  using Block::kVector, Block::kCompared;
  static constexpr int kVectors = kLeanGroup / kVector;  // of a group
  using Columns = float[kLeanGroups][kLeanGroup];

  // Place of a vector, counted from the lane's first one; column i of a lane's group.
  __device__ static int PlaceOf(int group, int v) { return (group * kVectors + v) * 32; }
  __device__ int ColumnOf(int group, int i) const {
    return (PlaceOf(group, i / kVector) + lane_) * kVector + i % kVector;
  }
  __device__ bool IsWhole(int group) const { return (group + 1) * kLeanGroupOfWarp <= valid_; }

  __device__ void LoadGroup(int group, float* student, float* teacher) const;
  __device__ void SetReferences(const ColumnFactors& factors, ColumnTotals* totals) const;
  __device__ ColumnTotals AddUp(const LeanTask& task, Columns& student, Columns& teacher) const;
  __device__ LeanCompared Compare(const ColumnScales& scales, Columns& student,
                                  Columns& teacher) const;
  template <bool kNarrow>
  __device__ void WriteGradient(void* to, const ColumnSlope& slope, const Columns& student,
                                const Columns& teacher) const;
  __device__ void RunRow(const LeanTask& task) const;

  const int warp_;
  const int begin_;             // column of the block: the warp's first one
  const int valid_;             // the warp's columns of the divergence; may be negative
  const int written_;           // of the gradient
  const uint4* const student_;  // the lane's first vector
  const uint4* const teacher_;
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

// References from all columns of the warp.
template <Divergence kKind, class T>
__device__ void LeanColumns<kKind, T>::SetReferences(const ColumnFactors& factors,
                                                     ColumnTotals* totals) const {
  float highest_student = -INFINITY;
  float highest_teacher = -INFINITY;
#pragma unroll 1
  for (int group = 0; group * kLeanGroupOfWarp < valid_; ++group) {
    float student[kLeanGroup];
    float teacher[kLeanGroup];
    LoadGroup(group, student, teacher);
#pragma unroll
    for (int i = 0; i < kLeanGroup; ++i) {
      highest_student = fmaxf(highest_student, student[i]);
      highest_teacher = fmaxf(highest_teacher, teacher[i]);
    }
  }
  *totals = ColumnTotals();
  totals->student_reference = ReferenceOf(factors.student, HighestOfLanes<32>(highest_student));
  totals->teacher_reference = ReferenceOf(factors.teacher, HighestOfLanes<32>(highest_teacher));
}

// The first sweep; the sums of the warp, in every lane.
template <Divergence kKind, class T>
__device__ ColumnTotals LeanColumns<kKind, T>::AddUp(const LeanTask& task, Columns& student,
                                                     Columns& teacher) const {
  const ColumnFactors factors = task.factors;
  ColumnTotals totals;
  totals.student_reference = task.student_reference;
  totals.teacher_reference = task.teacher_reference;
  for (bool again = false;; again = true) {
    if (again) SetReferences(factors, &totals);
#pragma unroll
    for (int group = 0; group < kLeanGroups; ++group) {
      if (group * kLeanGroupOfWarp >= valid_) break;
      LoadGroup(group, student[group], teacher[group]);
#pragma unroll
      for (int i = 0; i < kLeanGroup; ++i) {
        AddColumn<kKind>(factors, &student[group][i], &teacher[group][i], &totals);
      }
    }
    if (again || !__any_sync(~0u, !totals.IsSafe())) break;
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
    if (group * kLeanGroupOfWarp >= valid_) break;
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

// `to`: of the lane's first vector.
template <Divergence kKind, class T>
template <bool kNarrow>
__device__ void LeanColumns<kKind, T>::WriteGradient(void* to, const ColumnSlope& slope,
                                                     const Columns& student,
                                                     const Columns& teacher) const {
#pragma unroll
  for (int group = 0; group < kLeanGroups; ++group) {
    if (group * kLeanGroupOfWarp >= written_) break;
    float g[kLeanGroup];
#pragma unroll
    for (int i = 0; i < kLeanGroup; ++i) {
      g[i] = SlopeOfColumn<kKind>(slope, student[group][i], teacher[group][i]);
    }
    const bool whole = IsWhole(group);
    if (!whole) {
#pragma unroll
      for (int i = 0; i < kLeanGroup; ++i) {
        if (ColumnOf(group, i) >= valid_) g[i] = 0;
      }
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (whole || ColumnOf(group, v * kVector) < written_) {
        Block::template Store<kNarrow>(to, PlaceOf(group, v), g + v * kVector);
      }
    }
  }
}

template <Divergence kKind, class T>
__device__ void LeanColumns<kKind, T>::RunRow(const LeanTask& task) const {
  Columns student, teacher;
  const ColumnTotals totals = AddUp(task, student, teacher);
  if (lane_ == 0) shared_->totals_of_warps[warp_] = totals;
  this->ReportToClerk();
  __syncthreads();
  const ColumnScales scales =
      ScalesFor(shared_->answer.scales, totals.student_reference, totals.teacher_reference);
  if constexpr (kCompared) {
    const LeanCompared sums = Compare(scales, student, teacher);
    if (lane_ == 0) shared_->compared_of_warps[warp_] = sums;
    this->ReportToClerk();
    __syncthreads();
  }
  const LeanSlope row = shared_->slope;
  if (row.to == nullptr) return;
  if (row.coefficient == 0) {
    this->StoreZeros(row.to, threadIdx.x, blockDim.x - 32);
    return;
  }
  const ColumnSlope slope =
      SlopeOfValue<kKind>(in_.program.divergence, row.total, scales, row.coefficient);
  const int64_t place = begin_ / kVector + lane_;
  if (this->IsNarrow()) {
    WriteGradient<true>(static_cast<char*>(row.to) + place * (16 * 2 / sizeof(T)), slope, student,
                        teacher);
  } else {
    WriteGradient<false>(static_cast<char*>(row.to) + place * 16, slope, student, teacher);
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
  using Block::in_, Block::cluster_, Block::shared_, Block::warps_, Block::first_, Block::valid_,
      Block::lane_;
  using Block::kVector, Block::kCompared, Block::kIsF32;

  // A row that counts.
  struct Row {
    int r = 0;
    int number = -1;  // in the call; -1: none, there are no more
    float student_slope = 0;
    float teacher_slope = 0;
    // Logits of some columns, one in each lane.
    float student_sample = 0;
    float teacher_sample = 0;
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
  __device__ LeanTask Announce(const Row& row, uint32_t turn) const;
  __device__ void Fetch(const Row& row) const;
  __device__ void* Destination(const Row& row) const;
  template <class Sums>
  __device__ void Send(Sums (&mail)[2][kLeanBlocks], const Sums& mine);
  template <class Sums>
  __device__ Sums Receive(Sums (&mail)[2][kLeanBlocks], const Sums& none);
  template <int kLanes>
  __device__ static ColumnTotals Combine(const LeanTask& task, const ColumnTotals& totals);
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
  const T* const student = LogitsOf(in_.student, row);
  const int column = static_cast<int>(int64_t{in_.columns} * lane_ / 32);
  row.student_sample = static_cast<float>(student[column]);
  row.teacher_sample = static_cast<float>(LogitsOf(in_.teacher, row)[column]);
  // Once the row's sums are known, its gradient may cover the logits.
  if (IsFirstBlock() && program.has_head && program.target) {
    row.target = static_cast<int>(program.target.Index(row.number));
    if (row.target >= 0) row.target_logit = static_cast<float>(student[row.target]);
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
__device__ LeanTask LeanClerk<kKind, T>::Announce(const Row& row, uint32_t turn) const {
  LeanTask task;
  task.is_row = row.number >= 0;
  task.factors.student = row.student_slope * kLog2E;
  task.factors.teacher = row.teacher_slope * kLog2E;
  task.student_reference =
      ReferenceOf(task.factors.student, HighestOfLanes<32>(row.student_sample));
  task.teacher_reference =
      ReferenceOf(task.factors.teacher, HighestOfLanes<32>(row.teacher_sample));
  if (lane_ == 0) shared_->tasks[turn] = task;
  return task;
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

// To every block of the cluster.
template <Divergence kKind, class T>
template <class Sums>
__device__ void LeanClerk<kKind, T>::Send(Sums (&mail)[2][kLeanBlocks], const Sums& mine) {
  const uint32_t turn = exchanges_ & 1;
  Mailbox& mailbox = shared_->mailboxes[turn];
  if (lane_ == 0) mailbox.Expect(cluster_.size() * sizeof(Sums));
  if (lane_ < cluster_.size()) mailbox.Send(&mail[turn][cluster_.rank()], mine, lane_);
}

// From every block, one in each lane (and in the lane 16 above).
template <Divergence kKind, class T>
template <class Sums>
__device__ Sums LeanClerk<kKind, T>::Receive(Sums (&mail)[2][kLeanBlocks], const Sums& none) {
  const uint32_t turn = exchanges_ & 1;
  shared_->mailboxes[turn].Wait(exchanges_ >> 1 & 1);
  ++exchanges_;
  const int block = lane_ % kLeanBlocks;
  return block < cluster_.size() ? mail[turn][block] : none;
}

// Over lanes, most often with the references of the task.
template <Divergence kKind, class T>
template <int kLanes>
__device__ ColumnTotals LeanClerk<kKind, T>::Combine(const LeanTask& task,
                                                     const ColumnTotals& totals) {
  const bool alike = totals.student_reference == task.student_reference &&
                     totals.teacher_reference == task.teacher_reference;
  return __all_sync(~0u, alike) ? AddLanes<kKind, kLanes>(totals)
                                : CombineLanes<kKind, kLanes>(totals);
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
  const int warp = lane_ % kLeanMostWarps;
  stopped_ = in_.record->code != 0;
  next_r_ = static_cast<int>(blockIdx.x) / cluster_.size();
  Row row = NextRow();
  LeanTask task = Announce(row, 0);
  Fetch(row);
  Row next = NextRow();
  __syncthreads();
  for (uint32_t turn = 1; row.number >= 0; turn ^= 1) {
    // While the other warps are at this row's first sweep.
    const LeanTask next_task = Announce(next, turn);
    const PairCoefficients factors = program.Factors(row.number, inverse_denominator);
    // A hard term of weight 0 is 0, or makes a NaN of everything if the upstream gradient is infinite.
    float coefficient = factors.hard == 0 ? factors.soft * row.student_slope : NAN;
    void* const to = Destination(row);
    ColumnTotals none;
    none.student_reference = task.student_reference;
    none.teacher_reference = task.teacher_reference;

    this->WaitForReports();
    Send(shared_->totals,
         Combine<kLeanMostWarps>(task, warp < warps_ ? shared_->totals_of_warps[warp] : none));
    Fetch(next);
    const ColumnTotals totals = Combine<kLeanBlocks>(task, Receive(shared_->totals, none));
    const RowScales scales = ScalesOf(totals);
    if (lane_ == 0) shared_->answer.scales = scales;
    DivergenceValue<float> value;
    if constexpr (kCompared) {
      __syncthreads();
      this->WaitForReports();
      Send(shared_->compared,
           AddLanes<kLeanMostWarps>(warp < warps_ ? shared_->compared_of_warps[warp]
                                                  : LeanCompared()));
      const LeanCompared compared =
          AddLanes<kLeanBlocks>(Receive(shared_->compared, LeanCompared()));
      value = ValueOfCompared<kKind>(program.divergence, scales, compared.value, compared.y);
    } else {
      value = ValueOfTotals<kKind>(program.divergence, scales, totals.x, totals.y);
    }
    const bool outside = program.IsOutside(value.value);
    if (outside) coefficient = 0;
    if (lane_ == 0) shared_->slope = {to, value.total, coefficient};
    __syncthreads();

    // While they write the gradient.
    const Row after = NextRow();
    Finish(row, totals, value.value, factors.hard != 0 || (factors.soft != 0 && !outside));
    row = next;
    next = after;
    task = next_task;
  }
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PAIR_LEAN_CUH_
