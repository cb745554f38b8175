#include "kernels/cuda/loss_plan.h"

#include <algorithm>

namespace lossd {
namespace {

// Groups of up to so many rows are summed up by half a block or less; not tuned.
constexpr int64_t kRowsOfHalf = 1024;
constexpr int32_t kWarp = 32;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

LossPlan PlanLoss(int64_t rows, int64_t groups, const LossLimits& limits) {
  LossPlan plan;
  const int64_t mean = groups > 0 ? rows / groups : rows;
  if (mean <= kRowsOfHalf) plan.team_threads = kLossThreads / 2;
  while (plan.team_threads > kWarp && plan.team_threads > mean) plan.team_threads /= 2;
  plan.halves = plan.team_threads <= kLossThreads / 2;
  const int64_t tiles = CeilDiv(rows, kLossThreads);
  const int64_t threads = plan.halves ? kLossThreads / 2 : kLossThreads;
  const int64_t teams = CeilDiv(groups, threads / plan.team_threads);
  const int64_t wanted = std::max<int64_t>({1, tiles, teams});
  plan.cluster = wanted <= limits.cluster_blocks;
  if (plan.cluster) {
    while (plan.blocks < wanted && plan.blocks < limits.cluster_blocks) plan.blocks *= 2;
  } else {
    plan.blocks = static_cast<int32_t>(std::min<int64_t>(wanted, limits.grid_blocks));
  }
  return plan;
}

}  // namespace lossd
