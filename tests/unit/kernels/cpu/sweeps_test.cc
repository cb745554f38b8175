// Every instruction set that this processor has, against the formulas in double.
#include "kernels/cpu/sweeps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace lossd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  int64_t columns;
  float softcap;
  bool bias;
};

// A row with room for whole groups; what lies behind the columns must not matter, so it is NaN.
struct Row {
  explicit Row(const Case& c, uint32_t seed = 1, float deviation = 3) {
    const int64_t padded = (c.columns + kColumnGroup - 1) / kColumnGroup * kColumnGroup;
    raw.assign(padded, std::nanf(""));
    bias.assign(padded, std::nanf(""));
    weight.assign(padded, std::nanf(""));
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, deviation);
    for (int64_t j = 0; j < c.columns; ++j) {
      raw[j] = normal(random);
      bias[j] = 0.3f * normal(random);
      weight[j] = j % 7 == 0 ? 0 : 0.5f + static_cast<float>(j % 3);
    }
    logits.columns = c.columns;
    logits.softcap = c.softcap;
    logits.logit_scale = 0.8f;
    logits.inverse_temperature = 1 / 1.3f;
    Point(c.bias);
  }
  void Point(bool use_bias) {
    logits.raw = raw.data();
    logits.bias = use_bias ? bias.data() : nullptr;
  }
  // In double, from the same fp32 inputs.
  double Z(int64_t j) const {
    double s = static_cast<double>(logits.logit_scale) *
               (static_cast<double>(raw[j]) + (logits.bias != nullptr ? bias[j] : 0));
    if (logits.softcap > 0) s = logits.softcap * std::tanh(s / logits.softcap);
    return s * logits.inverse_temperature;
  }
  double Slope(int64_t j) const {
    const double s = static_cast<double>(logits.logit_scale) *
                     (static_cast<double>(raw[j]) + (logits.bias != nullptr ? bias[j] : 0));
    const double t = logits.softcap > 0 ? std::tanh(s / logits.softcap) : 0;
    return (1 - t * t) * logits.logit_scale * logits.inverse_temperature;
  }

  std::vector<float> raw;
  std::vector<float> bias;
  std::vector<float> weight;
  LogitRow logits;
};

class SweepsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const Sweeps* tables[4];
    if (GetParam() >= AvailableSweeps(tables, 4)) GTEST_SKIP() << "this processor lacks the set";
    sweeps_ = tables[GetParam()];
  }
  const Sweeps* sweeps_ = nullptr;
};

// 1 and 15: tails only; 16, 17, 512, 513: ends of groups and blocks; 129920: a large vocabulary's rounding.
const Case kCases[] = {{1, 0, false},    {15, 0, true},      {16, 0, false},
                       {17, 5, true},    {512, 0, true},     {513, 2, true},
                       {1000, 0, false}, {129920, 0, false}, {129920, 30, true}};

TEST_P(SweepsTest, Statistics) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::string(sweeps_->name) + " " + std::to_string(c.columns));
    const Row row(c);
    double max = -HUGE_VAL;
    int64_t argmax = -1;
    for (int64_t j = 0; j < c.columns; ++j) {
      if (row.Z(j) > max) {
        max = row.Z(j);
        argmax = j;
      }
    }
    double sum = 0, sum_d = 0, sum_2 = 0, d_sum = 0, weighted = 0;
    for (int64_t j = 0; j < c.columns; ++j) {
      const double d = row.Z(j) - max;
      sum += std::exp(d);
      sum_d += std::exp(d) * d;
      sum_2 += std::exp(2 * d);
      d_sum += d;
      weighted += row.weight[j] * d;
    }
    RowStatistics stats;
    sweeps_->statistics(row.logits, &stats);
    const float weighted_d = sweeps_->weighted_d(row.logits, stats.max, row.weight.data());
    EXPECT_FALSE(stats.degenerate);
    EXPECT_EQ(stats.argmax, argmax);
    EXPECT_NEAR(stats.max, max, 1e-6 * std::abs(max) + 1e-6);
    EXPECT_NEAR(stats.sum_exp, sum, 2e-6 * sum);
    EXPECT_NEAR(stats.sum_exp_d, sum_d, 3e-6 * std::abs(sum_d) + 1e-6);
    EXPECT_NEAR(stats.sum_exp_2, sum_2, 3e-6 * sum_2);
    EXPECT_NEAR(stats.sum_d, d_sum, 2e-6 * std::abs(d_sum) + 1e-6);
    EXPECT_NEAR(weighted_d, weighted, 2e-6 * std::abs(weighted) + 1e-6);
  }
}

TEST_P(SweepsTest, CommonOffsetCostsNothing) {
  const Case c{1000, 0, false};
  Row row(c);
  for (int64_t j = 0; j < c.columns; ++j) row.raw[j] = std::round(row.raw[j] * 64) / 64;
  row.logits.logit_scale = row.logits.inverse_temperature = 1;
  RowStatistics near;
  sweeps_->statistics(row.logits, &near);
  for (int64_t j = 0; j < c.columns; ++j) row.raw[j] += 10000;  // exact
  RowStatistics far;
  sweeps_->statistics(row.logits, &far);
  EXPECT_EQ(far.max, near.max + 10000);
  EXPECT_EQ(far.sum_exp, near.sum_exp);
  EXPECT_EQ(far.sum_exp_d, near.sum_exp_d);
  EXPECT_EQ(far.sum_d, near.sum_d);
}

