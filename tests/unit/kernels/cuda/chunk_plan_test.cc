#include "kernels/cuda/chunk_plan.h"

#include <numeric>

#include "gtest/gtest.h"

namespace lossd {
namespace {

ChunkRequest Request(int64_t rows, int64_t budget) {
  ChunkRequest request;
  request.rows = rows;
  request.logits_bytes = 128256 * 4;
  request.late_row_bytes = 4096 * 2;
  request.budget = budget;
  request.sliced = true;
  return request;
}

TEST(ChunkPlanTest, TakesOneChunkInPlaceWhereItFits) {
  ChunkPlan plan;
  ASSERT_TRUE(PlanOneChunk(Request(8192, int64_t{5} << 30), &plan));
  EXPECT_EQ(plan.chunks, (std::vector<int64_t>{8192}));
  EXPECT_EQ(plan.slices, (std::vector<std::vector<int64_t>>{{8192}}));
}

// The shape and the memory of the figures: 8192 rows of dz alone are 2.101 GB.
TEST(ChunkPlanTest, SlicesAChunkThatFitsOnlyAsDz) {
  const ChunkRequest request = Request(8192, 2200000000 - (16 << 20) - 100000);
  ChunkPlan plan;
  ASSERT_TRUE(PlanOneChunk(request, &plan));
  const std::vector<int64_t>& slices = plan.slices[0];
  EXPECT_GT(slices.size(), 1u);
  EXPECT_EQ(std::accumulate(slices.begin(), slices.end(), int64_t{0}), 8192);
  EXPECT_LE(RegionBytes(request, slices), request.budget);
}

// grad_weight in fp32 is added up over chunks by the products themselves.
TEST(ChunkPlanTest, KeepsChunksInPlaceWhereSlicesAreNotWanted) {
  ChunkRequest request = Request(8192, 2200000000 - (16 << 20) - 100000);
  request.one_slice = true;
  ChunkPlan plan;
  ASSERT_TRUE(PlanChunks(request, 2048, &plan));
  EXPECT_EQ(plan.chunks, (std::vector<int64_t>{4096, 4096}));
  EXPECT_EQ(plan.slices, (std::vector<std::vector<int64_t>>{{4096}, {4096}}));
}

TEST(ChunkPlanTest, CutsEqualChunksWhereOneDoesNotFit) {
  ChunkPlan plan;
  const ChunkRequest request = Request(16384, 2200000000 - (16 << 20));
  EXPECT_FALSE(PlanOneChunk(request, &plan));
  ASSERT_TRUE(PlanChunks(request, 16, &plan));
  EXPECT_EQ(std::accumulate(plan.chunks.begin(), plan.chunks.end(), int64_t{0}), 16384);
  EXPECT_LE(plan.chunks.size(), 3u);
  for (const auto& slices : plan.slices) EXPECT_LE(RegionBytes(request, slices), request.budget);
}

TEST(ChunkPlanTest, RefusesAWorkspaceBelowTheSmallestChunk) {
  ChunkPlan plan;
  EXPECT_FALSE(PlanChunks(Request(64, 15 * (128256 * 4 + 8192)), 16, &plan));
  ASSERT_TRUE(PlanChunks(Request(64, 16 * (128256 * 4 + 8192)), 16, &plan));
  EXPECT_EQ(plan.chunks.size(), 4u);
  // A call of fewer rows needs only those.
  EXPECT_TRUE(PlanChunks(Request(3, 3 * (128256 * 4 + 8192)), 16, &plan));
}

TEST(ChunkPlanTest, KeepsWholeTilesForFixedOrders) {
  ChunkRequest request = Request(1024, 300 * int64_t{128256} * 4);
  request.row_multiple = 256;
  request.sliced = false;
  request.late_row_bytes = 0;
  ChunkPlan plan;
  ASSERT_TRUE(PlanChunks(request, 256, &plan));
  for (const int64_t rows : plan.chunks) EXPECT_EQ(rows % 256, 0);
}

// dz rows of a launch must lie below every row of logits that it or a later launch still reads.
TEST(ChunkPlanTest, LaunchesNeverOverwriteLogitsThatAreStillToBeRead) {
  for (const int64_t rows : {1, 63, 64, 65, 500, 4096}) {
    int64_t begin = 0;
    int launches = 0;
    while (begin < rows) {
      const int64_t end = SafeEnd(begin, rows);
      ASSERT_GT(end, begin);
      // In units of a dz row: dz ends at `end`, the first logits row of the launch begins at 2 (begin + gap).
      EXPECT_LE(end, 2 * (begin + ChunkPlan::kGapRows));
      begin = end;
      ++launches;
    }
    EXPECT_LE(launches, 8);
  }
}

}  // namespace
}  // namespace lossd
