#include "server/region_table.h"

#include <thread>

#include "gtest/gtest.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

// A mapping that says when it was closed.
std::shared_ptr<Mapping> MakeMapping(std::atomic<int>* closed) {
  static std::byte memory[64];
  auto mapping = std::make_shared<Mapping>();
  mapping->base = memory;
  mapping->bytes = sizeof(memory);
  mapping->owner = std::shared_ptr<void>(nullptr, [closed](void*) { ++*closed; });
  return mapping;
}

TEST(RegionTableTest, ChoosesIdsAboveTheClients) {
  std::atomic<int> closed{0};
  RegionTable table(4);
  const auto own = table.Add(0, MakeMapping(&closed));
  ASSERT_OK(own);
  EXPECT_GE(own->region(), RegionTable::kFirstOwnId);
  EXPECT_EQ(table.Add(5, MakeMapping(&closed))->region(), 5u);
  EXPECT_EQ(Refusal(table.Add(5, MakeMapping(&closed))), "ALREADY_EXISTS region");
  EXPECT_EQ(Refusal(table.Add(RegionTable::kFirstOwnId, MakeMapping(&closed))),
            "INVALID_ARGUMENT region");
  EXPECT_EQ(closed, 2);
}

TEST(RegionTableTest, KeepsItsQuota) {
  std::atomic<int> closed{0};
  RegionTable table(2);
  ASSERT_OK(table.Add(0, MakeMapping(&closed)));
  ASSERT_OK(table.Add(0, MakeMapping(&closed)));
  const auto third = table.Add(0, MakeMapping(&closed));
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(third.status())->reason(), "QUOTA_REGIONS");
}

TEST(RegionTableTest, ClosesAMappingAfterItsLastUse) {
  std::atomic<int> closed{0};
  RegionTable table(4);
  ASSERT_OK(table.Add(1, MakeMapping(&closed)));
  auto call = std::make_unique<CallRegions>(&table);
  const auto region = call->Resolve(1);
  ASSERT_OK(region);
  ASSERT_OK(call->Resolve(1));
  EXPECT_EQ(table.List()[0].uses(), 1u);  // a call counts once, however many tensors it has there
  ASSERT_OK(table.Remove(1));
  EXPECT_EQ(Refusal(CallRegions(&table).Resolve(1)), "NOT_FOUND region");
  EXPECT_EQ(Refusal(table.Remove(1)), "NOT_FOUND region");
  std::shared_ptr<const void> owner = region->owner;
  call = nullptr;
  EXPECT_EQ(closed, 0);
  const_cast<Region&>(*region).owner = nullptr;
  owner = nullptr;
  EXPECT_EQ(closed, 1);
}

TEST(RegionTableTest, WithoutASessionARegionIsUnauthenticated) {
  EXPECT_EQ(CallRegions(nullptr).Resolve(1).status().code(), absl::StatusCode::kUnauthenticated);
}

TEST(RegionTableTest, ARepeatedHandleUnderAnotherIdReplacesTheOldRegion) {
  std::atomic<int> closed{0};
  RegionTable table(4);
  auto mapping = MakeMapping(&closed);
  mapping->handle = "same";
  mapping->buffer_id = 1;
  ASSERT_OK(table.Add(1, std::move(mapping)));
  ASSERT_OK(table.RemoveStale("same", 1));
  EXPECT_EQ(closed, 0);
  {
    CallRegions call(&table);
    ASSERT_OK(call.Resolve(1));
    EXPECT_EQ(table.RemoveStale("same", 2).code(), absl::StatusCode::kFailedPrecondition);
  }
  ASSERT_OK(table.RemoveStale("same", 2));
  EXPECT_EQ(closed, 1);
}

TEST(RegionTableTest, AClosedTableTakesNothing) {
  std::atomic<int> closed{0};
  RegionTable table(4);
  ASSERT_OK(table.Add(1, MakeMapping(&closed)));
  table.Close();
  EXPECT_EQ(closed, 1);
  EXPECT_EQ(table.Add(2, MakeMapping(&closed)).status().code(), absl::StatusCode::kUnauthenticated);
}

TEST(RegionTableTest, UsesAndRemovalsFromManyThreads) {
  std::atomic<int> closed{0};
  RegionTable table(1000);
  std::vector<std::thread> threads;
  for (uint64_t t = 1; t <= 4; ++t) {
    threads.emplace_back([&table, &closed, t] {
      for (int i = 0; i < 200; ++i) {
        EXPECT_OK(table.Add(t, MakeMapping(&closed)));
        CallRegions call(&table);
        for (uint64_t other = 1; other <= 4; ++other) call.Resolve(other).status().IgnoreError();
        EXPECT_OK(table.Remove(t));
        table.List();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(closed, 800);
}

}  // namespace
}  // namespace lossd