TEST_P(SweepsTest, TiesGoToTheSmallestColumn) {
  Row row({100, 0, false});
  row.raw[70] = row.raw[33] = row.raw[34] = row.raw[99] = 50;
  RowStatistics stats;
  sweeps_->statistics(row.logits, &stats);
  EXPECT_EQ(stats.argmax, 33);
}

TEST_P(SweepsTest, DegenerateRows) {
  for (const int64_t at : {3, 17, 39}) {  // first group, second, tail
    for (const float bad : {std::nanf(""), kInfinity}) {
      Row row({40, 0, false});
      row.raw[at] = bad;
      RowStatistics stats;
      sweeps_->statistics(row.logits, &stats);
      EXPECT_TRUE(stats.degenerate) << at;
      EXPECT_EQ(stats.argmax, -1);
      EXPECT_TRUE(std::isnan(stats.max) && std::isnan(stats.sum_exp) && std::isnan(stats.sum_d));
    }
  }
  Row row({40, 0, false});
  std::fill(row.raw.begin(), row.raw.end(), -kInfinity);
  RowStatistics stats;
  sweeps_->statistics(row.logits, &stats);
  EXPECT_TRUE(stats.degenerate);
  EXPECT_EQ(stats.max, -kInfinity);
  EXPECT_TRUE(std::isnan(stats.sum_exp));
}

TEST_P(SweepsTest, MinusInfinityHasNoProbability) {
  Row row({40, 0, false});
  row.raw[5] = row.raw[38] = -kInfinity;
  RowStatistics stats;
  sweeps_->statistics(row.logits, &stats);
  EXPECT_FALSE(stats.degenerate);
  EXPECT_TRUE(std::isfinite(stats.sum_exp) && std::isfinite(stats.sum_exp_d));
  EXPECT_EQ(stats.sum_d, -kInfinity);
  std::vector<float> weight(48, 1.0f);
  weight[5] = weight[38] = 0;
  EXPECT_TRUE(std::isfinite(sweeps_->weighted_d(row.logits, stats.max, weight.data())));
  GradientRow gradient;
  gradient.max = stats.max;
  gradient.sum_exp = stats.sum_exp;
  gradient.coefficients.c = 1;
  gradient.coefficients.h = 1;
  sweeps_->gradient(row.logits, gradient);
  EXPECT_EQ(row.raw[5], 0);
  EXPECT_EQ(row.raw[38], 0);
}

TEST_P(SweepsTest, Gradient) {
  for (const Case& c : kCases) {
    for (const bool weights : {false, true}) {
      SCOPED_TRACE(std::string(sweeps_->name) + " " + std::to_string(c.columns));
      Row row(c);
      const Row before(c);
      RowStatistics stats;
      sweeps_->statistics(row.logits, &stats);
      GradientRow g;
      g.max = stats.max;
      g.sum_exp = stats.sum_exp;
      g.coefficients = {1.1f, 0.9f, 0.01f, 0.3f, 1.7f};
      g.target = c.columns / 2;
      g.column_weight = weights ? row.weight.data() : nullptr;
      sweeps_->gradient(row.logits, g);
      const double lse = stats.max + std::log(static_cast<double>(stats.sum_exp));
      for (int64_t j = 0; j < c.columns; ++j) {
        const double log_p = before.Z(j) - lse;
        const double p = std::exp(log_p);
        const double dz = static_cast<double>(g.coefficients.c) * p -
                          (j == g.target ? g.coefficients.a : 0.0f) -
                          static_cast<double>(g.coefficients.u) * (weights ? row.weight[j] : 1) -
                          g.coefficients.h * p * (log_p + g.coefficients.entropy);
        ASSERT_NEAR(row.raw[j], dz * before.Slope(j), 3e-6 * (std::abs(dz) + 0.01) + 3e-7) << j;
      }
    }
  }
}

TEST_P(SweepsTest, SingleLogitsAreThoseOfTheSweep) {
  for (const float softcap : {0.0f, 4.0f}) {
    Row row({100, softcap, true});
    std::vector<float> all(100);
    sweeps_->logits(row.logits, 0, 100, all.data());
    for (int64_t j = 0; j < 100; ++j) {
      float one = 0;
      sweeps_->logits(row.logits, j, 1, &one);
      EXPECT_EQ(one, all[j]);
      EXPECT_NEAR(one, row.Z(j), 2e-6 * (1 + std::abs(row.Z(j))));
      EXPECT_NEAR(sweeps_->slope(row.logits, j), row.Slope(j), 1e-6);
    }
  }
}

// In the cap's tail 1 - tanh^2 is far below the rounding of tanh itself; infinite logits are finite behind it.
TEST_P(SweepsTest, SoftcapTail) {
  Row row({16, 1, false});
  row.logits.logit_scale = row.logits.inverse_temperature = 1;
  for (int j = 0; j < 16; ++j) row.raw[j] = static_cast<float>(j + 1);
  row.raw[15] = kInfinity;
  for (int64_t j = 0; j < 15; ++j) {
    const double cosh = std::cosh(static_cast<double>(row.raw[j]));
    EXPECT_NEAR(sweeps_->slope(row.logits, j) * cosh * cosh, 1, 3e-6) << j;
  }
  float z = 0;
  sweeps_->logits(row.logits, 15, 1, &z);
  EXPECT_EQ(z, 1);
  EXPECT_NEAR(sweeps_->slope(row.logits, 15), 0, 1e-30);
}

INSTANTIATE_TEST_SUITE_P(Sets, SweepsTest, testing::Values(0, 1, 2));

}  // namespace
}  // namespace lossd
