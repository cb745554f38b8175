// The row pass of the caller's logits, lean. A row belongs to a cluster of up to 16 blocks that takes one row after the other. A block
// keeps its slice of two rows in shared memory, in their own type: one is worked on while the other is on its way. Logits are read once
// (V numbers), the gradient is written once. Rows may start anywhere: slices are counted in places of 16 bytes of memory, and the places
// at the ends of a row, which it shares with its neighbours, are looked at column by column. A thread reads what it fetched itself, so
// that only the sums are barriers. The arithmetic of a column is objectives/logit_columns.h. The order of the sums depends on V, the type,
// the GPU and where in 16 bytes the row starts.
#ifndef LOSSD_KERNELS_CUDA_LOGITS_LEAN_CUH_
#define LOSSD_KERNELS_CUDA_LOGITS_LEAN_CUH_

#include <cstdint>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/ordered_key.cuh"
#include "kernels/cuda/packed.cuh"
#include "kernels/cuda/row_kernels.h"
#include "kernels/objectives/logit_columns.h"

namespace lossd {

inline constexpr int kLogitsThreads = 256;
inline constexpr int kLogitsWarps = kLogitsThreads / 32;
inline constexpr int kLogitsParts = 16;  // blocks of a row, at most
inline constexpr int kLogitsStages = 2;

// kPlain: c p - u and the target's. kEntropy: with the term of h, too.
enum class LogitsGradient { kNone, kPlain, kEntropy };

template <class Program>
struct LeanLogitsLaunch {
  RowPass pass;
  Program program;
  int32_t parts = 1;   // blocks of a row
  int32_t places = 0;  // of 16 bytes, in a slice
};

// What the blocks of a row tell each other: a block writes to the others' `blocks`, so that nothing far is read. Buffers alternate from row
// to row: one that is written again has been read before the barrier of the row between.
struct LogitsShared {
  LogitSums warps[2][kLogitsWarps];
  LogitSums blocks[2][kLogitsParts];
  float target[2];
  LogitSlopes answers[2];
};

// Once for each row, by one thread: apart, so that the loops stay near each other.
template <class Program>
__device__ __noinline__ RowCoefficients CoefficientsOf(const Program& program, int64_t row,
                                                       const RowStatistics& stats) {
  return program.Coefficients(row, stats);
}
template <class Program>
__device__ __noinline__ void WriteRow(const Program& program, int64_t row,
                                      const RowStatistics& stats) {
  program.Write(row, stats);
}
__device__ __noinline__ inline int64_t TargetOf(const HeadProblem& head, int64_t row) {
  return head.target.Index(row);
}
__device__ __noinline__ inline float TemperatureOf(const HeadProblem& head, int64_t row) {
  return head.temperature_rows.F32(row);
}
__device__ __noinline__ inline int64_t FarOffset(const RowsView& view, int64_t row) {
  return view.Offset(row);
}

// Sums over the warp: of a in lanes 0 ... 7, b in 8 ... 15, c in 16 ... 23, d in 24 ... 31.
__device__ __forceinline__ float SumFour(float a, float b, float c, float d) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool upper = (lane & 16) != 0;
  float first = AddRounded(upper ? c : a, __shfl_xor_sync(~0u, upper ? a : c, 16));
  float second = AddRounded(upper ? d : b, __shfl_xor_sync(~0u, upper ? b : d, 16));
  const bool odd = (lane & 8) != 0;
  float sum = AddRounded(odd ? second : first, __shfl_xor_sync(~0u, odd ? first : second, 8));
#pragma unroll
  for (int offset = 4; offset > 0; offset /= 2) {
    sum = AddRounded(sum, __shfl_xor_sync(~0u, sum, offset));
  }
  return sum;
}

__device__ __forceinline__ float WarpLargest(float value) {
  return FromKey(__reduce_max_sync(~0u, OrderedKey(value)));
}

// Of the first kLanes lanes and their copies, in every lane.
template <bool kAll, int kLanes>
__device__ __forceinline__ LogitSums CombineLanes(LogitSums sums, float factor) {
  sums = RebasedLogits<kAll>(sums, WarpLargest(sums.max), factor);
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    LogitSums other;
    other.sum = __shfl_xor_sync(~0u, sums.sum, offset);
    if (kAll) {
      other.sum_t = __shfl_xor_sync(~0u, sums.sum_t, offset);
      other.sum_2 = __shfl_xor_sync(~0u, sums.sum_2, offset);
      other.t = __shfl_xor_sync(~0u, sums.t, offset);
      other.columns = __shfl_xor_sync(~0u, sums.columns, offset);
      other.argmax = __shfl_xor_sync(~0u, sums.argmax, offset);
    }
    AddLogits<kAll>(other, &sums);
  }
  return sums;
}

