// The row pass of the caller's logits, lean. A row belongs to a cluster of up to 16 blocks that takes one row after the other; a block keeps
// its slice of several rows in shared memory, in their own type. Logits are read once (V numbers), the gradient is written once.
//
// Eight warps do the columns. A ninth fetches the rows, tells the warps what they need to know of each, adds up what they found, exchanges
// it with the other blocks of the row, asks the program, and writes its outputs: all of it while the eight are at other rows. With a gradient
// they add up the next row before they write the gradient of the present one, so that nobody waits for the exchange.
//
// Rows may start anywhere: slices are counted in places of 16 bytes of memory, and the places at the ends of a row, which it shares with its
// neighbours, are looked at column by column. The arithmetic of a column is objectives/logit_columns.h. The order of the sums depends on V,
// the type, the GPU and where in 16 bytes the row starts.
#ifndef LOSSD_KERNELS_CUDA_LOGITS_LEAN_CUH_
#define LOSSD_KERNELS_CUDA_LOGITS_LEAN_CUH_

#include <climits>
#include <cstdint>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/logits_shared.cuh"
#include "kernels/cuda/memory_barrier.cuh"
#include "kernels/cuda/packed.cuh"
#include "kernels/cuda/row_kernels.h"
#include "kernels/objectives/logit_columns.h"

namespace lossd {

#if __CUDA_ARCH__ >= 900

// The eight warps.
template <class T, bool kAll, LogitsGradient kGradient>
class LogitsColumns {
 public:
  __device__ LogitsColumns(LogitsShared* shared, uint4* dynamic, int places, int stages)
      : shared_(shared), dynamic_(dynamic), places_(places), sums_(stages), slopes_(stages) {}

  // All rows; the program knows the statistics: gradients alone.
  __device__ void RunKnown() {
    for (;; slopes_.Next()) {
      WaitAt(&shared_->full[slopes_.stage()], slopes_.parity());
      if (shared_->slices[slopes_.stage()].row < 0) return;
      WriteGradient();
    }
  }
  // `ahead`: rows that are added up before a gradient is written, but one.
  __device__ void Run(int ahead) {
    int waiting = 0;
    for (bool more = true;;) {
      if (more && waiting <= ahead) {
        WaitAt(&shared_->full[sums_.stage()], sums_.parity());
        more = shared_->slices[sums_.stage()].row >= 0;
        if (!more) continue;
        AddUp();
        if (kGradient == LogitsGradient::kNone) Leave(sums_.stage());
        sums_.Next();
        ++waiting;
      } else if (kGradient == LogitsGradient::kNone) {
        if (!more) return;
        waiting = 0;
      } else {
        if (waiting == 0) return;
        WaitAt(&shared_->answered[slopes_.stage()], slopes_.parity());
        WriteGradient();
        slopes_.Next();
        --waiting;
      }
    }
  }

 private:
  using Numbers = Packed<T>;
  static constexpr int kVector = Numbers::kCount;
  static constexpr bool kEntropy = kGradient == LogitsGradient::kEntropy;

  __device__ static bool IsMine(int place) {
    return place >= 0 && place % kColumnThreads == static_cast<int>(threadIdx.x);
  }
  __device__ static int FirstPlace(const LogitsSlice& slice) {
    const int thread = static_cast<int>(threadIdx.x);
    return thread < slice.begin ? thread + kColumnThreads : thread;
  }
  // f(place, first and last number of it that are columns) for the place at the row's start (kHead) or end, where it is this thread's.
  template <bool kHead, class F>
  __device__ static void ForEdge(const LogitsSlice& slice, int columns, F f) {
    const int place = kHead ? slice.begin - 1 : slice.tail;
    if (!kHead && place == 0 && slice.begin > 0) return;  // a row within one place
    if (!IsMine(place)) return;
    const int first = slice.column + place * kVector;
    f(place, max(0, -first), min(kVector, columns - first));
  }
  __device__ static float Number(const uint4* places, int place, int i) {
    return static_cast<float>(reinterpret_cast<const T*>(places + place)[i]);
  }
  __device__ void Leave(int stage) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ArriveAt(&shared_->empty[stage]);
  }

