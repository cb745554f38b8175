// The exact selection of the n smallest keys against a sort, with one thread and with several.
#include "kernels/objectives/radix_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "tests/testing/thread_team.h"

namespace lossd {
namespace {

std::vector<uint8_t> Sorted(const std::vector<uint64_t>& keys, const std::vector<uint8_t>& marked,
                            int64_t wanted) {
  std::vector<size_t> rows;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (marked[i] != 0) rows.push_back(i);
  }
  std::stable_sort(rows.begin(), rows.end(), [&](size_t a, size_t b) { return keys[a] < keys[b]; });
  std::vector<uint8_t> out(keys.size(), 0);
  for (int64_t k = 0; k < std::min<int64_t>(wanted, rows.size()); ++k) out[rows[k]] = 1;
  return out;
}

std::vector<uint8_t> Selected(const std::vector<uint64_t>& keys, std::vector<uint8_t> marked,
                              int64_t wanted, int threads) {
  const int64_t count = std::count(marked.begin(), marked.end(), 1);
  const auto rows = static_cast<int64_t>(keys.size());
  RunTeam(threads,
          [&](auto& team) { KeepSmallest(team, keys.data(), marked.data(), rows, count, wanted); });
  return marked;
}

TEST(RadixSelectTest, AgreesWithASort) {
  std::mt19937_64 random(3);
  const std::vector<std::vector<uint64_t>> alphabets = {
      {7},                                            // all equal: the first rows
      {0, ~uint64_t{0}},                              // two values
      {1, 2, 256, 257, 65536, uint64_t{1} << 32, 3},  // digits far apart
      {}};                                            // any number
  for (const auto& alphabet : alphabets) {
    for (const int64_t rows : {1, 2, 5, 63, 300, 70001}) {
      std::vector<uint64_t> keys(rows);
      std::vector<uint8_t> marked(rows);
      for (int64_t i = 0; i < rows; ++i) {
        keys[i] = alphabet.empty() ? random() : alphabet[random() % alphabet.size()];
        marked[i] = random() % 4 != 0 ? 1 : 0;
      }
      for (const int64_t wanted : {int64_t{1}, int64_t{2}, rows / 3 + 1, rows - 1, rows + 5}) {
        if (wanted < 1) continue;
        const std::vector<uint8_t> want = Sorted(keys, marked, wanted);
        EXPECT_EQ(Selected(keys, marked, wanted, 1), want) << rows << " " << wanted;
        if (rows <= 300) {
          EXPECT_EQ(Selected(keys, marked, wanted, 3), want) << rows << " " << wanted;
        }
      }
    }
  }
}

TEST(RadixSelectTest, FallingKeys) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double tiny = std::numeric_limits<double>::denorm_min();
  const std::vector<double> falling = {infinity, 1e300, 1.5,  1.0,  tiny,
                                       0.0,      -tiny, -1.0, -1e9, -infinity};
  for (size_t i = 1; i < falling.size(); ++i) {
    EXPECT_LT(FallingKey(falling[i - 1]), FallingKey(falling[i])) << i;
  }
  EXPECT_EQ(FallingKey(-0.0), FallingKey(0.0));
  EXPECT_GT(FallingKey(std::nan("")), FallingKey(-infinity));
  EXPECT_EQ(FallingKey(std::nan("")), FallingKey(-std::nan("")));
}

}  // namespace
}  // namespace lossd