template <class T, class Program, bool kAll, LogitsGradient kGradient>
class LogitsRows {
 public:
  __device__ LogitsRows(const LeanLogitsLaunch<Program>& launch, const Cluster& cluster,
                        LogitsShared* shared, uint4* dynamic)
      : pass_(launch.pass),
        program_(launch.program),
        cluster_(cluster),
        shared_(shared),
        parts_(launch.parts),
        rank_(kKnown ? static_cast<int>(blockIdx.x) % launch.parts : cluster.rank()),
        places_(launch.places),
        first_(rank_ * launch.places),
        columns_(static_cast<int>(launch.pass.head.valid_columns)),
        dynamic_(dynamic) {}

  // All rows of this cluster.
  __device__ void Run() {
    const int64_t step = gridDim.x / parts_;
    // A block must run before another writes to its shared memory.
    if (!kKnown) cluster_.Sync();
    Place now = Find(blockIdx.x / parts_, step);
    Place next = Find(now.row + step, step);
    Fetch(now, 0);
    EndGroup();
    Fetch(next, 1);
    EndGroup();
    for (; now.row < pass_.rows; turn_ ^= 1) {
      const Place after = Find(next.row + step, step);
      RunRow(now, after);
      EndGroup();
      now = next;
      next = after;
      leader_ = leader_ + 1 == parts_ ? 0 : leader_ + 1;
    }
    if constexpr (kGradient == LogitsGradient::kNone) FinishPending();
    // No block may end while another writes to its shared memory.
    if (!kKnown) cluster_.Sync();
  }

 private:
  using Numbers = Packed<T>;
  static constexpr int kVector = Numbers::kCount;
  static constexpr bool kKnown = Program::kKnowsStatistics;
  static constexpr bool kEntropy = kGradient == LogitsGradient::kEntropy;

  // A row that counts, or the end of all rows; with what is asked for long before it is used.
  struct Place {
    int64_t row = 0;
    int target = -1;  // column, -1: none
  };
  // The slice of a row. Of its places 0 ... count - 1 hold columns; those from `begin` to `end` nothing else.
  struct Slice {
    int64_t first_byte;  // of the row's first place, from the start of the tensor; may be below 0
    int shift;           // columns of the first place that are not the row's
    int begin;
    int end;
    int tail;  // place in which the valid columns end; -1: in none
  };

  __device__ Place Find(int64_t row, int64_t step) const {
    Place place;
    for (place.row = row; place.row < pass_.rows; place.row += step) {
      if (pass_.counted[place.row] != 0) break;
      if (kGradient != LogitsGradient::kNone) ClearColumns(place.row, 0);
    }
    if (place.row < pass_.rows && pass_.head.target) {
      const int64_t id = TargetOf(pass_.head, place.row);
      if (id >= 0 && id < columns_) place.target = static_cast<int>(id);
    }
    return place;
  }

  __device__ static int64_t ByteOf(const RowsView& view, int64_t row) {
    const int64_t offset = view.lead_rank == 1 ? row * view.lead_strides[0] : FarOffset(view, row);
    return offset * static_cast<int64_t>(sizeof(T));
  }
  __device__ Slice SliceOf(int64_t row) const {
    const RowsView& logits = pass_.head.logits;
    const int64_t byte = ByteOf(logits, row);
    const int rest = static_cast<int>((reinterpret_cast<uintptr_t>(logits.data) + byte) & 15);
    Slice slice;
    slice.first_byte = byte - rest;
    slice.shift = rest / static_cast<int>(sizeof(T));
    slice.begin = first_ == 0 && slice.shift > 0 ? 1 : 0;
    const int stop = slice.shift + columns_;
    slice.end = max(0, min(places_, stop / kVector - first_));
    slice.tail = stop % kVector == 0 ? -1 : stop / kVector - first_;
    if (slice.tail >= places_ || slice.tail < 0) slice.tail = -1;
    return slice;
  }
  __device__ bool IsMine(int place) const {
    return place >= 0 && place % kLogitsThreads == static_cast<int>(threadIdx.x);
  }
  __device__ int FirstColumn(const Slice& slice, int place) const {
    return (first_ + place) * kVector - slice.shift;
  }
  // f(place, first and last number of it that are valid columns) for the places at the ends of the row that are this thread's, in order:
  // the first before the whole places if kHead, else the last.
  template <bool kHead, class F>
  __device__ void ForEdge(const Slice& slice, F f) const {
    const int place = kHead ? (slice.begin > 0 ? 0 : -1) : slice.tail;
    if (!kHead && place == 0 && slice.begin > 0) return;
    if (!IsMine(place)) return;
    const int first = FirstColumn(slice, place);
    f(place, max(0, -first), min(kVector, columns_ - first));
  }