  __device__ void AddUp() const;
  __device__ void WriteGradient() const;
  __device__ void Publish(const LogitSums& sums) const;

 public:
  int columns = 0;  // valid ones of a row

 private:
  LogitsShared* const shared_;
  uint4* const dynamic_;
  const int places_;
  LogitsTurn sums_;
  LogitsTurn slopes_;
};

// A thread's sums relative to its warp's largest logit, then the warp's.
template <class T, bool kAll, LogitsGradient kGradient>
__device__ void LogitsColumns<T, kAll, kGradient>::AddUp() const {
  const LogitsSlice& slice = shared_->slices[sums_.stage()];
  const uint4* const places = dynamic_ + sums_.stage() * places_;
  const float factor = slice.factor;
  const int end = slice.end;
  float largest = -INFINITY;
  int where = -1;  // first place of the largest
  const auto look = [&](int place, int begin, int stop) {
#pragma unroll 1
    for (int i = begin; i < stop; ++i) {
      const float raw = Number(places, place, i);
      if (raw > largest) where = place;
      largest = MaxOrNan(largest, raw);
    }
  };
  ForEdge<true>(slice, columns, look);
  const int first = FirstPlace(slice);
  if constexpr (kAll) {
#pragma unroll 4
    for (int k = first; k < end; k += kColumnThreads) {
      const float of_place = Numbers::Largest(places[k]);
      if (of_place > largest) where = k;
      largest = MaxOrNan(largest, of_place);
    }
  } else {
    uint4 running = Numbers::Fill(-INFINITY);
#pragma unroll 4
    for (int k = first; k < end; k += kColumnThreads) running = Numbers::Max(running, places[k]);
    largest = MaxOrNan(largest, Numbers::Largest(running));
  }
  ForEdge<false>(slice, columns, look);

  LogitSums sums;
  LogitSums odd;
  sums.max = WarpLargest(largest);
  const float reference = LogitReference(sums.max, factor);
#pragma unroll 2
  for (int k = first; k < end; k += kColumnThreads) {
    float raw[kVector];
    Numbers::Unpack(places[k], raw);
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      AddLogit<kAll>(raw[i], factor, reference, &sums);
      AddLogit<kAll>(raw[i + 1], factor, reference, &odd);
    }
    if (kAll) sums.columns += kVector;
  }
  const auto add = [&](int place, int begin, int stop) {
#pragma unroll 1
    for (int i = begin; i < stop; ++i) {
      AddLogit<kAll>(Number(places, place, i), factor, reference, &sums);
    }
    sums.columns += stop - begin;
  };
  ForEdge<true>(slice, columns, add);
  ForEdge<false>(slice, columns, add);
  AddLogits<kAll>(odd, &sums);
  if (kAll && where >= 0 && largest == sums.max) {
    const int column = slice.column + where * kVector;
    int i = max(0, -column);
#pragma unroll 1
    while (Number(places, where, i) != largest) ++i;
    sums.argmax = column + i;
  }
  if (slice.target >= slice.column && slice.target < slice.column + places_ * kVector) {
    const int place = (slice.target - slice.column) / kVector;
    if (IsMine(place)) {
      shared_->target[sums_.stage()] =
          Number(places, place, slice.target - slice.column - place * kVector);
    }
  }
  Publish(sums);
}

