// The kernel of a loss on given log-probabilities. Its blocks run at once and go through phases, between which all wait for each other:
//   wrong data; what is summed up by sequence or by pair, whatever the data are (cu_seqlens is kept within the rows)
//   nothing more, if something was wrong; the rows, tile by tile; fills
//   for a policy loss: what its sequences share; in block 0 the sums over tiles
// Counts go from phase to phase as sums by block, which are integers; real sums as sums by tile or by group, so that no bit depends on the
// number of blocks. Not bound by bandwidth: what takes the time are chains of loads, barriers and the fetching of code that runs once, so
// that it is kept short (LOSSD_SHORT_CODE).
#ifndef LOSSD_KERNELS_CUDA_LOSS_KERNEL_CUH_
#define LOSSD_KERNELS_CUDA_LOSS_KERNEL_CUH_

#include <cooperative_groups.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/loss_plan.h"
#include "kernels/cuda/part_team.cuh"
#include "kernels/objectives/checks.h"
#include "kernels/objectives/losses.h"
#include "kernels/objectives/policy_select.h"

namespace lossd {

// What a block has found out in the first phase.
struct LossPart {
  FoundErrors errors;
  int32_t rows = 0;  // that count
  GroupCounts groups;
};

// Sums over the rows of a tile.
struct PolicyTile {
  PolicySums sums;
  MetricSums metrics[kPolicyMetrics];
};

// What a block leaves for others.
struct LossScratch {
  LossPart* parts = nullptr;    // [blocks]
  PolicyTile* tiles = nullptr;  // [tiles]; policy losses
};

template <class Call>
struct LossLaunch {
  Call call;
  ElementCheckStage elements;
  SequenceCheckStage sequences;
  FillStage fill;
  int64_t rows = 0;
  ResultRecord* record = nullptr;
  ResultRecord* record_copy = nullptr;  // may be null
  LossScratch scratch;
  LossPlan plan;
};

struct LossShared {
  PartShared parts;
  GroupCounts groups;
  long long errors[2];
  int32_t rows;         // that count, of those that the block looked at
  uint32_t population;  // the metrics that a tile has
};

// Values of the metrics of a tile's rows, then their populations.
constexpr int kTileBytes = kLossThreads * (kPolicyMetrics * sizeof(float) + sizeof(uint64_t));

template <class Call>
class LossBlock {
 public:
  __device__ LossBlock(const LossLaunch<Call>& launch, LossShared* shared, std::byte* tile)
      : launch_(launch), call_(launch.call), shared_(shared), tile_(tile) {}

  __device__ void Run() {
    if (threadIdx.x == 0) {
      shared_->groups = GroupCounts();
      shared_->errors[0] = shared_->errors[1] = kNoError;
      shared_->rows = 0;
    }
    __syncthreads();
    if (HasTeams()) Gather();
    if (HasRest()) {
      if (blockIdx.x == 0) ClearRecord();
      FindErrors();
    }
    __syncthreads();
    if (threadIdx.x == 0) LeavePart();
    SyncBlocks();
    const LossPart all = JoinParts();
    if (Refuse(all)) return;
    Finish(call_, all);
  }

 private:
  __device__ int64_t tiles() const { return (launch_.rows + kLossThreads - 1) / kLossThreads; }
  __device__ PartTeam WholeBlock() const { return PartTeam(kLossThreads, &shared_->parts); }