  __device__ uint4* Stage(int stage) const { return dynamic_ + stage * places_; }
  __device__ static float Number(const uint4* places, int place, int i) {
    return static_cast<float>(reinterpret_cast<const T*>(places + place)[i]);
  }

  // Starts to copy the slice of a row. A thread copies the places that it reads.
  __device__ void Fetch(const Place& place, int stage) const {
    if (place.row >= pass_.rows) return;
    const Slice slice = SliceOf(place.row);
    const char* from =
        static_cast<const char*>(pass_.head.logits.data) + slice.first_byte + int64_t{first_} * 16;
    uint4* to = Stage(stage);
#pragma unroll 4
    for (int k = threadIdx.x; k < slice.end; k += kLogitsThreads) {
      FetchVector(to + k, from + int64_t{k} * 16);
    }
    if (IsMine(slice.tail)) {
      const int columns = columns_ - FirstColumn(slice, slice.tail);
      FetchPart(to + slice.tail, from + int64_t{slice.tail} * 16,
                columns * static_cast<int>(sizeof(T)));
    }
  }

  __device__ void RunRow(const Place& now, const Place& after);
  __device__ LogitSums AddUp(const Slice& slice, const uint4* places) const;
  __device__ void Reduce(LogitSums sums);
  __device__ RowStatistics Total(int turn, float factor, int owner, LogitSums* total) const;
  __device__ void FinishPending();
  __device__ void WriteGradient(const Place& now, const Slice& slice, const uint4* places,
                                const LogitSlopes& slopes) const;
  __device__ void ClearColumns(int64_t row, int from) const;

  const RowPass& pass_;
  const Program& program_;
  const Cluster& cluster_;
  LogitsShared* const shared_;
  const int parts_;
  const int rank_;
  const int places_;
  const int first_;  // the slice's first place, counted in the row
  const int columns_;
  uint4* const dynamic_;
  float factor_ = 1;
  int turn_ = 0;    // 0 and 1 by rows: stage and buffers
  int leader_ = 0;  // rank of the block that writes the row's outputs
  // Without a gradient a row is finished while the next one is added up.
  struct Pending {
    int64_t row = -1;
    float factor = 1;
    int owner = -1;  // block that has the target
    int leader = 0;
  } pending_;
};

// Places of 16 bytes from column `from` on become 0, in the gradient's row; the whole row of a row that does not count.
template <class T, class Program, bool kAll, LogitsGradient kGradient>
__device__ void LogitsRows<T, Program, kAll, kGradient>::ClearColumns(int64_t row, int from) const {
  const Slice slice = SliceOf(row);
  const int width = static_cast<int>(pass_.head.vocab);
  T* const to = static_cast<T*>(pass_.grad.data) + ByteOf(pass_.grad, row) / sizeof(T);
  const int begin = max(0, (slice.shift + from) / kVector - first_);
  const int end = min(places_, (slice.shift + width + kVector - 1) / kVector - first_);
#pragma unroll 1
  for (int k = begin + static_cast<int>(threadIdx.x); k < end; k += kLogitsThreads) {
    const int column = FirstColumn(slice, k);
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

// The thread's sums, relative to its warp's largest logit.
template <class T, class Program, bool kAll, LogitsGradient kGradient>
__device__ LogitSums LogitsRows<T, Program, kAll, kGradient>::AddUp(const Slice& slice,
                                                                    const uint4* places) const {
  float largest = -INFINITY;
  int where = -1;  // first place of the largest
  const auto look = [&](int place, int begin, int end) {
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
      const float raw = Number(places, place, i);
      if (raw > largest) where = place;
      largest = MaxOrNan(largest, raw);
    }
  };
  ForEdge<true>(slice, look);
  const int first =
      threadIdx.x + (static_cast<int>(threadIdx.x) < slice.begin ? kLogitsThreads : 0);
  if constexpr (kAll) {
#pragma unroll 4
    for (int k = first; k < slice.end; k += kLogitsThreads) {
      const float of_place = Numbers::Largest(places[k]);
      if (of_place > largest) where = k;
      largest = MaxOrNan(largest, of_place);
    }
  } else {
    uint4 running = Numbers::Fill(-INFINITY);
#pragma unroll 4
    for (int k = first; k < slice.end; k += kLogitsThreads)
      running = Numbers::Max(running, places[k]);
    largest = MaxOrNan(largest, Numbers::Largest(running));
  }
  ForEdge<false>(slice, look);

  LogitSums sums;
  sums.max = WarpLargest(largest);
  const float reference = LogitReference(sums.max, factor_);
  LogitSums odd;
#pragma unroll 2
  for (int k = first; k < slice.end; k += kLogitsThreads) {
    float raw[kVector];
    Numbers::Unpack(places[k], raw);
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      AddLogit<kAll>(raw[i], factor_, reference, &sums);
      AddLogit<kAll>(raw[i + 1], factor_, reference, &odd);
    }
    if (kAll) sums.columns += kVector;
  }
  const auto add = [&](int place, int begin, int end) {
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
      AddLogit<kAll>(Number(places, place, i), factor_, reference, &sums);
    }
    sums.columns += end - begin;
  };
  ForEdge<true>(slice, add);
  ForEdge<false>(slice, add);
  AddLogits<kAll>(odd, &sums);
  if (kAll && where >= 0 && largest == sums.max) {
    const int column = FirstColumn(slice, where);
    int i = max(0, -column);
#pragma unroll 1
    while (Number(places, where, i) != largest) ++i;
    sums.argmax = column + i;
  }
  return sums;
}

