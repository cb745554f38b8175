#include "kernels/cuda/loss_plan.h"

#include "gtest/gtest.h"

namespace lossd {
namespace {

constexpr LossLimits kHopper = {.cluster_blocks = 8, .grid_blocks = 132};
constexpr LossLimits kAmpere = {.cluster_blocks = 0, .grid_blocks = 108};

TEST(LossPlanTest, SmallCallsAreOneCluster) {
  for (const int64_t rows : {0, 1, 512}) {
    const LossPlan plan = PlanLoss(rows, 1, kHopper);
    EXPECT_EQ(plan.blocks, 1) << rows;
    EXPECT_TRUE(plan.cluster) << rows;
  }
  const LossPlan plan = PlanLoss(4096, 8, kHopper);
  EXPECT_EQ(plan.blocks, 8);
  EXPECT_TRUE(plan.cluster);
  EXPECT_EQ(PlanLoss(5 * kLossThreads, 1, kHopper).blocks, 8) << "a power of two";
}

TEST(LossPlanTest, LargeCallsAreAGridThatRunsAtOnce) {
  const LossPlan large = PlanLoss(60000, 16, kHopper);
  EXPECT_EQ(large.blocks, 118);
  EXPECT_FALSE(large.cluster);
  EXPECT_EQ(PlanLoss(int64_t{1} << 30, 16, kHopper).blocks, 132);
  const LossPlan without = PlanLoss(4096, 8, kAmpere);
  EXPECT_EQ(without.blocks, 8);
  EXPECT_FALSE(without.cluster);
}

TEST(LossPlanTest, ManyGroupsHaveBlocksOfTheirOwn) {
  EXPECT_EQ(PlanLoss(0, 1 << 20, kHopper).blocks, 132);
  EXPECT_EQ(PlanLoss(512, 64, kHopper).blocks, 8) << "a warp each, of half the block";
}

TEST(LossPlanTest, TeamsFollowFromTheExtentsAlone) {
  EXPECT_EQ(PlanLoss(4096, 2, kHopper).team_threads, 512);
  EXPECT_FALSE(PlanLoss(4096, 2, kHopper).halves);
  EXPECT_EQ(PlanLoss(4096, 8, kHopper).team_threads, 256);
  EXPECT_TRUE(PlanLoss(4096, 8, kHopper).halves);
  EXPECT_EQ(PlanLoss(4096, 20, kHopper).team_threads, 128);
  EXPECT_EQ(PlanLoss(4096, 4096, kHopper).team_threads, 32);
  EXPECT_EQ(PlanLoss(0, 3, kHopper).team_threads, 32);
  EXPECT_EQ(PlanLoss(100000, 1, kHopper).team_threads, 512);
  for (const int64_t rows : {7, 700, 70000}) {
    for (const int64_t groups : {1, 10, 1000}) {
      EXPECT_EQ(PlanLoss(rows, groups, kHopper).team_threads,
                PlanLoss(rows, groups, kAmpere).team_threads);
    }
  }
}

}  // namespace
}  // namespace lossd
