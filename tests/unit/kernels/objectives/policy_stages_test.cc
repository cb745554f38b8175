// Stages and row programs of the policy loss on small arrays: sequences, denominators, two passes against one, several threads in a team.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/objectives/policy.h"
#include "kernels/objectives/policy_select.h"
#include "kernels/objectives/statistics_rows.h"
#include "kernels/objectives/team.h"
#include "tests/testing/thread_team.h"

namespace lossd {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
RowsView View(std::vector<T>* values, DType dtype) {
  RowsView view;
  view.data = values->data();
  view.dtype = dtype;
  view.rows = static_cast<int64_t>(values->size());
  view.lead_shape[0] = view.rows;
  view.lead_strides[0] = 1;
  view.present = true;
  return view;
}

// Eight rows in four sequences: {0, 1, 2}, {}, {3} (row 3 does not count), {4, ..., 7} (row 5 does not).
struct Call {
  static constexpr int64_t kRows = 8;
  static constexpr int64_t kSequences = 4;
  std::vector<int64_t> cu_seqlens = {0, 3, 3, 4, 8};
  std::vector<uint8_t> counted = {1, 1, 1, 0, 1, 0, 1, 1};
  std::vector<float> lp = {-1, -0.5, -2, kNan, -0.25, kNan, -3, -1.5};
  std::vector<float> old = {-1.1f, -0.4f, -2.3f, kNan, -0.25f, kNan, -2, -1.7f};
  std::vector<float> sampler = {-1.2f, -0.5f, -2, kNan, -0.5f, kNan, -2.5f, -1.4f};
  std::vector<float> reference = {-1, -0.7f, -1.5f, kNan, -0.5f, kNan, -2.5f, -1};
  std::vector<float> sequence_advantage = {1.5f, kNan, kNan, -0.75f};
  std::vector<float> sequence_weight = {0.5f, kNan, kNan, 2};
  std::vector<float> d_loss = {3};
  std::vector<float> loss = {-77};
  std::vector<float> row_loss = std::vector<float>(kRows, -77);
  std::vector<float> importance_weight = std::vector<float>(kRows, -77);
  std::vector<RowStatistics> given = std::vector<RowStatistics>(kRows);
  std::vector<RowStatistics> kept = std::vector<RowStatistics>(kRows);
  std::vector<int32_t> sequence_of = std::vector<int32_t>(kRows, -1);
  std::vector<PolicySequence> sequence = std::vector<PolicySequence>(kSequences);
  std::vector<uint8_t> degenerate = std::vector<uint8_t>(kRows);
  std::vector<float> values = std::vector<float>(kPolicyMetrics * kRows);
  std::vector<uint64_t> population = std::vector<uint64_t>(kRows);
  std::vector<float> d_logprob = std::vector<float>(kRows);
  std::vector<float> d_entropy = std::vector<float>(kRows);
  std::vector<RowCoefficients> coefficients = std::vector<RowCoefficients>(kRows);
  PolicyTotals totals;
  ResultRecord record;
  PolicyProblem problem;

