#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <vector>

#include "gtest/gtest.h"

namespace lossd {
namespace {

TEST(ThreadPoolTest, RunsEachIndexOnce) {
  ThreadPool pool(4);
  EXPECT_EQ(pool.threads(), 4);
  for (const int64_t count : {0, 1, 2, 3, 4, 5, 1000}) {
    std::vector<std::atomic<int>> runs(count);
    std::atomic<bool> wrong_worker = false;
    pool.For(count, [&](int64_t i, int worker) {
      ++runs[i];
      if (worker < 0 || worker >= 4) wrong_worker = true;
    });
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(runs[i], 1) << i << " of " << count;
    EXPECT_FALSE(wrong_worker);
  }
}

// What a loop wrote, by any thread, is there after it and in the next loop.
TEST(ThreadPoolTest, LoopsFollowEachOther) {
  ThreadPool pool(3);
  std::vector<int64_t> values(257, 0);
  for (int round = 0; round < 500; ++round) {
    pool.For(static_cast<int64_t>(values.size()), [&](int64_t i, int) {
      values[i] = values[i] == round - 1 || round == 0 ? round : -1;
    });
  }
  for (const int64_t value : values) EXPECT_EQ(value, 499);
}

TEST(ThreadPoolTest, WorkersAreApart) {
  ThreadPool pool(4);
  std::vector<int64_t> sums(4, 0);  // unsynchronised: each worker has its own
  pool.For(10000, [&](int64_t i, int worker) { sums[worker] += i; });
  EXPECT_EQ(sums[0] + sums[1] + sums[2] + sums[3], 10000LL * 9999 / 2);
}

TEST(ThreadPoolTest, OneThreadIsTheCaller) {
  ThreadPool pool(1);
  const auto self = std::this_thread::get_id();
  pool.For(3, [&](int64_t, int) { EXPECT_EQ(std::this_thread::get_id(), self); });
}

}  // namespace
}  // namespace lossd
