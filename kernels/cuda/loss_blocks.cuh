// The phases of loss_kernel.cuh that differ by loss: those behind the check.
#ifndef LOSSD_KERNELS_CUDA_LOSS_BLOCKS_CUH_
#define LOSSD_KERNELS_CUDA_LOSS_BLOCKS_CUH_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/loss_kernel.cuh"

namespace lossd {

template <class Call>
__device__ void LossBlock<Call>::Finish(const PolicyLossCall& call, const LossPart& all) {
  const PolicyProblem& p = call.problem;
  const PolicyTotals totals = PolicyStartStage::MakeTotals(p, all.rows, all.groups.groups);
  if (p.selected != nullptr) {
    PartTeam block = WholeBlock();
    if (blockIdx.x == 0) PolicySelectStage::Select(p, block);
    SyncBlocks();
  }
  for (int64_t tile = blockIdx.x; tile < tiles(); tile += gridDim.x) RunTile(call, totals, tile);
  SyncBlocks();
  if (p.d_shared != nullptr && HasTeams()) {
    PartTeam team = GroupTeam();
    const int64_t step = gridDim.x * int64_t{teams()};
    for (int64_t b = blockIdx.x * int64_t{teams()} + team.index(); b < p.sequences; b += step) {
      PolicyShareStage::Share(p, call.derivatives.logprob, team, b);
    }
  }
  if (blockIdx.x != 0) return;
  if (HasRest()) EndPolicy(p, totals);
  CopyRecord();
}

// A thread has one row; then a warp sums up one of its metrics.
template <class Call>
__device__ void LossBlock<Call>::RunTile(const PolicyLossCall& call, const PolicyTotals& totals,
                                         int64_t tile) {
  const PolicyProblem& p = call.problem;
  MetricColumns columns;
  columns.population = reinterpret_cast<uint64_t*>(tile_);
  columns.values = reinterpret_cast<float*>(columns.population + kLossThreads);
  columns.rows = kLossThreads;
  columns.metrics = kPolicyMetrics;
  columns.first = tile * kLossThreads;
  if (threadIdx.x == 0) shared_->population = 0;
  __syncthreads();
  const int64_t i = columns.first + threadIdx.x;
  PolicySums sums;
  if (i < p.rows && p.IsCounted(i)) {
    PolicyRowStage::RunRow(p, call.derivatives, i, totals, columns);
    sums = PolicyEndStage::SumsOfRow(p, columns, i);
  } else {
    MetricRow(columns, i).End();
    if (i < p.rows) launch_.fill.FillRow(i);
  }
  static_assert(kPolicyMetrics <= 32);
  const auto mine = static_cast<uint32_t>(columns.population[threadIdx.x]);
  const uint32_t of_warp = __reduce_or_sync(~0u, mine);
  if (threadIdx.x % 32 == 0) atomicOr(&shared_->population, of_warp);
  PartTeam block = WholeBlock();
  PolicyEndStage::Join(p, block, &sums);  // with a barrier
  PolicyTile* of_tile = launch_.scratch.tiles + tile;
  if (threadIdx.x == 0) of_tile->sums = sums;
  WarpTeam warp;
  for (int m = threadIdx.x / 32; m < kPolicyMetrics; m += kLossThreads / 32) {
    MetricSums metric;
    if ((shared_->population >> m & 1) != 0) metric = SumMetric(warp, columns, nullptr, m);
    if (warp.rank() == 0) of_tile->metrics[m] = metric;
  }
  __syncthreads();
}

// All tiles together, a warp for each sum.
template <class Call>
__device__ void LossBlock<Call>::EndPolicy(const PolicyProblem& p, const PolicyTotals& totals) {
  const PartTeam rest = RestTeam();
  if (rest.rank() == 0) p.record->sequence_count = totals.sequences;
  WarpTeam warp;
  const PolicyTile* tile = launch_.scratch.tiles;
  // From the last warp on: the first metrics, which most calls have, and the loss are then of different warps.
  const int warps = rest.size() / 32;
  for (int part = warps - 1 - rest.rank() / 32; part <= kPolicyMetrics; part += warps) {
    if (part == kPolicyMetrics) {
      PolicySums sums;
      for (int64_t t = warp.rank(); t < tiles(); t += 32) sums.Add(tile[t].sums);
      PolicyEndStage::Join(p, warp, &sums);
      if (warp.rank() == 0) PolicyEndStage::Finish(p, sums, totals);
    } else {
      MetricSums sums;
      for (int64_t t = warp.rank(); t < tiles(); t += 32) sums.Add(tile[t].metrics[part]);
      if (__any_sync(~0u, sums.count != 0)) sums.Join(warp);
      if (warp.rank() == 0) p.record->metrics[part] = sums.Result();
    }
  }
}

template <class Call>
template <class SequenceCall>
__device__ void LossBlock<Call>::Finish(const SequenceCall& call, const LossPart& all) {
  const SequenceProblem& p = call.problem.sequences;
  if constexpr (std::is_same_v<SequenceCall, PreferenceLossCall>) {
    if (call.problem.sorted.lists > 0) SortPairs(call.problem);
  }
  SequenceTotals totals =
      SequenceTotalsStage::MakeScales(p, all.groups.groups, all.groups.nll_tokens);
  if (p.d_logprob && HasTeams()) {
    const PartTeam team = GroupTeam();
    const int64_t step = gridDim.x * int64_t{teams()};
    for (int64_t b = blockIdx.x * int64_t{teams()} + team.index(); b < p.sequences; b += step) {
      SequenceRowStage::RunRows(p, team, b, totals);
    }
  }
  if (HasRest()) {
    PartTeam rest = RestTeam();
    const int64_t step = gridDim.x * int64_t{rest.size()};
    for (int64_t i = blockIdx.x * int64_t{rest.size()} + rest.rank(); i < p.rows; i += step) {
      if (!call.IsCounted(i)) launch_.fill.FillRow(i);
    }
    if (blockIdx.x == 0) EndSequences(p, rest, &totals);
  }
  if (blockIdx.x == 0) CopyRecord();
}

template <class Call>
__device__ void LossBlock<Call>::EndSequences(const SequenceProblem& p, PartTeam& rest,
                                              SequenceTotals* totals) {
  __syncwarp();
  SequenceTotalsStage::AddGroups(p, rest, totals);
  WarpTeam warp;
  const int warps = rest.size() / 32;
  for (int part = rest.rank() / 32; part <= p.group_metrics.metrics; part += warps) {
    SequenceEndStage::Finish(p, warp, part, *totals);
  }
}

template <class Call>
__device__ void LossBlock<Call>::SortPairs(const PreferenceProblem& p) {
  PreferenceRankStage ranks;
  ranks.sorted = p.sorted;
  ranks.pairs = p.Pairs();
  ranks.record = p.sequences.record;
  PartTeam block = WholeBlock();
  for (int64_t instance = blockIdx.x; instance < ranks.Instances(); instance += gridDim.x) {
    ranks.Run(block, instance);
  }
  SyncBlocks();
  for (int64_t k = blockIdx.x * int64_t{kLossThreads} + threadIdx.x; k < p.Pairs();
       k += gridDim.x * int64_t{kLossThreads}) {
    PreferenceValueStage::Evaluate(p, k);
  }
  SyncBlocks();
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_LOSS_BLOCKS_CUH_