template <class T, bool kAll, LogitsGradient kGradient>
__device__ void LogitsColumns<T, kAll, kGradient>::Publish(const LogitSums& sums) const {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  LogitSums* const to = &shared_->warps[sums_.stage()][threadIdx.x / 32];
  if constexpr (kAll) {
    const float sum = SumFour(sums.sum, sums.sum_t, sums.sum_2, sums.t);
    const int count = __reduce_add_sync(~0u, sums.columns);
    const int argmax = __reduce_min_sync(~0u, sums.argmax);
    if (lane == 0) {
      to->max = sums.max;
      to->sum = sum;
      to->columns = count;
      to->argmax = argmax;
    }
    if (lane == 8) to->sum_t = sum;
    if (lane == 16) to->sum_2 = sum;
    if (lane == 24) to->t = sum;
  } else {
    float sum = sums.sum;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      sum = AddRounded(sum, __shfl_xor_sync(~0u, sum, offset));
    }
    if (lane == 0) *reinterpret_cast<float2*>(to) = make_float2(sums.max, sum);
  }
  __syncwarp();
  if (lane == 0) ArriveAt(&shared_->summed[sums_.stage()]);
}

template <class T, bool kAll, LogitsGradient kGradient>
__device__ void LogitsColumns<T, kAll, kGradient>::WriteGradient() const {
  const LogitsSlice& slice = shared_->slices[slopes_.stage()];
  const LogitSlopes slopes = shared_->answers[slopes_.stage()];
  const uint4* const places = dynamic_ + slopes_.stage() * places_;
  const float factor = slice.factor;
  const int end = slice.end;
  uint4* const to = slice.to;
  const int first = FirstPlace(slice);
  if (slopes.has_columns) {
#pragma unroll 2
    for (int k = first; k < end; k += kColumnThreads) {
      float g[kVector];
      Numbers::Unpack(places[k], g);
#pragma unroll
      for (int i = 0; i < kVector; ++i) g[i] = SlopeOfLogit<kEntropy>(slopes, g[i], factor);
      to[k] = Numbers::Pack(g);
    }
  } else {
    const uint4 fill = Numbers::Fill(0.0f - slopes.offset);
#pragma unroll 1
    for (int k = first; k < end; k += kColumnThreads) to[k] = fill;
  }
  const auto store = [&](int place, int begin, int stop) {
#pragma unroll 1
    for (int i = begin; i < stop; ++i) {
      const float g = slopes.has_columns
                          ? SlopeOfLogit<kEntropy>(slopes, Number(places, place, i), factor)
                          : 0.0f - slopes.offset;
      reinterpret_cast<T*>(to + place)[i] = static_cast<T>(g);
    }
  };
  ForEdge<true>(slice, columns, store);
  ForEdge<false>(slice, columns, store);
  if (slice.target >= slice.column && slice.target < slice.column + places_ * kVector) {
    const int number = slice.target - slice.column;
    const int place = number / kVector;
    if (IsMine(place)) {
      // After the whole place, by the same thread.
      const float raw = Number(places, place, number - place * kVector);
      reinterpret_cast<T*>(to)[number] =
          static_cast<T>(SlopeOfTarget<kEntropy>(slopes, raw, factor));
    }
  }
  Leave(slopes_.stage());
}

// The ninth warp.
template <class T, class Program, bool kAll, LogitsGradient kGradient>
class LogitsControl {
 public:
  __device__ LogitsControl(const LeanLogitsLaunch<Program>& launch, LogitsShared* shared,
                           uint4* dynamic, int rank)
      : pass_(launch.pass),
        program_(launch.program),
        shared_(shared),
        dynamic_(dynamic),
        lane_(static_cast<int>(threadIdx.x) % 32),
        parts_(launch.parts),
        rank_(rank),
        places_(launch.places),
        stages_(launch.stages),
        step_(gridDim.x / launch.parts),
        next_row_(blockIdx.x / launch.parts),
        fetched_(launch.stages),
        left_(launch.stages),
        answered_(launch.stages) {}