  Call() {
    for (int64_t i = 0; i < kRows; ++i) {
      given[i].target_d = lp[i];
      given[i].sum_exp_d = -1;  // entropy 1
    }
    problem.options.ratio_low = 0.8f;
    problem.options.ratio_high = 1.28f;
    problem.options.kl_estimator = KlEstimator::kK3;
    problem.options.kl_coef = 0.1f;
    problem.options.entropy_kind = EntropyKind::kTrue;
    problem.options.entropy_coef = 0.01f;
    problem.rows = kRows;
    problem.sequences = kSequences;
    problem.cu_seqlens = View(&cu_seqlens, DType::kI64);
    problem.old_logprob = View(&old, DType::kF32);
    problem.sampler_logprob = View(&sampler, DType::kF32);
    problem.ref_logprob = View(&reference, DType::kF32);
    problem.sequence_advantage = View(&sequence_advantage, DType::kF32);
    problem.sequence_weight = View(&sequence_weight, DType::kF32);
    problem.d_loss = View(&d_loss, DType::kF32);
    problem.loss = View(&loss, DType::kF32);
    problem.row_loss = View(&row_loss, DType::kF32);
    problem.importance_weight = View(&importance_weight, DType::kF32);
    problem.counted = counted.data();
    problem.sequence_of = sequence_of.data();
    problem.sequence = sequence.data();
    problem.totals = &totals;
    problem.degenerate = degenerate.data();
    problem.metrics = {values.data(), population.data(), kRows, kPolicyMetrics};
    problem.record = &record;
  }
};

template <class Stage>
void RunStage(const Stage& stage) {
  for (int64_t i = 0; i < stage.Instances(); ++i) {
    SerialTeam team;
    stage.Run(team, i);
  }
}

template <class Program>
void RunRows(const Program& program, Call* call) {
  for (int64_t i = 0; i < Call::kRows; ++i) {
    if (call->counted[i] == 0) continue;
    const RowStatistics stats =
        Program::kKnowsStatistics ? program.KnownStatistics(i) : call->given[i];
    call->coefficients[i] = program.Row(i, stats);
  }
}

void RunOnePass(Call* call) {
  RunStage(PolicySequenceStage{call->problem});
  RunStage(PolicyStartStage{call->problem});
  RunRows(PolicyRows{call->problem}, call);
  RunStage(PolicyEndStage{call->problem});
}

PolicyDerivatives Derivatives(Call* call) {
  return {View(&call->d_logprob, DType::kF32), View(&call->d_entropy, DType::kF32), {}};
}

void RunTwoPasses(Call* call) {
  PolicyProblem& problem = call->problem;
  problem.statistics = call->kept.data();
  RunRows(KeepStatisticsRows{problem.statistics}, call);
  RunStage(PolicySequenceStage{problem});
  RunStage(PolicyStartStage{problem});
  RunStage(PolicyRowStage{problem, Derivatives(call)});
  RunStage(PolicyEndStage{problem});
  RunRows(KeptGradientRows{problem.statistics, call->d_logprob.data(), call->d_entropy.data()},
          call);
}

TEST(PolicyStagesTest, CountsAndWeighsSequences) {
  Call call;
  call.problem.options.sequence_weighting = SequenceWeighting::kInverseLength;
  call.problem.options.denominator_from = PolicyDenominator::kSequences;
  RunOnePass(&call);
  EXPECT_EQ(call.record.count, 6);
  EXPECT_EQ(call.record.sequence_count, 2);
  EXPECT_EQ(call.sequence[0].length, 3);
  EXPECT_EQ(call.sequence[1].length, 0);
  EXPECT_EQ(call.sequence[2].length, 0);
  EXPECT_DOUBLE_EQ(call.sequence[0].omega, 0.5 / 3);
  EXPECT_DOUBLE_EQ(call.sequence[3].omega, 2.0 / 3);
  EXPECT_DOUBLE_EQ(call.totals.inverse_denominator, 0.5);
  EXPECT_DOUBLE_EQ(call.totals.scale, 1.5);
  double sum = 0;
  for (const int i : {0, 1, 2}) sum += 0.5 / 3 * call.row_loss[i];
  for (const int i : {4, 6, 7}) sum += 2.0 / 3 * call.row_loss[i];
  EXPECT_DOUBLE_EQ(call.record.sum, sum);
  EXPECT_FLOAT_EQ(call.loss[0], static_cast<float>(sum / 2));
  // Row 4: r = 1, A = -0.75, K3 at d = -0.25, entropy 1.
  const double kl = std::exp(-0.25) + 0.25 - 1;
  EXPECT_NEAR(call.row_loss[4], 0.75 + 0.1 * kl - 0.01, 1e-6);
  const double slope = 0.75 + 0.1 * (1 - std::exp(-0.25));
  EXPECT_NEAR(call.coefficients[4].a, -3.0 * (2.0 / 3) / 2 * slope, 1e-6);
  EXPECT_EQ(call.coefficients[4].c, call.coefficients[4].a);
  EXPECT_NEAR(call.coefficients[4].h, -0.01 * 3 * (2.0 / 3) / 2, 1e-8);
  EXPECT_EQ(call.coefficients[4].entropy, 1);
}

TEST(PolicyStagesTest, RowsThatDoNotCountAreNotTouched) {
  Call call;
  RunOnePass(&call);
  for (const int i : {3, 5}) {
    EXPECT_EQ(call.row_loss[i], -77);
    EXPECT_EQ(call.sequence_of[i], -1);
  }
  EXPECT_TRUE(std::isfinite(call.record.sum));
  for (int m = 0; m < kPolicyMetrics; ++m) {
    EXPECT_TRUE(std::isfinite(call.record.metrics[m].sum)) << m;
    EXPECT_TRUE(call.record.metrics[m].count == 6 || call.record.metrics[m].count == 0) << m;
  }
}

TEST(PolicyStagesTest, TwoPassesGiveTheBitsOfOne) {
  Call one;
  Call two;
  for (Call* call : {&one, &two}) {
    call->problem.options.is_level = ImportanceLevel::kSequenceMean;
    call->problem.options.is_row_filter = true;
    call->problem.options.is_row_min = 0.9f;
    call->problem.options.is_row_max = 1.5f;
  }
  RunOnePass(&one);
  RunTwoPasses(&two);
  EXPECT_EQ(std::memcmp(&one.record, &two.record, sizeof(ResultRecord)), 0);
  EXPECT_EQ(one.loss, two.loss);
  EXPECT_EQ(one.row_loss, two.row_loss);
  for (int64_t i = 0; i < Call::kRows; ++i) {
    EXPECT_EQ(std::memcmp(&one.coefficients[i], &two.coefficients[i], sizeof(RowCoefficients)), 0)
        << i;
  }
}

TEST(PolicyStagesTest, SequenceWeightsOfTheCurrentPolicy) {
  Call call;
  call.problem.old_logprob = RowsView();  // old = lp: the sums need the statistics
  call.problem.options.is_level = ImportanceLevel::kSequenceSum;
  RunTwoPasses(&call);
  // x = lp - sampler: 0.2, 0, 0 and 0.25, -0.5, -0.1.
  EXPECT_NEAR(call.importance_weight[1], std::exp(0.2), 1e-6);
  EXPECT_NEAR(call.importance_weight[7], std::exp(-0.35), 1e-6);
  EXPECT_NEAR(call.record.metrics[kPolicyRatio].sum, 6, 0) << "every ratio is exactly 1";
  call.problem.options.is_level = ImportanceLevel::kSequenceMean;
  call.problem.options.is_row_filter = true;
  call.problem.options.is_row_min = 1;
  call.problem.options.is_row_max =
      1.1f;  // the filter looks at the mean, e^0.067, not at the sum, e^0.2
  RunTwoPasses(&call);
  EXPECT_NEAR(call.importance_weight[1], std::exp(0.2 / 3), 1e-6);
  EXPECT_EQ(call.importance_weight[7], 0) << "its mean weight is below 1";
  EXPECT_EQ(call.record.metrics[kPolicyImportanceOutOfBounds].sum, 3);
}

TEST(PolicyStagesTest, OffPolicyGateLooksAtTheSequence) {
  Call call;
  call.problem.options.kl_coef = 0;
  call.problem.options.entropy_coef = 0;
  call.problem.options.has_off_policy_threshold = true;
  // Mean of sampler - lp in the last sequence: (-0.25 + 0.5 + 0.1) / 3 = 0.1167.
  call.problem.options.off_policy_threshold = 0.12f;
  RunTwoPasses(&call);
  EXPECT_NE(call.row_loss[4], 0);
  call.problem.options.off_policy_threshold = 0.11f;
  RunTwoPasses(&call);
  EXPECT_EQ(call.row_loss[4], 0);
  EXPECT_EQ(call.coefficients[4].a, 0);
  EXPECT_NE(call.row_loss[0], 0) << "A > 0 passes";
}

TEST(PolicyStagesTest, EntropyWithItsOwnDenominator) {
  Call call;
  call.problem.options.entropy_coef = 0.5f;
  call.problem.options.inverse_entropy_denominator = 0.25f;
  std::vector<uint8_t> entropy_mask = {1, 0, 1, 1, 0, 1, 1, 0};
  call.problem.entropy_mask = View(&entropy_mask, DType::kU8);
  RunOnePass(&call);
  EXPECT_EQ(call.record.metrics[kPolicyEntropy].count, 3);
  EXPECT_NEAR(call.loss[0], call.record.sum - 0.5 * 3 / 4, 1e-6);
  Call without;
  without.problem.options.entropy_kind = EntropyKind::kNone;
  RunOnePass(&without);
  EXPECT_EQ(call.row_loss, without.row_loss) << "the term is outside the tokens' losses";
  EXPECT_FLOAT_EQ(call.coefficients[6].h, -0.5f * 3 / 4) << "no sequence weight, but d_loss";
  EXPECT_EQ(call.coefficients[7].h, 0);
}

TEST(PolicyStagesTest, NothingIsWrittenAfterAnError) {
  Call call;
  call.record.code = 3;
  call.cu_seqlens = {0, 1 << 30, -5, 4, 8};
  std::vector<float> d_shared(Call::kRows, -77);
  std::vector<uint8_t> selected(Call::kRows, 7);
  call.problem.d_shared = d_shared.data();
  call.problem.selected = selected.data();
  RunStage(PolicySequenceStage{call.problem});
  RunStage(PolicyStartStage{call.problem});
  call.problem.statistics = call.kept.data();
  RunStage(PolicySelectStage{call.problem});
  RunStage(PolicyRowStage{call.problem, Derivatives(&call)});
  RunStage(PolicyShareStage{call.problem, View(&call.d_logprob, DType::kF32)});
  RunStage(PolicyEndStage{call.problem});
  EXPECT_EQ(d_shared[0], -77);
  EXPECT_EQ(selected[0], 7);
  EXPECT_EQ(call.loss[0], -77);
  EXPECT_EQ(call.row_loss[0], -77);
  EXPECT_EQ(call.sequence_of[0], -1);
  EXPECT_EQ(call.record.count, 0);
}

template <class Stage>
void RunThreads(const Stage& stage) {
  RunTeam(3, [&](auto& team) {
    for (int64_t i = 0; i < stage.Instances(); ++i) {
      stage.Run(team, i);
      team.Sync();
    }
  });
}

// As a GPU does it in one launch: the mask in place of what counts, sums of tiles of rows with columns of their own.
TEST(PolicyStagesTest, TilesGiveTheBitsOfStages) {
  Call stages;
  Call tiles;
  stages.problem.options.entropy_coef = tiles.problem.options.entropy_coef = 0.5f;
  stages.problem.options.inverse_entropy_denominator =
      tiles.problem.options.inverse_entropy_denominator = 0.25f;
  RunTwoPasses(&stages);

  PolicyProblem& problem = tiles.problem;
  problem.mask = View(&tiles.counted, DType::kU8);
  problem.counted = nullptr;
  problem.statistics = tiles.kept.data();
  RunRows(KeepStatisticsRows{problem.statistics}, &tiles);
  SerialTeam team;
  int64_t count = 0;
  int64_t sequences = 0;
  for (int64_t b = 0; b < problem.sequences; ++b) {
    const int64_t length = PolicySequenceStage::Gather(problem, team, b);
    count += length;
    sequences += length > 0 ? 1 : 0;
  }
  const PolicyTotals totals = PolicyStartStage::MakeTotals(problem, count, sequences);
  EXPECT_EQ(totals.count, stages.record.count);
  EXPECT_EQ(totals.sequences, stages.record.sequence_count);
  constexpr int64_t kTile = 3;
  std::vector<float> values(kTile * kPolicyMetrics);
  std::vector<uint64_t> population(kTile);
  PolicySums sums;
  std::vector<MetricSums> metrics(kPolicyMetrics);
  for (int64_t begin = 0; begin < Call::kRows; begin += kTile) {
    const MetricColumns columns = {values.data(), population.data(), kTile, kPolicyMetrics, begin};
    const int64_t end = std::min(begin + kTile, Call::kRows);
    for (int64_t i = begin; i < begin + kTile; ++i) {
      if (i < end && problem.IsCounted(i)) {
        PolicyRowStage::RunRow(problem, Derivatives(&tiles), i, totals, columns);
      } else {
        MetricRow(columns, i).End();
      }
    }
    sums.Add(PolicyEndStage::SumRows(problem, team, columns, begin, end));
    for (int m = 0; m < kPolicyMetrics; ++m) {
      metrics[m].Add(SumMetric(team, columns, nullptr, m));
    }
  }
  PolicyEndStage::Finish(problem, sums, totals);
  EXPECT_EQ(tiles.loss, stages.loss);
  EXPECT_EQ(tiles.row_loss, stages.row_loss);
  EXPECT_EQ(tiles.d_logprob, stages.d_logprob);
  EXPECT_NEAR(tiles.record.sum, stages.record.sum, 1e-12);
  for (int m = 0; m < kPolicyMetrics; ++m) {
    const MetricRecord result = metrics[m].Result();
    EXPECT_EQ(result.count, stages.record.metrics[m].count) << m;
    EXPECT_NEAR(result.sum, stages.record.metrics[m].sum, 1e-12) << m;
    EXPECT_EQ(result.min, stages.record.metrics[m].min) << m;
    EXPECT_EQ(result.max, stages.record.metrics[m].max) << m;
  }
}

// Before anybody has seen that cu_seqlens is wrong.
TEST(PolicyStagesTest, WrongBoundsAreNoAddresses) {
  Call call;
  call.cu_seqlens = {-5, int64_t{1} << 40, -1, 4, 9};
  SerialTeam team;
  EXPECT_EQ(PolicySequenceStage::Gather(call.problem, team, 0), 6) << "all rows";
  EXPECT_EQ(PolicySequenceStage::Gather(call.problem, team, 1), 0);
  EXPECT_EQ(PolicySequenceStage::Gather(call.problem, team, 2), 3);
  EXPECT_EQ(PolicySequenceStage::Gather(call.problem, team, 3), 3);
}

TEST(PolicyStagesTest, SelectionWithSeveralThreads) {
  for (const PolicyKind kind : {PolicyKind::kKlCov, PolicyKind::kClipCov}) {
    std::vector<uint8_t> selected[2];
    for (const int threads : {1, 3}) {
      Call call;
      PolicyProblem& problem = call.problem;
      std::vector<uint64_t> keys(Call::kRows);
      std::vector<uint8_t>& marks = selected[threads == 1 ? 0 : 1];
      marks.assign(Call::kRows, 7);
      problem.options.kind = kind;
      problem.options.cov_ratio = 0.5;
      problem.options.cov_low = -9;
      problem.options.cov_high = 9;
      problem.options.ratio_low = 0;
      problem.options.ratio_high = 100;
      problem.statistics = call.kept.data();
      problem.keys = keys.data();
      problem.selected = marks.data();
      RunRows(KeepStatisticsRows{problem.statistics}, &call);
      RunStage(PolicySequenceStage{problem});
      RunTeam(threads, [&](auto& team) { PolicySelectStage{problem}.Run(team, 0); });
      EXPECT_EQ(std::count(marks.begin(), marks.end(), 1), 3) << "half of six";
      EXPECT_EQ(marks[3] + marks[5], 0) << "rows that do not count";
    }
    EXPECT_EQ(selected[0], selected[1]);
  }
}

TEST(PolicyStagesTest, SeveralThreadsAgreeWithOne) {
  Call one;
  Call many;
  RunTwoPasses(&one);
  PolicyProblem& problem = many.problem;
  problem.statistics = many.kept.data();
  RunRows(KeepStatisticsRows{problem.statistics}, &many);
  RunThreads(PolicySequenceStage{problem});
  RunThreads(PolicyStartStage{problem});
  RunThreads(PolicyRowStage{problem, Derivatives(&many)});
  RunThreads(PolicyEndStage{problem});
  EXPECT_EQ(one.row_loss, many.row_loss);
  EXPECT_EQ(one.d_logprob, many.d_logprob);
  EXPECT_EQ(one.record.count, many.record.count);
  EXPECT_NEAR(one.record.sum, many.record.sum, 1e-12);
  for (int m = 0; m < kPolicyMetrics; ++m) {
    EXPECT_EQ(one.record.metrics[m].count, many.record.metrics[m].count) << m;
    EXPECT_NEAR(one.record.metrics[m].sum, many.record.metrics[m].sum, 1e-12) << m;
    EXPECT_EQ(one.record.metrics[m].min, many.record.metrics[m].min) << m;
    EXPECT_EQ(one.record.metrics[m].max, many.record.metrics[m].max) << m;
  }
}

}  // namespace
}  // namespace lossd
