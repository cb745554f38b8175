#include "kernels/core/tensor_view.h"

#include <initializer_list>

#include "gtest/gtest.h"
#include "kernels/core/arena.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

TensorView View(std::initializer_list<int64_t> shape, std::initializer_list<int64_t> strides) {
  TensorView view;
  view.present = true;
  view.dtype = DType::kF32;
  for (const int64_t extent : shape) view.shape[view.rank++] = extent;
  int d = 0;
  for (const int64_t stride : strides) view.strides[d++] = stride;
  return view;
}

TEST(RowsViewTest, MergesLeadingExtentsThatLieEvenly) {
  const RowsView rows = MakeRowsView(View({3, 2, 4}, {8, 4, 1}), 1);
  EXPECT_EQ(rows.rows, 6);
  EXPECT_EQ(rows.width, 4);
  EXPECT_EQ(rows.lead_rank, 1);
  EXPECT_EQ(rows.Offset(5), 20);
}

TEST(RowsViewTest, WalksLeadingExtentsThatDoNot) {
  // [S, B, H] of a tensor kept as [B, S, H].
  const RowsView rows = MakeRowsView(View({3, 2, 4}, {4, 12, 1}), 1);
  EXPECT_EQ(rows.rows, 6);
  EXPECT_EQ(rows.lead_rank, 2);
  const int64_t want[] = {0, 12, 4, 16, 8, 20};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(rows.Offset(i), want[i]) << i;
}

TEST(RowsViewTest, IgnoresTheStrideOfASingleExtent) {
  const RowsView rows = MakeRowsView(View({5, 1}, {3, 999}), 0);
  EXPECT_EQ(rows.rows, 5);
  EXPECT_EQ(rows.lead_rank, 1);
  EXPECT_EQ(rows.Offset(4), 12);
  const RowsView other = MakeRowsView(View({1, 5}, {999, 3}), 0);
  EXPECT_EQ(other.lead_rank, 1);
  EXPECT_EQ(other.Offset(4), 12);
}

TEST(RowsViewTest, CountsWideStridesIn64Bits) {
  const RowsView rows = MakeRowsView(View({3, 4}, {int64_t{1} << 31, 1}), 1);
  EXPECT_EQ(rows.Offset(2), int64_t{1} << 32);
}

TEST(RowsViewTest, AnAbsentTensorHasNoRows) { EXPECT_FALSE(MakeRowsView(TensorView(), 0)); }

TEST(ArenaTest, RefusesWithTheNumbersWhenItIsFull) {
  std::byte memory[2048];
  Arena arena(memory, sizeof(memory));
  ASSERT_OK(arena.Allocate(1, "a"));
  EXPECT_EQ(arena.used(), Arena::kAlignment);
  const auto refused = arena.Allocate(2048, "logits");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(refused.status())->reason(), "WORKSPACE");
  arena.Reset();
  EXPECT_OK(arena.Allocate(2048, "all"));
}

TEST(ArenaTest, DoesNotWrapAround) {
  std::byte memory[512];
  Arena arena(memory, sizeof(memory));
  EXPECT_FALSE(arena.Allocate(~uint64_t{0}, "everything").ok());
  EXPECT_FALSE(arena.Allocate(~uint64_t{0} - 300, "everything").ok());
}

TEST(ArenaTest, KeepsToTheRequestsLimit) {
  std::byte memory[1024];
  Arena arena(memory, sizeof(memory));
  arena.SetLimit(512);
  EXPECT_FALSE(arena.Allocate(600, "too much").ok());
  EXPECT_OK(arena.Allocate(512, "all of it"));
}

}  // namespace
}  // namespace lossd