  // `ahead` as in LogitsColumns.
  __device__ void Run(int ahead) {
    for (int i = 0; i < stages_ && !ended_; ++i) FetchNext();
    for (int64_t row = 0; row < rows_ || !ended_; ++row) {
      RowStatistics stats;
      if constexpr (!kKnown) stats = Answer();
      if (!ended_ && row >= ahead) {
        WaitAt(&shared_->empty[left_.stage()], left_.parity());
        left_.Next();
        FetchNext();
      }
      if constexpr (!kKnown) {
        // The slice may be that of a later row by now: its number was kept.
        if (rank_ == leader_ && lane_ == 0) program_.Write(answered_row_, stats);
        leader_ = leader_ + 1 == parts_ ? 0 : leader_ + 1;
      }
    }
  }

 private:
  static constexpr int kVector = Packed<T>::kCount;
  static constexpr bool kKnown = Program::kKnowsStatistics;

  __device__ void FetchNext();
  __device__ void LoadBatch();
  __device__ void Fetch();
  __device__ void Clear(int64_t row, int from) const;
  __device__ RowStatistics Answer();

  // Of a row's first place, from the start of the tensor; may be below 0.
  __device__ int64_t FirstByte(int64_t row, int* shift) const {
    const RowsView& logits = pass_.head.logits;
    const int64_t byte = logits.Offset(row) * static_cast<int64_t>(sizeof(T));
    const int rest = static_cast<int>((reinterpret_cast<uintptr_t>(logits.data) + byte) & 15);
    *shift = rest / static_cast<int>(sizeof(T));
    return byte - rest;
  }

  const RowPass& pass_;
  const Program& program_;
  LogitsShared* const shared_;
  uint4* const dynamic_;
  const int lane_;
  const int parts_;
  const int rank_;
  const int places_;
  const int stages_;
  const int64_t step_;
  int64_t next_row_;  // of the next batch
  int64_t rows_ = 0;  // fetched so far
  bool ended_ = false;
  int leader_ = 0;  // rank of the block that writes the row's outputs
  int64_t answered_row_ = 0;
  LogitsTurn fetched_;
  LogitsTurn left_;
  LogitsTurn answered_;
  // A batch: each lane knows one row.
  uint32_t waiting_ = 0;  // lanes whose row counts and is still to be fetched
  LogitsSlice slice_;
  LogitSlopes slopes_;  // kKnown
};

// The next 32 rows of the cluster. What is asked for each is loaded by all lanes at once.
template <class T, class Program, bool kAll, LogitsGradient kGradient>
__device__ void LogitsControl<T, Program, kAll, kGradient>::LoadBatch() {
  const int64_t row = next_row_ + lane_ * step_;
  next_row_ += 32 * step_;
  const bool exists = row < pass_.rows;
  const bool counts = exists && pass_.counted[row] != 0;
  waiting_ = __ballot_sync(~0u, counts);
  if (kGradient != LogitsGradient::kNone) {
    const bool has_rest = pass_.head.valid_columns < pass_.head.vocab;
    uint32_t clear = __ballot_sync(~0u, exists && (!counts || has_rest));
    while (clear != 0) {
      const int lane = __ffs(static_cast<int>(clear)) - 1;
      clear &= clear - 1;
      const int64_t other = __shfl_sync(~0u, row, lane);
      Clear(other, (waiting_ >> lane & 1) != 0 ? static_cast<int>(pass_.head.valid_columns) : 0);
    }
  }
  if (!counts) return;
  const HeadProblem& head = pass_.head;
  const int columns = static_cast<int>(head.valid_columns);
  int shift = 0;
  FirstByte(row, &shift);
  const int first = rank_ * places_;
  const int stop = shift + columns;
  const float slope = head.logit_scale / head.Temperature(row);
  slice_.row = row;
  slice_.factor = slope * kLog2E;
  slice_.column = first * kVector - shift;
  slice_.begin = first == 0 && shift > 0 ? 1 : 0;
  slice_.end = max(0, min(places_, stop / kVector - first));
  const int tail = stop / kVector - first;
  slice_.tail = stop % kVector == 0 || tail >= places_ || tail < 0 ? -1 : tail;
  slice_.target = INT_MAX;
  if (head.target) {
    const int64_t id = head.target.Index(row);
    if (id >= 0 && id < columns) slice_.target = static_cast<int>(id);
  }
  slice_.owner = slice_.target == INT_MAX ? -1 : (slice_.target + shift) / kVector / places_;
  if (kGradient == LogitsGradient::kNone) return;
  slice_.to =
      reinterpret_cast<uint4*>(static_cast<T*>(pass_.grad.data) + pass_.grad.Offset(row) - shift) +
      first;
  const RowStatistics known = program_.KnownStatistics(row);
  const RowCoefficients coefficients = program_.Coefficients(row, known);
  if (kKnown) {
    slopes_ = SlopesOfLogits(coefficients, RoundedProduct(known.max, kLog2E), known.sum_exp, slope);
  } else {
    // What the program reads of this row is in the cache then.
    asm volatile("" ::"f"(coefficients.c), "f"(coefficients.a), "f"(coefficients.u));
  }
}

