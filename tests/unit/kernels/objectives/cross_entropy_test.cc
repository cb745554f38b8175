// The formulas of cross entropy and of the statistics' gradient, differentiated in double; denominators and sums on small arrays.
#include "kernels/objectives/cross_entropy.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/objectives/logprob.h"
#include "kernels/objectives/team.h"

namespace lossd {
namespace {

constexpr int kColumns = 7;
constexpr int kTarget = 2;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

struct Coefficients {
  double c = 0, a = 0, u = 0, h = 0;
};

std::vector<double> Logits() { return {0.3, -1.2, 0.9, 2.1, -0.4, 0.0, 1.5}; }
const double kWeights[kColumns] = {1, 0.5, 2, 0, 1.5, 0.7, 1};

double LogSumExp(const std::vector<double>& z) {
  double sum = 0;
  for (const double value : z) sum += std::exp(value);
  return std::log(sum);
}

CrossEntropyInput<double> InputOf(const std::vector<double>& z, bool weights) {
  CrossEntropyInput<double> in;
  in.lse = LogSumExp(z);
  in.hard = in.lse - z[kTarget];
  in.inverse_valid = 1.0 / kColumns;
  in.class_weight = weights ? kWeights[kTarget] : 1;
  for (int j = 0; j < kColumns; ++j) {
    const double w = weights ? kWeights[j] : 1;
    in.weight_sum += w;
    in.smooth += w * (in.lse - z[j]);
  }
  return in;
}

TEST(CrossEntropyFormulaTest, CoefficientsAreTheDerivative) {
  for (const double smoothing : {0.0, 0.1, 1.0, 1.4}) {
    for (const double z_loss : {0.0, 0.3}) {
      for (const bool weights : {false, true}) {
        const auto fill = [&](CrossEntropyInput<double> in) {
          in.smoothing = smoothing;
          in.z_loss = z_loss;
          in.row_weight = 1.7;
          in.token_scale = 0.6;  // a constant
          return in;
        };
        const double g = 0.8, g_z = -0.5;
        const auto objective = [&](const std::vector<double>& z) {
          const auto value = CrossEntropy(fill(InputOf(z, weights)));
          return g * value.ce + g_z * value.z_term;
        };
        Coefficients k;
        CrossEntropyCoefficients(fill(InputOf(Logits(), weights)), g, g_z, &k);
        const double lse = LogSumExp(Logits());
        for (int j = 0; j < kColumns; ++j) {
          std::vector<double> up = Logits(), down = Logits();
          up[j] += 1e-5;
          down[j] -= 1e-5;
          const double expected = (objective(up) - objective(down)) / 2e-5;
          const double dz = k.c * std::exp(Logits()[j] - lse) - (j == kTarget ? k.a : 0) -
                            k.u * (weights ? kWeights[j] : 1);
          EXPECT_NEAR(dz, expected, 1e-8) << "column " << j << ", s " << smoothing;
        }
      }
    }
  }
}

TEST(CrossEntropyFormulaTest, FactorOfZeroRemovesItsTerm) {
  CrossEntropyInput<double> in;
  in.hard = kInfinity;
  in.smooth = kInfinity;
  in.lse = std::nan("");
  in.row_weight = 0;
  EXPECT_EQ(CrossEntropy(in).ce, 0);
  EXPECT_EQ(CrossEntropy(in).z_term, 0);
  in.row_weight = 1;
  in.token_scale = 0;  // p_y of a target at -infinity
  EXPECT_EQ(CrossEntropy(in).ce, 0);
  in.token_scale = 1;
  in.hard = 2;
  EXPECT_EQ(CrossEntropy(in).ce, 2);  // no smoothing, no z-loss
  Coefficients k;
  in.z_loss = 1;
  CrossEntropyCoefficients(in, 0.0, 0.0, &k);
  EXPECT_EQ(k.c, 0);
  EXPECT_EQ(k.a, 0);
}

TEST(LogprobFormulaTest, CoefficientsAreTheDerivative) {
  StatisticsGradient<double> d;
  d.logprob = 0.7;
  d.entropy = -0.4;
  d.lse = 0.2;
  d.mean_logit = 0.9;
  d.ids = 0.5 - 0.3;
  const int ids[] = {4, 1};
  const double d_ids[] = {0.5, -0.3};
  const auto objective = [&](const std::vector<double>& z) {
    const double lse = LogSumExp(z);
    double entropy = 0, mean = 0;
    for (const double value : z) {
      entropy -= std::exp(value - lse) * (value - lse);
      mean += value / kColumns;
    }
    return d.logprob * (z[kTarget] - lse) + d.entropy * entropy + d.lse * lse +
           d.mean_logit * mean + d_ids[0] * (z[ids[0]] - lse) + d_ids[1] * (z[ids[1]] - lse);
  };
  Coefficients k;
  LogprobCoefficients(d, 1.0 / kColumns, &k);
  const double lse = LogSumExp(Logits());
  double entropy = 0;
  for (const double z : Logits()) entropy -= std::exp(z - lse) * (z - lse);
  for (int j = 0; j < kColumns; ++j) {
    std::vector<double> up = Logits(), down = Logits();
    up[j] += 1e-5;
    down[j] -= 1e-5;
    const double log_p = Logits()[j] - lse;
    const double p = std::exp(log_p);
    double dz = k.c * p - (j == kTarget ? k.a : 0) - k.u - k.h * p * (log_p + entropy);
    for (int i = 0; i < 2; ++i) dz += ids[i] == j ? d_ids[i] : 0;
    EXPECT_NEAR(dz, (objective(up) - objective(down)) / 2e-5, 1e-8) << j;
  }
}

template <class T>
RowsView View(std::vector<T>* values, DType dtype) {
  RowsView view;
  view.present = true;
  view.data = values->data();
  view.dtype = dtype;
  view.rows = static_cast<int64_t>(values->size());
  view.lead_shape[0] = view.rows;
  view.lead_strides[0] = 1;
  return view;
}

class StagesTest : public testing::Test {
 protected:
  CrossEntropyScales Start(DenominatorFrom from, DenominatorFrom z_from) {
    CrossEntropyStartStage start;
    start.rows = 4;
    start.counted = counted_.data();
    start.count = &count_;
    start.target = View(&target_, DType::kI64);
    start.row_weight = View(&row_weight_, DType::kF32);
    start.class_weight = View(&class_weight_, DType::kF32);
    start.valid_vocab = 3;
    start.need_class_weight_sum = true;
    start.from = from;
    start.denominator = 5;
    start.z_from = z_from;
    start.z_denominator = 8;
    start.record = &record_;
    CrossEntropyScales scales;
    start.scales = &scales;
    SerialTeam team;
    start.Run(team, 0);
    return scales;
  }

