// How a loss on given log-probabilities is spread over a GPU. Arithmetic alone: no CUDA.
#ifndef LOSSD_KERNELS_CUDA_LOSS_PLAN_H_
#define LOSSD_KERNELS_CUDA_LOSS_PLAN_H_

#include <cstdint>

namespace lossd {

// Threads of a block, and rows of a tile: a thread has one row of it.
inline constexpr int kLossThreads = 512;

// What the GPU has.
struct LossLimits {
  int32_t cluster_blocks = 0;  // of the largest cluster that may be used; 0: none
  int32_t grid_blocks = 1;     // that are sure to run at once
};

struct LossPlan {
  // Threads that sum up a group (a sequence or a pair of them), a power of two. Follows from the extents alone, since it decides about the
  // order of sums.
  int32_t team_threads = kLossThreads;
  // Whether the teams of a block are its first half, and the other half does meanwhile what does not depend on them.
  bool halves = false;
  // Blocks, which wait for each other between the phases; no result depends on their number.
  int32_t blocks = 1;
  bool cluster = false;  // they are one cluster, whose barrier is the quicker one
};

LossPlan PlanLoss(int64_t rows, int64_t groups, const LossLimits& limits);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_LOSS_PLAN_H_