// From the threads' sums to those of the block, in the other blocks' shared memory, or in the leader's alone without a gradient.
template <class T, class Program, bool kAll, LogitsGradient kGradient>
__device__ void LogitsRows<T, Program, kAll, kGradient>::Reduce(LogitSums sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  LogitSums* const of_warp = &shared_->warps[turn_][warp];
  if constexpr (kAll) {
    const float sum = SumFour(sums.sum, sums.sum_t, sums.sum_2, sums.t);
    const int columns = __reduce_add_sync(~0u, sums.columns);
    const int argmax = __reduce_min_sync(~0u, sums.argmax);
    if (lane == 0) {
      of_warp->max = sums.max;
      of_warp->sum = sum;
      of_warp->columns = columns;
      of_warp->argmax = argmax;
    }
    if (lane == 8) of_warp->sum_t = sum;
    if (lane == 16) of_warp->sum_2 = sum;
    if (lane == 24) of_warp->t = sum;
  } else {
    float sum = sums.sum;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      sum = AddRounded(sum, __shfl_xor_sync(~0u, sum, offset));
    }
    if (lane == 0) *reinterpret_cast<float2*>(of_warp) = make_float2(sums.max, sum);
  }
  __syncthreads();
  if constexpr (kGradient == LogitsGradient::kNone) FinishPending();
  if (warp != 0) return;
  LogitSums block =
      CombineLanes<kAll, kLogitsWarps>(shared_->warps[turn_][lane % kLogitsWarps], factor_);
  block.target = shared_->target[turn_];
  const bool everywhere = kGradient != LogitsGradient::kNone;
  if (everywhere ? lane < parts_ : lane == leader_) {
    LogitSums* const to = cluster_.Of(&shared_->blocks[turn_][rank_], lane);
    if constexpr (kAll) {
      *to = block;
    } else {
      *reinterpret_cast<float4*>(to) = make_float4(block.max, block.sum, block.target, 0);
    }
  }
  __syncwarp();
}

// What the first warp makes of the blocks' sums, after the barrier.
template <class T, class Program, bool kAll, LogitsGradient kGradient>
__device__ RowStatistics LogitsRows<T, Program, kAll, kGradient>::Total(int turn, float factor,
                                                                        int owner,
                                                                        LogitSums* total) const {
  const int block = static_cast<int>(threadIdx.x) % kLogitsParts;
  LogitSums sums;
  if (block < parts_) {
    if constexpr (kAll) {
      sums = shared_->blocks[turn][block];
    } else {
      const auto two = *reinterpret_cast<const float2*>(&shared_->blocks[turn][block]);
      sums.max = two.x;
      sums.sum = two.y;
    }
  }
  *total = CombineLanes<kAll, kLogitsParts>(sums, factor);
  total->target = owner < 0 ? 0.0f : shared_->blocks[turn][owner].target;
  return StatisticsOfLogits<kAll>(*total, factor, owner >= 0);
}

template <class T, class Program, bool kAll, LogitsGradient kGradient>
__device__ void LogitsRows<T, Program, kAll, kGradient>::FinishPending() {
  if (pending_.row < 0) return;
  cluster_.Wait();
  if (rank_ == pending_.leader && threadIdx.x < 32) {
    LogitSums total;
    const RowStatistics stats = Total(turn_ ^ 1, pending_.factor, pending_.owner, &total);
    if (threadIdx.x == 0) WriteRow(program_, pending_.row, stats);
  }
  pending_.row = -1;
}

