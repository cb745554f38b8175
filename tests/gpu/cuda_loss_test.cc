// Losses on given log-probabilities on the GPU against the CPU backend.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu/parity.h"

namespace lossd {
namespace {

// Losses on given log-probabilities: a launch of one block, of a cluster, of a grid; groups of less than a warp's rows and of many blocks'.
class PlainLossTest : public testing::TestWithParam<Shape> {
 protected:
  static std::vector<OptionCase> Cases() {
    std::vector<OptionCase> cases;
    for (OptionCase c : OptionCases()) {
      if (c.op != "PolicyLoss" && c.op != "PreferenceLoss" && c.op != "UnpairedLoss") continue;
      if (c.seed % 2 == 0 && c.added_inputs.find("mask") == std::string::npos) {
        c.added_inputs += " mask";
      }
      cases.push_back(c);
    }
    return cases;
  }
  static void ExpectClose(double got, double want, const std::string& what) {
    if (std::isnan(want) && std::isnan(got)) return;
    EXPECT_NEAR(got, want, 2e-5 * std::max(1.0, std::abs(want))) << what;
  }

  LocalRunner cpu_{uint64_t{1} << 30};
  CudaRunner runner_{uint64_t{256} << 20};
};

TEST_P(PlainLossTest, AgreesWithTheCpu) {
  for (const OptionCase& c : Cases()) {
    const v1::Op op = BuildCase(cpu_.registry(), c, GetParam(), v1::F32);
    const std::string name = testing::PrintToString(c) + " N " + std::to_string(GetParam().rows);
    const auto want = cpu_.Run(op);
    const auto got = RunBy(runner_, Way::kEnqueued, op);
    ASSERT_EQ(want.status(), got.status()) << name;
    if (!want.ok()) continue;
    for (const auto& [output, tensor] : want->outputs()) {
      EXPECT_LE(Distance(got->outputs().at(output), tensor, true), 3e-5) << name << ", " << output;
    }
    EXPECT_EQ(got->count(), want->count()) << name;
    ExpectClose(got->sum(), want->sum(), name);
    for (const auto& [metric, numbers] : want->metrics()) {
      const v1::Metric& mine = got->metrics().at(metric);
      EXPECT_EQ(mine.count(), numbers.count()) << name << ", " << metric;
      ExpectClose(mine.sum(), numbers.sum(), name + ", " + metric);
      ExpectClose(mine.min(), numbers.min(), name + ", " + metric);
      ExpectClose(mine.max(), numbers.max(), name + ", " + metric);
    }
    // Enqueued calls are recorded and repeated where the memory is the same.
    for (const Way way : {Way::kInMemory, Way::kEnqueued, Way::kEnqueued}) {
      const auto again = RunBy(runner_, way, op);
      ASSERT_TRUE(again.ok()) << name << ": " << again.status();
      EXPECT_EQ(again->sum(), got->sum()) << name;
      for (const auto& [output, tensor] : got->outputs()) {
        EXPECT_TRUE(tensor.inline_data() == again->outputs().at(output).inline_data())
            << name << ": " << output << " differs between equal calls";
      }
    }
  }
}

// The first check that fails, with its first row, whoever sees it first.
TEST_P(PlainLossTest, ReportsTheSameError) {
  const auto spoil = [&](v1::Op* op, const char* field, int64_t row, double value) {
    const FieldRule* rule = cpu_.registry().Find("PolicyLoss")->schema().Find(field);
    v1::Tensor* tensor = MutableTensor(MutableRequest(op), *rule);
    std::vector<double> values = Elements(*tensor);
    values[row % values.size()] = value;
    SetElements(values, tensor);
  };
  const OptionCase c = {"PolicyLoss",
                        "advantage old_logprob cu_seqlens row_weight pg_weight sequence_weight",
                        "kind=PPO clip_low=0.2 clip_high=0.2", "", ""};
  const v1::Op op = BuildCase(cpu_.registry(), c, GetParam(), v1::F32);
  const int64_t rows = GetParam().rows;
  for (int spoiled = 1; spoiled < 16; ++spoiled) {
    v1::Op wrong = op;
    if (spoiled & 1) spoil(&wrong, "row_weight", rows - 1, NAN);
    if (spoiled & 1) spoil(&wrong, "row_weight", rows / 2, NAN);
    if (spoiled & 2) spoil(&wrong, "pg_weight", 3, -1);
    if (spoiled & 4) spoil(&wrong, "cu_seqlens", 1, 1e9);
    if (spoiled & 8) spoil(&wrong, "sequence_weight", 0, NAN);
    const auto want = cpu_.Run(wrong);
    ASSERT_FALSE(want.ok()) << spoiled;
    for (const Way way : {Way::kInMemory, Way::kEnqueued}) {
      EXPECT_EQ(RunBy(runner_, way, wrong).status(), want.status()) << spoiled;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, PlainLossTest,
                         testing::Values(Shape{7, 5, 11, 0}, Shape{513, 5, 11, 0, 40},
                                         Shape{4096, 5, 11, 0, 2}, Shape{5000, 5, 11, 0, 700},
                                         Shape{20000, 5, 11, 0, 3}, Shape{70001, 5, 11, 0, 50}));

}  // namespace
}  // namespace lossd