// Columns `from` ... V - 1 of this block's places become 0.
template <class T, class Program, bool kAll, LogitsGradient kGradient>
__device__ void LogitsControl<T, Program, kAll, kGradient>::Clear(int64_t row, int from) const {
  int shift = 0;
  FirstByte(row, &shift);
  const int width = static_cast<int>(pass_.head.vocab);
  const int first = rank_ * places_;
  T* const to = static_cast<T*>(pass_.grad.data) + pass_.grad.Offset(row);
  const int begin = max(0, (shift + from) / kVector - first);
  const int end = min(places_, (shift + width + kVector - 1) / kVector - first);
#pragma unroll 1
  for (int k = begin + lane_; k < end; k += 32) {
    const int column = (first + k) * kVector - shift;
    if (column >= from && column + kVector <= width) {
      *reinterpret_cast<uint4*>(to + column) = make_uint4(0, 0, 0, 0);
      continue;
    }
#pragma unroll 1
    for (int j = max(column, from); j < min(column + kVector, width); ++j) {
      to[j] = static_cast<T>(0.0f);
    }
  }
}

// Fills the next stage, which is empty: with the next row that counts, or with the news that there is none.
template <class T, class Program, bool kAll, LogitsGradient kGradient>
__device__ void LogitsControl<T, Program, kAll, kGradient>::FetchNext() {
  while (waiting_ == 0 && next_row_ < pass_.rows) LoadBatch();
  const int stage = fetched_.stage();
  if (waiting_ == 0) {
    ended_ = true;
    if (lane_ == 0) {
      shared_->slices[stage].row = -1;
      ArriveAt(&shared_->full[stage]);
    }
    return;
  }
  const int lane = __ffs(static_cast<int>(waiting_)) - 1;
  waiting_ &= waiting_ - 1;
  if (lane_ == lane) Fetch();
  __syncwarp();
  fetched_.Next();
  ++rows_;
}

// By the lane that knows the row.
template <class T, class Program, bool kAll, LogitsGradient kGradient>
__device__ void LogitsControl<T, Program, kAll, kGradient>::Fetch() {
  const int stage = fetched_.stage();
  uint4* const to = dynamic_ + stage * places_;
  int shift = 0;
  const int64_t byte = FirstByte(slice_.row, &shift);
  const char* const from =
      static_cast<const char*>(pass_.head.logits.data) + byte + int64_t{rank_} * places_ * 16;
  shared_->slices[stage] = slice_;
  if (kKnown) shared_->answers[stage] = slopes_;
  if (slice_.tail >= 0) {
    const int count =
        static_cast<int>(pass_.head.valid_columns) - slice_.column - slice_.tail * kVector;
    const T* const numbers = reinterpret_cast<const T*>(from + int64_t{slice_.tail} * 16);
    for (int i = max(0, -slice_.column - slice_.tail * kVector); i < count; ++i) {
      reinterpret_cast<T*>(to + slice_.tail)[i] = numbers[i];
    }
  }
  // Later copies to the same places come after these writes.
  FenceForCopies();
  ArriveExpecting(&shared_->full[stage], slice_.end * 16);
  if (slice_.end > 0) CopyBulk(to, from, slice_.end * 16, &shared_->full[stage]);
}

