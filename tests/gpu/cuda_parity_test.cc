// The CUDA backend against the conformance vectors and against the CPU backend. Usage: cuda_parity_test VECTORS_DIR [GoogleTest flags]
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "client/conformance/vectors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu/cuda_runner.h"
#include "tests/gpu/parity.h"
#include "tests/parity/cases.h"
#include "tests/testing/local_runner.h"
#include "tests/testing/request_builder.h"

namespace lossd {
namespace {

// Set by main.
std::string* vectors_directory = nullptr;

struct VectorsCase {
  uint64_t workspace_bytes;
  Way way;
  bool batch_invariant;
};

class VectorsTest : public testing::TestWithParam<VectorsCase> {};

TEST_P(VectorsTest, Pass) {
  CudaRunner runner(GetParam().workspace_bytes);
  const auto files = conformance::FindFiles(*vectors_directory);
  ASSERT_TRUE(files.ok()) << files.status();
  std::map<std::string, int> passed, failed, skipped;
  for (const std::string& file : *files) {
    const auto lines = conformance::ReadLines(file);
    ASSERT_TRUE(lines.ok()) << lines.status();
    for (const std::string& line : *lines) {
      const conformance::Outcome outcome = conformance::RunVector(line, [&](const v1::Op& op) {
        return RunBy(runner, GetParam().way, op, GetParam().batch_invariant);
      });
      if (outcome.kind == conformance::Outcome::kPassed) ++passed[outcome.op];
      if (outcome.kind == conformance::Outcome::kSkipped) ++skipped[outcome.op];
      if (outcome.kind != conformance::Outcome::kFailed) continue;
      ++failed[outcome.op];
      ADD_FAILURE() << outcome.id << ": " << outcome.text;
    }
  }
  for (const auto& op : runner.registry().ops()) {
    std::cout << "  " << op->name() << " " << NameOf(GetParam().way) << " workspace "
              << GetParam().workspace_bytes << (GetParam().batch_invariant ? " invariant" : "")
              << ": " << passed[op->name()] << " passed, " << failed[op->name()] << " failed, "
              << skipped[op->name()] << " skipped\n";
    EXPECT_GT(passed[op->name()], 0) << op->name();
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, VectorsTest,
                         testing::Values(VectorsCase{uint64_t{256} << 20, Way::kInline, false},
                                         VectorsCase{uint64_t{256} << 20, Way::kInMemory, true},
                                         VectorsCase{uint64_t{16} << 20, Way::kEnqueued, false}));

// Reason beside each: the exact path; the library's 16-bit path with an odd hidden size; a ragged vocabulary over two blocks; many rows;
// several tiles of rows and columns, none of them whole.
constexpr Shape kExact = {7, 5, 11, 0};
constexpr Shape kOdd = {130, 77, 1000, 540000};
constexpr Shape kRagged = {40, 64, 32777, 4900000};
constexpr Shape kRows = {700, 96, 1536, 3 << 20};
constexpr Shape kTiles = {300, 72, 1000, 1400000};

class ParityTest : public testing::Test {
 protected:
  void Compare(const OptionCase& c, const Shape& shape, v1::DType model) {
    v1::Op op = BuildCase(cpu_.registry(), c, shape, model);
    UseForwardStatistics(cpu_, &op);
    const std::string name = testing::PrintToString(c) + " " + v1::DType_Name(model) + " V " +
                             std::to_string(shape.vocab);
    auto want = cpu_.Run(op);
    small_.cuda().device().workspace().SetLimit(shape.small_workspace);
    for (const Way way : {Way::kInMemory, Way::kEnqueued}) {
      for (CudaRunner* runner : {&large_, &small_}) {
        auto got = RunBy(*runner, way, op);
        if (want.ok() != got.ok()) {
          ADD_FAILURE() << name << ": cpu " << want.status() << ", cuda " << got.status();
          continue;
        }
        if (!want.ok()) continue;
        ++compared_;
        const bool head = got->plan().find("chunks=") != std::string::npos;
        if (head && got->plan().find("chunks=1x") == std::string::npos) ++chunked_;
        sliced_ += got->plan().find("slices=") != std::string::npos ? 1 : 0;
        exps_ += got->plan().find("epilogue=exp") != std::string::npos ? 1 : 0;
        accumulators_ += got->plan().find("accumulator") != std::string::npos ? 1 : 0;
        for (const auto& [output, tensor] : want->outputs()) {
          const double distance =
              Distance(got->outputs().at(output), tensor, output.rfind("grad_", 0) != 0);
          worst_[v1::DType_Name(model) +
                 (output.rfind("grad_", 0) == 0 ? " gradients" : " values")] =
              std::max(worst_[v1::DType_Name(model) +
                              (output.rfind("grad_", 0) == 0 ? " gradients" : " values")],
                       distance);
          EXPECT_LE(distance, ToleranceOf(c.op, output, model))
              << name << ", " << NameOf(way) << ", " << output << ", plan " << got->plan();
        }
        auto again = RunBy(*runner, way, op);
        ASSERT_TRUE(again.ok());
        for (const auto& [output, tensor] : got->outputs()) {
          EXPECT_TRUE(tensor.inline_data() == again->outputs().at(output).inline_data())
              << name << ": " << output << " differs between equal calls";
        }
      }
    }
  }
  ~ParityTest() override {
    for (const auto& [what, distance] : worst_) {
      std::cout << "  worst " << what << ": " << distance << "\n";
    }
    std::cout << "  " << compared_ << " comparisons, " << chunked_ << " in several chunks, "
              << accumulators_ << " with an accumulator, " << exps_
              << " with exponentials in the epilogue\n";
    EXPECT_GT(chunked_ + sliced_, 0);
  }

  LocalRunner cpu_{uint64_t{1} << 30};
  CudaRunner large_{uint64_t{1} << 30};
  CudaRunner small_{uint64_t{24} << 20};
  std::map<std::string, double> worst_;
  int compared_ = 0;
  int chunked_ = 0;
  int accumulators_ = 0;
  int exps_ = 0;
  int sliced_ = 0;
};

TEST_F(ParityTest, EveryOptionInEveryType) {
  for (const OptionCase& c : OptionCases()) {
    if (IsLayerCase(c)) continue;  // layer_parity_test
    for (const v1::DType model : {v1::F32, v1::BF16, v1::F16}) {
      Compare(c, kExact, model);
      Compare(c, kOdd, model);
      if (model == v1::BF16) Compare(c, kTiles, model);
    }
  }
}

std::vector<OptionCase> MainCases() {
  return {
      {"LinearCrossEntropy", "target bias mask", "", "", "z_loss=0.05 label_smoothing=0.1"},
      {"LinearCrossEntropy", "target", "softcap=2", "temperature_rows", ""},
      {"LinearLogprob", "target ids", "", "", "top_k=3"},
      {"LinearLogprobBackward", "target d_logprob entropy d_entropy", "", "ids d_ids_logprob", ""},
      {"LinearPolicyLoss", "target advantage old_logprob ref_logprob",
       "kind=PPO clip_low=0.9 clip_high=20", "", "kl_estimator=K3 kl_coef=0.3"},
      {"LinearPreferenceLoss", "target ref_hidden ref_weight",
       "pairing=HALVES terms[0].type=SIGMOID terms[0].beta=0.1", "mask nll_mask",
       "nll_coef=0.5 nll_denominator=9"},
      {"LinearUnpairedLoss", "target ref_logprob kl_baseline", "type=KTO beta=0.1", "mask", ""},
      {"LinearDistillLoss", "teacher_hidden teacher_weight target", "divergence=JSD beta=0.4", "",
       "hard_weight=0.5 temperature=1.5"},
      {"LinearDistillLoss", "teacher_topk_ids teacher_topk_logprob", "divergence=REVERSE_KL", "",
       "tail=ZERO_OUTSIDE"},
      {"KlDivergence", "", "student_kind=LOGITS teacher_kind=LOGITS", "", "direction=REVERSE"},
      {"JensenShannon", "", "student_kind=LOGITS teacher_kind=LOGITS", "", "beta=0.4"},
      {"TotalVariation", "", "student_kind=LOGITS teacher_kind=LOGITS", "", "temperature=1.5"},
      {"CrossEntropy", "target mask", "", "", "z_loss=0.05 label_smoothing=0.1"},
      {"CrossEntropy", "target class_weight", "softcap=2", "temperature_rows",
       "label_smoothing=0.1"},
      {"Logprob", "target ids", "", "", "top_k=3"},
      {"LogprobBackward", "target d_logprob entropy d_entropy", "", "ids d_ids_logprob", ""}};
}

TEST_F(ParityTest, RaggedVocabulary) {
  for (const OptionCase& c : MainCases()) {
    for (const v1::DType model : {v1::F32, v1::BF16, v1::F16}) Compare(c, kRagged, model);
  }
}

TEST_F(ParityTest, ManyRows) {
  for (const OptionCase& c : MainCases()) {
    for (const v1::DType model : {v1::F32, v1::BF16, v1::F16}) Compare(c, kRows, model);
  }
}

// A teacher's logits beside the student's: dz of all rows lies in front of the slices of both.
TEST_F(ParityTest, DistillationInSlices) {
  for (const OptionCase& c : MainCases()) {
    if (c.op != "LinearDistillLoss") continue;
    for (const int64_t hidden : {96, 97}) Compare(c, {700, hidden, 1536, 6 << 20}, v1::BF16);
  }
  EXPECT_GT(sliced_, 0);
}

// Pairs that the lean kernel takes: a row in one block, in 8 blocks that end within a vector of columns, in 8 whole ones, in 16.
struct LeanCase {
  const char* op;
  const char* options;
};

class LeanPairTest : public testing::TestWithParam<LeanCase> {
 protected:
  static bool HasHead() { return std::string(GetParam().op) == "LinearDistillLoss"; }

  // Logits whose first guess at a reference misleads: the first columns of every warp are hidden, others lie far above the rest.
  void AddOutliers(int64_t vocab, v1::Op* op) {
    for (const char* side : {"student", "teacher"}) {
      const FieldRule* rule = cpu_.registry().Find(GetParam().op)->schema().Find(side);
      ASSERT_NE(rule, nullptr);
      v1::Tensor* tensor = MutableTensor(MutableRequest(op), *rule);
      std::vector<double> values = Elements(*tensor);
      for (size_t i = 0; i < values.size(); ++i) {
        const int64_t column = static_cast<int64_t>(i) % vocab;
        const int64_t row = static_cast<int64_t>(i) / vocab;
        if (column % 64 < 8 && row % 2 == 0) values[i] = -INFINITY;
        if (column > vocab / 2 && column < vocab / 2 + 9 && row % 3 == 0) values[i] += 150;
      }
      SetElements(values, tensor);
    }
  }

  void Compare(int64_t rows, int64_t vocab, v1::DType model, const std::string& added,
               bool outliers = false) {
    const bool head = HasHead();
    const OptionCase option_case = {
        GetParam().op, head ? "teacher_hidden teacher_weight mask" : "mask", GetParam().options,
        head && added.empty() ? "target" : "", added};
    v1::Op op = BuildCase(cpu_.registry(), option_case, {rows, 16, vocab, 0}, model);
    // The entropy needs sums of its own.
    if (head) op.mutable_linear_distill_loss()->mutable_outputs()->clear_entropy();
    // The gradient in the student's type, as a trainer has it.
    const FieldRule* grad = cpu_.registry().Find(GetParam().op)->schema().Find("grad_student");
    if (grad != nullptr) MutableTensor(MutableRequest(&op), *grad)->set_dtype(model);
    if (outliers) AddOutliers(vocab, &op);
    const std::string name = testing::PrintToString(option_case) + " " + v1::DType_Name(model) +
                             " V " + std::to_string(vocab) + (outliers ? " outliers" : "");
    const bool signs =
        name.find("TVD") != std::string::npos || name.find("TotalVariation") != std::string::npos;
    const auto want = cpu_.Run(op);
    ASSERT_TRUE(want.ok()) << name << ": " << want.status();
    const auto got = RunBy(runner_, Way::kInline, op);
    ASSERT_TRUE(got.ok()) << name << ": " << got.status();
    EXPECT_THAT(got->plan(), testing::HasSubstr("lean")) << name;
    for (const auto& [output, tensor] : want->outputs()) {
      const bool gradient = output.rfind("grad_", 0) == 0;
      // A column in which both sides agree to rounding may have either sign.
      const double tolerance = gradient && signs ? 5e-3 : ToleranceOf("", output, model);
      EXPECT_LE(Distance(got->outputs().at(output), tensor, !gradient), tolerance)
          << name << ", " << output;
    }
    for (int i = 0; i < 3; ++i) {
      const auto again = RunBy(runner_, Way::kInMemory, op);
      ASSERT_TRUE(again.ok()) << again.status();
      for (const auto& [output, tensor] : got->outputs()) {
        EXPECT_TRUE(tensor.inline_data() == again->outputs().at(output).inline_data())
            << name << ": " << output << " differs between equal calls";
      }
    }
  }

  LocalRunner cpu_{uint64_t{1} << 30};
  CudaRunner runner_{uint64_t{1} << 30};
};

TEST_P(LeanPairTest, AgreesWithTheCpu) {
  for (const v1::DType model : {v1::BF16, v1::F32}) {
    // More rows than clusters that run at once.
    Compare(1500, 1000, model, "");
    Compare(7, 1000, model, "temperature=1.7 temperature_squared=true");
    Compare(1, 16, model, "");
    Compare(9, 65600, model,
            HasHead() ? "valid_vocab=65571 teacher_valid_vocab=65571" : "valid_vocab=65571");
    Compare(70, 65600, model, "");
    Compare(5, 128256, model, "");
    Compare(40, 128256, model, "temperature=0.8");
    Compare(3, 151936, model, "");
    if (!HasHead()) {
      Compare(12, 1000, model, "", true);
      Compare(7, 65600, model, "", true);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cuda, LeanPairTest,
    testing::Values(LeanCase{"LinearDistillLoss", "divergence=FORWARD_KL"},
                    LeanCase{"LinearDistillLoss", "divergence=REVERSE_KL"},
                    LeanCase{"LinearDistillLoss", "divergence=MIXED mix_weight=0.3"},
                    LeanCase{"LinearDistillLoss", "divergence=JSD beta=0.4"},
                    LeanCase{"LinearDistillLoss", "divergence=TVD"},
                    LeanCase{"KlDivergence", "student_kind=LOGITS teacher_kind=LOGITS"},
                    LeanCase{"KlDivergence",
                             "student_kind=LOGITS teacher_kind=LOGITS direction=REVERSE"},
                    LeanCase{"JensenShannon", "student_kind=LOGITS teacher_kind=LOGITS beta=0.4"},
                    LeanCase{"TotalVariation", "student_kind=LOGITS teacher_kind=LOGITS"}));

}  // namespace
}  // namespace lossd

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::cerr << "usage: cuda_parity_test VECTORS_DIR\n";
    return 2;
  }
  const auto devices = lossd::CudaBackend::CountDevices();
  if (!devices.ok() || *devices == 0) {
    std::cout << "SKIPPED: no GPU\n";
    return 77;
  }
  std::string directory = argv[1];
  lossd::vectors_directory = &directory;
  return RUN_ALL_TESTS();
}
