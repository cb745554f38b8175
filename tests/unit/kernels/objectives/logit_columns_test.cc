// The softmax in few instructions a column against its definition in double: whole rows, added up in parts as a GPU adds them.
#include "kernels/objectives/logit_columns.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace lossd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Row = std::vector<float>;

Row MakeRow(int columns, double offset, double spread, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(offset, spread);
  Row row(columns);
  for (float& v : row) v = static_cast<float>(normal(random));
  return row;
}

// Parts of `width` columns, each relative to its own largest, then moved to the row's.
template <bool kAll>
LogitSums SumsOf(const Row& row, float factor, int width) {
  std::vector<LogitSums> parts;
  for (size_t begin = 0; begin < row.size(); begin += width) {
    const size_t end = std::min(row.size(), begin + width);
    LogitSums part;
    for (size_t j = begin; j < end; ++j) part.max = std::max(part.max, row[j]);
    bool number = true;
    for (size_t j = begin; j < end; ++j) number = number && !std::isnan(row[j]);
    if (!number) part.max = NAN;
    const float reference = LogitReference(part.max, factor);
    for (size_t j = begin; j < end; ++j) {
      AddLogit<kAll>(row[j], factor, reference, &part);
      if (row[j] == part.max) part.argmax = std::min(part.argmax, static_cast<int>(j));
    }
    part.columns = static_cast<int>(end - begin);
    parts.push_back(part);
  }
  float max = -kInfinity;
  for (const LogitSums& part : parts) max = part.max > max || std::isnan(part.max) ? part.max : max;
  LogitSums total;
  total.max = max;
  for (const LogitSums& part : parts) {
    AddLogits<kAll>(RebasedLogits<kAll>(part, max, factor), &total);
  }
  return total;
}

struct Reference {
  double max = -INFINITY;
  double sum = 0, sum_d = 0, exp_d = 0, exp_2 = 0;
  int argmax = -1;
};

Reference ReferenceOf(const Row& row, double slope) {
  Reference out;
  for (size_t j = 0; j < row.size(); ++j) {
    if (row[j] * slope > out.max) out.max = row[j] * slope, out.argmax = static_cast<int>(j);
  }
  for (const float raw : row) {
    const double d = raw * slope - out.max;
    const double e = std::exp(d);
    out.sum += e;
    out.sum_d += d;
    if (e > 0) out.exp_d += e * d;
    out.exp_2 += e * e;
  }
  return out;
}

void ExpectStatistics(const Row& row, double slope, int width) {
  const float factor = static_cast<float>(slope) * kLog2E;
  // The factor as it is, rounded: the row's own temperature.
  const double exact = factor * std::log(2.0);
  const Reference want = ReferenceOf(row, exact);
  LogitSums sums = SumsOf<true>(row, factor, width);
  sums.target = row.back();
  const RowStatistics stats = StatisticsOfLogits<true>(sums, factor, true);
  const double scale = static_cast<double>(row.size());
  EXPECT_NEAR(stats.max, want.max, 2e-7 * std::abs(want.max));
  // One addition after the other: a warp's are a tree.
  EXPECT_NEAR(stats.sum_exp, want.sum, 6e-6 * want.sum);
  EXPECT_NEAR(stats.sum_exp_d, want.exp_d, 6e-5 * want.sum);
  EXPECT_NEAR(stats.sum_exp_2, want.exp_2, 6e-6 * want.exp_2);
  EXPECT_NEAR(stats.sum_d, want.sum_d, 1e-6 * scale * 30);
  const double target_d = row.back() * exact - want.max;
  EXPECT_NEAR(stats.target_d, target_d, 3e-6 + 1.2e-7 * std::abs(target_d));
  EXPECT_EQ(stats.argmax, want.argmax);
  EXPECT_FALSE(stats.degenerate);
  const RowStatistics few =
      StatisticsOfLogits<false>(SumsOf<false>(row, factor, width), factor, false);
  EXPECT_EQ(few.sum_exp, stats.sum_exp);
  EXPECT_EQ(few.max, stats.max);
}

TEST(LogitColumnsTest, SumsAreThoseOfTheDefinition) {
  for (const double offset : {0.0, -1000.0, 10000.0}) {
    for (const int width : {1, 7, 64, 5000}) {
      ExpectStatistics(MakeRow(3000, offset, 3, 5), 1, width);
      ExpectStatistics(MakeRow(257, offset, 1, 6), 0.7, width);
    }
  }
  // A part far below the others.
  Row row = MakeRow(100, 0, 1, 7);
  row[40] = 500;
  ExpectStatistics(row, 1, 10);
}

TEST(LogitColumnsTest, TheLargestColumnIsExactlyOne) {
  // The product of this logit and log2(e) is no fp32 number.
  for (const float raw : {0.1f, -7.3f, 12345.678f}) {
    const RowStatistics one =
        StatisticsOfLogits<true>(SumsOf<true>({raw}, kLog2E, 1), kLog2E, true);
    EXPECT_EQ(one.sum_exp, 1.0f);
    EXPECT_EQ(one.Entropy(), 0.0f);
    EXPECT_EQ(one.LogSumP2(), 0.0f);
    EXPECT_EQ(one.MaxProb(), 1.0f);
    EXPECT_EQ(one.sum_d, 0.0f);
    LogitSums certain = SumsOf<true>({raw - 900, raw, raw - 800}, kLog2E, 2);
    certain.target = raw;
    EXPECT_EQ(StatisticsOfLogits<true>(certain, kLog2E, true).Logprob(), 0.0f);
  }
}