// From the warps' sums to the row's, and with a gradient to the slopes.
template <class T, class Program, bool kAll, LogitsGradient kGradient>
__device__ RowStatistics LogitsControl<T, Program, kAll, kGradient>::Answer() {
  const int stage = answered_.stage();
  WaitAt(&shared_->summed[stage], answered_.parity());
  const LogitsSlice& slice = shared_->slices[stage];
  const float factor = slice.factor;
  const int owner = slice.owner;
  answered_row_ = slice.row;
  LogitSums sums =
      CombineLanes<kAll, kLogitsWarps>(shared_->warps[stage][lane_ % kLogitsWarps], factor);
  sums.target = shared_->target[stage];
  if (lane_ < parts_) {
    const auto* words = reinterpret_cast<const uint4*>(&sums);
    const LogitSums* const to = &shared_->blocks[stage][rank_];
    StoreAtRank(to, lane_, words[0]);
    if (kAll) StoreAtRank(reinterpret_cast<const uint4*>(to) + 1, lane_, words[1]);
    ArriveAtRank(&shared_->exchanged[stage], lane_);
  }
  WaitForRanks(&shared_->exchanged[stage], answered_.parity());
  answered_.Next();
  if (kGradient == LogitsGradient::kNone && rank_ != leader_) return RowStatistics();
  const int block = lane_ % kLogitsParts;
  LogitSums total;
  if (block < parts_) total = shared_->blocks[stage][block];
  total = CombineLanes<kAll, kLogitsParts>(total, factor);
  if (owner >= 0) total.target = shared_->blocks[stage][owner].target;
  const RowStatistics stats = StatisticsOfLogits<kAll>(total, factor, owner >= 0);
  if (kGradient != LogitsGradient::kNone && lane_ == 0) {
    shared_->answers[stage] =
        SlopesOfLogits(program_.Coefficients(answered_row_, stats),
                       LogitReference(total.max, factor), total.sum, factor * kLn2);
    ArriveAt(&shared_->answered[stage]);
  }
  __syncwarp();
  return stats;
}

template <class T, class Program, bool kAll, LogitsGradient kGradient>
__device__ void RunLogits(const LeanLogitsLaunch<Program>& launch, LogitsShared* shared,
                          uint4* dynamic) {
  constexpr bool kKnown = Program::kKnowsStatistics;
  const Cluster cluster(kKnown ? 1 : launch.parts);
  const int rank = kKnown ? static_cast<int>(blockIdx.x) % launch.parts : cluster.rank();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < launch.stages; ++stage) {
      InitBarrier(&shared->full[stage], 1);
      InitBarrier(&shared->empty[stage], kLogitsWarps);
      InitBarrier(&shared->summed[stage], kLogitsWarps);
      InitBarrier(&shared->exchanged[stage], launch.parts);
      InitBarrier(&shared->answered[stage], 1);
    }
    PublishBarriers();
  }
  cluster.Sync();
  const int ahead = kGradient != LogitsGradient::kNone && !kKnown && launch.stages > 2 ? 1 : 0;
  if (threadIdx.x >= kColumnThreads) {
    LogitsControl<T, Program, kAll, kGradient>(launch, shared, dynamic, rank).Run(ahead);
  } else {
    LogitsColumns<T, kAll, kGradient> columns(shared, dynamic, launch.places, launch.stages);
    columns.columns = static_cast<int>(launch.pass.head.valid_columns);
    if constexpr (kKnown) {
      columns.RunKnown();
    } else {
      columns.Run(ahead);
    }
  }
  // No block may end while another writes to its shared memory.
  cluster.Sync();
}

#endif

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_LOGITS_LEAN_CUH_