template <class T, class Program, bool kAll, LogitsGradient kGradient>
__device__ void LogitsRows<T, Program, kAll, kGradient>::WriteGradient(
    const Place& now, const Slice& slice, const uint4* places, const LogitSlopes& slopes) const {
  T* const row = static_cast<T*>(pass_.grad.data) + ByteOf(pass_.grad, now.row) / sizeof(T);
  // Of the first place: a multiple of 16 bytes.
  uint4* const to = reinterpret_cast<uint4*>(row - slice.shift) + first_;
  const int first =
      threadIdx.x + (static_cast<int>(threadIdx.x) < slice.begin ? kLogitsThreads : 0);
  if (slopes.has_columns) {
#pragma unroll 2
    for (int k = first; k < slice.end; k += kLogitsThreads) {
      float g[kVector];
      Numbers::Unpack(places[k], g);
#pragma unroll
      for (int i = 0; i < kVector; ++i) g[i] = SlopeOfLogit<kEntropy>(slopes, g[i], factor_);
      __stcs(to + k, Numbers::Pack(g));
    }
  } else {
    const uint4 fill = Numbers::Fill(0.0f - slopes.offset);
#pragma unroll 1
    for (int k = first; k < slice.end; k += kLogitsThreads) __stcs(to + k, fill);
  }
  const auto store = [&](int place, int begin, int end) {
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
      const float g = slopes.has_columns
                          ? SlopeOfLogit<kEntropy>(slopes, Number(places, place, i), factor_)
                          : 0.0f - slopes.offset;
      reinterpret_cast<T*>(to + place)[i] = static_cast<T>(g);
    }
  };
  ForEdge<true>(slice, store);
  ForEdge<false>(slice, store);
  const int target = now.target < 0 ? -1 : (now.target + slice.shift) / kVector - first_;
  if (target < places_ && IsMine(target)) {
    // After the whole place, by the same thread.
    const float raw = Number(places, target, now.target - FirstColumn(slice, target));
    row[now.target] = static_cast<T>(SlopeOfTarget<kEntropy>(slopes, raw, factor_));
  }
  if (columns_ < pass_.head.vocab) ClearColumns(now.row, columns_);
}

template <class T, class Program, bool kAll, LogitsGradient kGradient>
__device__ void LogitsRows<T, Program, kAll, kGradient>::RunRow(const Place& now,
                                                                const Place& after) {
  const HeadProblem& head = pass_.head;
  const float slope =
      head.logit_scale / (head.temperature_rows ? TemperatureOf(head, now.row) : head.temperature);
  factor_ = slope * kLog2E;
  const Slice slice = SliceOf(now.row);
  const uint4* const places = Stage(turn_);
  const int owner = now.target < 0 ? -1 : (now.target + slice.shift) / kVector / places_;
  if constexpr (kKnown) {
    if (threadIdx.x == 0) {
      const RowStatistics stats = program_.KnownStatistics(now.row);
      shared_->answers[turn_] =
          SlopesOfLogits(CoefficientsOf(program_, now.row, stats),
                         RoundedProduct(stats.max, kLog2E), stats.sum_exp, slope);
    }
    WaitForGroups<kLogitsStages - 1>();
    __syncthreads();
  } else {
    WaitForGroups<kLogitsStages - 1>();
    const LogitSums sums = AddUp(slice, places);
    if (owner == rank_) {
      const int place = (now.target + slice.shift) / kVector - first_;
      if (IsMine(place)) {
        shared_->target[turn_] = Number(places, place, now.target - FirstColumn(slice, place));
      }
    }
    if (kGradient == LogitsGradient::kNone) Fetch(after, turn_);
    Reduce(sums);
  }
  if constexpr (kGradient == LogitsGradient::kNone) {
    cluster_.Arrive();
    pending_ = {now.row, factor_, owner, leader_};
  } else {
    if constexpr (!kKnown) {
      cluster_.Sync();
      if (threadIdx.x < 32) {
        LogitSums total;
        const RowStatistics stats = Total(turn_, factor_, owner, &total);
        if (threadIdx.x == 0) {
          shared_->answers[turn_] =
              SlopesOfLogits(CoefficientsOf(program_, now.row, stats),
                             LogitReference(total.max, factor_), total.sum, slope);
          if (rank_ == leader_) WriteRow(program_, now.row, stats);
        }
      }
      __syncthreads();
    }
    WriteGradient(now, slice, places, shared_->answers[turn_]);
    Fetch(after, turn_);
  }
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_LOGITS_LEAN_CUH_