  // The threads that work in teams on groups, and those that do what is independent of it: the two halves of a block, or all of it twice.
  __device__ bool HasTeams() const { return !launch_.plan.halves || threadIdx.x < kHalf; }
  __device__ bool HasRest() const { return !launch_.plan.halves || threadIdx.x >= kHalf; }
  __device__ PartTeam GroupTeam() const {
    return PartTeam(launch_.plan.team_threads, &shared_->parts);
  }
  __device__ int teams() const {
    const int threads = launch_.plan.halves ? kHalf : kLossThreads;
    return threads >> __ffs(launch_.plan.team_threads) - 1;
  }
  __device__ PartTeam RestTeam() const {
    return PartTeam(launch_.plan.halves ? kHalf : kLossThreads, &shared_->parts);
  }
  // Seen after it by all blocks: what any of them wrote before it.
  __device__ void SyncBlocks() const {
#if __CUDA_ARCH__ >= 900
    if (launch_.plan.cluster) {
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    cooperative_groups::this_grid().sync();
  }

  // The words of an empty record are 0 but for the row.
  __device__ void ClearRecord() const {
    static_assert(offsetof(ResultRecord, row) == sizeof(int64_t));
    int64_t* words = reinterpret_cast<int64_t*>(launch_.record);
    const PartTeam rest = RestTeam();
    for (int w = rest.rank(); w < kRecordWords; w += rest.size()) words[w] = w == 1 ? -1 : 0;
  }
  // By block 0, when the record is complete.
  __device__ void CopyRecord() const {
    __syncthreads();
    if (launch_.record_copy == nullptr) return;
    const int64_t* from = reinterpret_cast<const int64_t*>(launch_.record);
    int64_t* to = reinterpret_cast<int64_t*>(launch_.record_copy);
    for (int w = threadIdx.x; w < kRecordWords; w += kLossThreads) to[w] = from[w];
  }

  __device__ void FindErrors() {
    const PartTeam rest = RestTeam();
    const int64_t first = blockIdx.x * int64_t{rest.size()} + rest.rank();
    const int64_t step = gridDim.x * int64_t{rest.size()};
    const auto is_counted = [this](int64_t i) { return call_.IsCounted(i); };
    FoundErrors found;
    launch_.elements.Find(first, step, is_counted, &found);
    launch_.sequences.Find(first, step, is_counted, &found);
    // Most calls have none.
    if (found.certain != kNoError) atomicMin(&shared_->errors[0], found.certain);
    if (found.if_any_counts != kNoError) atomicMin(&shared_->errors[1], found.if_any_counts);
    int32_t rows = 0;
    for (int64_t i = first; i < launch_.rows; i += step) rows += call_.IsCounted(i) ? 1 : 0;
    __syncwarp();
    rows = __reduce_add_sync(~0u, rows);
    if (threadIdx.x % 32 == 0 && rows != 0) atomicAdd(&shared_->rows, rows);
  }

  __device__ void Gather() {
    PartTeam team = GroupTeam();
    const int64_t groups = call_.Groups();
    const int64_t step = gridDim.x * int64_t{teams()};
    for (int64_t g = blockIdx.x * int64_t{teams()} + team.index(); g < groups; g += step) {
      const GroupCounts counts = GatherGroup(call_, team, g);
      if (team.rank() != 0) continue;
      if (counts.groups != 0) atomicAdd(&shared_->groups.groups, counts.groups);
      if (counts.nll_tokens != 0) atomicAdd(&shared_->groups.nll_tokens, counts.nll_tokens);
    }
  }
  __device__ void LeavePart() const {
    LossPart part;
    part.errors.certain = shared_->errors[0];
    part.errors.if_any_counts = shared_->errors[1];
    part.rows = shared_->rows;
    part.groups = shared_->groups;
    launch_.scratch.parts[blockIdx.x] = part;
  }
  __device__ static GroupCounts GatherGroup(const PolicyLossCall& call, PartTeam& team, int64_t b) {
    return {PolicySequenceStage::Gather(call.problem, team, b) > 0 ? 1 : 0, 0};
  }
  __device__ static GroupCounts GatherGroup(const PreferenceLossCall& call, PartTeam& team,
                                            int64_t pair) {
    return PreferencePairStage::Gather(call.problem, team, pair);
  }
  __device__ static GroupCounts GatherGroup(const UnpairedLossCall& call, PartTeam& team,
                                            int64_t b) {
    return UnpairedSequenceStage::Gather(call.problem, team, b);
  }

  // Of all blocks, on every thread: each warp reads them for itself.
  __device__ LossPart JoinParts() const {
    WarpTeam team;
    LossPart all;
    for (int b = team.rank(); b < gridDim.x; b += team.size()) {
      const LossPart& part = launch_.scratch.parts[b];
      all.rows += part.rows;
      all.groups.groups += part.groups.groups;
      all.groups.nll_tokens += part.groups.nll_tokens;
      KeepLeast(part.errors.certain, &all.errors.certain);
      KeepLeast(part.errors.if_any_counts, &all.errors.if_any_counts);
    }
    team.SumAll(&all.rows, &all.groups.groups, &all.groups.nll_tokens);
    const bool errors = all.errors.certain != kNoError || all.errors.if_any_counts != kNoError;
    if (__any_sync(~0u, errors)) {
      all.errors.certain = team.Min(all.errors.certain);
      all.errors.if_any_counts = team.Min(all.errors.if_any_counts);
    }
    return all;
  }

  // Whether something was wrong; then the record says so.
  __device__ bool Refuse(const LossPart& all) const {
    const int64_t key = all.errors.First(all.rows);
    if (blockIdx.x != 0) return key != kNoError;
    if (threadIdx.x == 0) {
      launch_.record->count = all.rows;
      if (key != kNoError) RecordError(launch_.record, FieldOf(CheckOf(key)), RowOf(key));
    }
    if (key == kNoError) return false;
    CopyRecord();
    return true;
  }
  __device__ int32_t FieldOf(int32_t check) const {
    return check < SequenceCheckStage::kFirstCheck ? launch_.elements.FieldOf(check)
                                                   : launch_.sequences.FieldOf(check);
  }

  // loss_blocks.cuh
  __device__ void Finish(const PolicyLossCall& call, const LossPart& all);
  __device__ void RunTile(const PolicyLossCall& call, const PolicyTotals& totals, int64_t tile);
  __device__ void EndPolicy(const PolicyProblem& p, const PolicyTotals& totals);
  template <class SequenceCall>
  __device__ void Finish(const SequenceCall& call, const LossPart& all);
  __device__ void EndSequences(const SequenceProblem& p, PartTeam& rest, SequenceTotals* totals);
  __device__ void SortPairs(const PreferenceProblem& p);

  static constexpr int kHalf = kLossThreads / 2;
  static constexpr int kRecordWords = sizeof(ResultRecord) / sizeof(int64_t);

  const LossLaunch<Call>& launch_;
  const Call& call_;
  LossShared* shared_;
  std::byte* tile_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_LOSS_KERNEL_CUH_