TEST(LogitColumnsTest, InfinitiesAndNans) {
  Row row = MakeRow(50, 0, 1, 3);
  row[10] = -kInfinity;
  LogitSums sums = SumsOf<true>(row, kLog2E, 8);
  sums.target = -kInfinity;
  RowStatistics stats = StatisticsOfLogits<true>(sums, kLog2E, true);
  EXPECT_FALSE(stats.degenerate);
  EXPECT_TRUE(std::isfinite(stats.sum_exp_d));
  EXPECT_EQ(stats.sum_d, -kInfinity);
  EXPECT_EQ(stats.Logprob(), -kInfinity);
  // A part of nothing but -infinity says nothing.
  for (int j = 0; j < 16; ++j) row[j] = -kInfinity;
  EXPECT_FALSE(StatisticsOfLogits<true>(SumsOf<true>(row, kLog2E, 8), kLog2E, false).degenerate);
  for (const float bad : {kInfinity, NAN}) {
    Row wrong = row;
    wrong[30] = bad;
    stats = StatisticsOfLogits<true>(SumsOf<true>(wrong, kLog2E, 8), kLog2E, true);
    EXPECT_TRUE(stats.degenerate && std::isnan(stats.max) && std::isnan(stats.sum_exp));
    EXPECT_EQ(stats.argmax, -1);
  }
  stats = StatisticsOfLogits<true>(SumsOf<true>(Row(20, -kInfinity), kLog2E, 8), kLog2E, true);
  EXPECT_TRUE(stats.degenerate);
  EXPECT_EQ(stats.max, -kInfinity);
}

TEST(LogitColumnsTest, TheFirstOfEqualLogitsIsTheArgmax) {
  const Row row = {1, 3, 2, 3, 3};
  for (const int width : {1, 2, 3, 5}) {
    EXPECT_EQ(StatisticsOfLogits<true>(SumsOf<true>(row, kLog2E, width), kLog2E, false).argmax, 1);
  }
}

TEST(LogitColumnsTest, SlopesAreThoseOfTheCoefficients) {
  const double slope = 0.8;
  const float factor = static_cast<float>(slope) * kLog2E;
  Row row = MakeRow(200, 2, 3, 9);
  row[17] = -kInfinity;
  const Reference want = ReferenceOf(row, factor * std::log(2.0));
  const LogitSums sums = SumsOf<true>(row, factor, 16);
  const RowStatistics stats = StatisticsOfLogits<true>(sums, factor, false);
  for (const RowCoefficients& k :
       {RowCoefficients{0.5f, 0.5f, 0, 0, 0}, RowCoefficients{-0.7f, 0.2f, 0.01f, 0, 0},
        RowCoefficients{0.3f, 0.3f, 0.02f, 0.6f, stats.Entropy()},
        RowCoefficients{0, 1, 0.3f, 0, 0}, RowCoefficients{0, 0, 0, -0.4f, stats.Entropy()}}) {
    const LogitSlopes slopes =
        SlopesOfLogits(k, LogitReference(sums.max, factor), sums.sum, static_cast<float>(slope));
    for (size_t j = 0; j < row.size(); ++j) {
      const double d = row[j] * factor * std::log(2.0) - want.max;
      const double p = std::exp(d) / want.sum;
      double dz = k.c * p - k.u;
      if (p > 0) dz -= k.h * p * (d - std::log(want.sum) + k.entropy);
      const double g = dz * slope;
      const double tolerance = 3e-6 * (std::abs(k.c) + std::abs(k.h) * 10 + std::abs(k.a)) + 1e-8;
      const float column = !slopes.has_columns ? -slopes.offset
                           : k.h != 0          ? SlopeOfLogit<true>(slopes, row[j], factor)
                                               : SlopeOfLogit<false>(slopes, row[j], factor);
      EXPECT_NEAR(column, g, tolerance);
      const float target = k.h != 0 ? SlopeOfTarget<true>(slopes, row[j], factor)
                                    : SlopeOfTarget<false>(slopes, row[j], factor);
      EXPECT_NEAR(target, g - k.a * slope, tolerance);
    }
  }
}

TEST(LogitColumnsTest, AConfidentTargetKeepsItsGradient) {
  // p = 1 - 3e-6: with p itself rounded nothing would be left of p - 1 but noise.
  Row row(11, 0.0f);
  row[4] = 15;
  const LogitSums sums = SumsOf<false>(row, kLog2E, 11);
  const LogitSlopes slopes =
      SlopesOfLogits(RowCoefficients{1, 1, 0, 0, 0}, LogitReference(sums.max, kLog2E), sums.sum, 1);
  const double rest = 10 * std::exp(-15.0);
  const double want = -rest / (1 + rest);
  // The sum itself is rounded; p rounded before 1 is taken off would be off by twice that.
  EXPECT_NEAR(SlopeOfTarget<false>(slopes, 15, kLog2E), want, 0.1 * -want);
}

}  // namespace
}  // namespace lossd