  // Row 1 does not count; what lies in it would be an address.
  std::vector<uint8_t> counted_ = {1, 0, 1, 1};
  int64_t count_ = 3;
  std::vector<int64_t> target_ = {0, 1000000000, 2, 2};
  std::vector<float> row_weight_ = {1, kNan, 2, 0.5};
  std::vector<float> class_weight_ = {4, 2, 0.5, 100};  // the last id is not valid
  ResultRecord record_;
};

TEST_F(StagesTest, Denominators) {
  const double weights = 1 * 4 + 2 * 0.5 + 0.5 * 0.5;
  CrossEntropyScales scales = Start(DenominatorFrom::kGiven, DenominatorFrom::kSame);
  EXPECT_EQ(scales.inverse_denominator, 1.0 / 5);
  EXPECT_EQ(scales.inverse_z_denominator, 1.0 / 5);
  EXPECT_EQ(scales.row_weight_sum, weights);
  EXPECT_EQ(scales.class_weight_sum, 6.5);
  scales = Start(DenominatorFrom::kWeightSum, DenominatorFrom::kCount);
  EXPECT_EQ(scales.inverse_denominator, 1 / weights);
  EXPECT_EQ(scales.inverse_z_denominator, 1.0 / 3);
  scales = Start(DenominatorFrom::kCount, DenominatorFrom::kGiven);
  EXPECT_EQ(scales.inverse_denominator, 1.0 / 3);
  EXPECT_EQ(scales.inverse_z_denominator, 1.0 / 8);
  row_weight_ = {-1, 0, 0, 0};
  EXPECT_EQ(Start(DenominatorFrom::kWeightSum, DenominatorFrom::kSame).inverse_denominator, 0);
}

TEST_F(StagesTest, WrongTargetIsNotAnAddress) {
  target_[2] = int64_t{1} << 60;
  record_.code = 3;
  EXPECT_EQ(Start(DenominatorFrom::kWeightSum, DenominatorFrom::kSame).row_weight_sum, 0);
}

TEST_F(StagesTest, SumsAndMetrics) {
  std::vector<float> ce = {1, kNan, 2, 3};
  std::vector<float> z_term = {0.5, kNan, 0.25, 0.125};
  std::vector<uint8_t> degenerate = {0, 9, 1, 0};
  std::vector<float> values = {1, kNan, 0, 1, /* entropy */ 3, kNan, 7, 5};
  std::vector<uint64_t> population = {3, ~uint64_t{0}, 1, 3};
  std::vector<float> loss = {-1};
  CrossEntropyScales scales;
  scales.inverse_denominator = 0.5;
  scales.inverse_z_denominator = 2;
  CrossEntropyEndStage end;
  end.rows = 4;
  end.counted = counted_.data();
  end.ce = ce.data();
  end.z_term = z_term.data();
  end.degenerate = degenerate.data();
  end.metrics = {values.data(), population.data(), 4, 2};
  end.scales = &scales;
  end.loss = View(&loss, DType::kF32);
  end.record = &record_;
  ASSERT_EQ(end.Instances(), 3);
  SerialTeam team;
  for (int64_t i = 0; i < 3; ++i) end.Run(team, i);
  EXPECT_EQ(record_.sum, 6.875);
  EXPECT_EQ(record_.z_sum, 0.875);
  EXPECT_EQ(record_.count, 3);
  EXPECT_EQ(record_.degenerate_rows, 1);
  EXPECT_EQ(loss[0], 6 * 0.5 + 0.875 * 2);
  EXPECT_EQ(record_.metrics[0].sum, 2);
  EXPECT_EQ(record_.metrics[0].count, 3);
  EXPECT_EQ(record_.metrics[0].min, 0);
  EXPECT_EQ(record_.metrics[0].max, 1);
  // Row 2 is not in the population of the second metric.
  EXPECT_EQ(record_.metrics[1].sum, 8);
  EXPECT_EQ(record_.metrics[1].count, 2);
  EXPECT_EQ(record_.metrics[1].max, 5);

  // A sum without weight is 0, whatever the rows hold.
  scales.inverse_denominator = scales.inverse_z_denominator = 0;
  ce[0] = kInfinity;
  end.Run(team, 0);
  EXPECT_EQ(loss[0], 0);
}

TEST(MetricTest, NoPopulationIsZeroAndNanIsSeen) {
  std::vector<float> values = {1, kNan};
  std::vector<uint64_t> population = {0, 0};
  const MetricColumns columns = {values.data(), population.data(), 2, 1};
  SerialTeam team;
  MetricRecord record = {1, 1, 1, 1};
  ReduceMetric(team, columns, nullptr, 0, &record);
  EXPECT_EQ(record.count, 0);
  EXPECT_EQ(record.sum, 0);
  EXPECT_EQ(record.min, 0);
  EXPECT_EQ(record.max, 0);
  population = {1, 1};
  ReduceMetric(team, columns, nullptr, 0, &record);
  EXPECT_EQ(record.count, 2);
  EXPECT_TRUE(std::isnan(record.sum) && std::isnan(record.min) && std::isnan(record.max));
}

}  // namespace
}  // namespace lossd
