// The CUDA backend against the conformance vectors and against the CPU backend. Usage: cuda_parity_test VECTORS_DIR [GoogleTest flags]
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/conformance/vectors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu/cuda_runner.h"
#include "tests/parity/cases.h"
#include "tests/testing/local_runner.h"
#include "tests/testing/request_builder.h"

namespace lossd {
namespace {

// Set by main.
std::string* vectors_directory = nullptr;

enum class Way { kInline, kInMemory, kEnqueued };

const char* NameOf(Way way) {
  return way == Way::kInline ? "inline" : way == Way::kInMemory ? "in memory" : "enqueued";
}

absl::StatusOr<v1::OpReply> RunBy(CudaRunner& runner, Way way, const v1::Op& op,
                                  bool batch_invariant = false) {
  RunOptions options;
  options.batch_invariant = batch_invariant;
  options.host_may_wait = way != Way::kEnqueued;
  return way == Way::kInline ? runner.Run(op, options) : runner.RunInMemory(op, options);
}

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

// ||a - b|| / ||b||; infinities and NaN must be at the same places. Of fp16, what lies within a rounding of overflow counts as equal.
// So do fp16's numbers below its normal range that are within two of their steps.
// Where numbers cancel (a mean logit), the norm is at least that of elements of 0.05.
double Distance(const v1::Tensor& a, const v1::Tensor& b, bool may_cancel) {
  const std::vector<double> x = Elements(a);
  const std::vector<double> y = Elements(b);
  if (x.size() != y.size()) return INFINITY;
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (b.dtype() == v1::F16 && x[i] * y[i] > 0 && std::abs(x[i]) > 6e4 && std::abs(y[i]) > 6e4)
      continue;
    if (b.dtype() == v1::F16 && std::abs(y[i]) < 6.2e-5 && std::abs(x[i] - y[i]) < 1.2e-7) continue;
    if (std::isfinite(x[i]) != std::isfinite(y[i])) return INFINITY;
    if (!std::isfinite(x[i])) continue;
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  const double least = may_cancel ? 0.05 * std::sqrt(static_cast<double>(x.size())) : 1e-6;
  return difference == 0 ? 0 : std::sqrt(difference) / std::max(std::sqrt(norm), least);
}

struct Shape {
  int64_t rows;
  int64_t hidden;
  int64_t vocab;
  uint64_t small_workspace;  // makes several chunks
};

// Reason beside each: the exact path; the library's 16-bit path with an odd hidden size; a ragged vocabulary over two blocks; many rows;
// several tiles of rows and columns, none of them whole.
constexpr Shape kExact = {7, 5, 11, 0};
constexpr Shape kOdd = {130, 77, 1000, 540000};
constexpr Shape kRagged = {40, 64, 32777, 4900000};
constexpr Shape kRows = {700, 96, 1536, 3 << 20};
constexpr Shape kTiles = {300, 72, 1000, 1400000};

std::string OutputsOf(const std::string& op) {
  const std::string gradients = "grad_hidden grad_weight grad_bias";
  if (op == "LinearLogprobBackward") return gradients;
  if (op == "LinearLogprob") {
    return "logprob lse entropy lse2 log_sum_p2 argmax correct max_prob mean_logit vocab_stats "
           "ids_logprob topk_ids topk_logprob";
  }
  if (op == "PolicyLoss") return "loss row_loss ratio d_logprob";
  const std::string pairs =
      "loss pair_loss chosen_logp rejected_logp chosen_reward rejected_reward ";
  const std::string sequences = "loss sequence_loss sequence_logp reward ";
  if (op == "PreferenceLoss") return pairs + "d_logprob";
  if (op == "UnpairedLoss") return sequences + "d_logprob";
  if (op == "LinearPreferenceLoss") return pairs + "logprob lse entropy " + gradients;
  if (op == "LinearUnpairedLoss") return sequences + "logprob lse entropy " + gradients;
  return "loss logprob lse entropy row_loss grad_student " + gradients;
}

// Those of the names that the operation has.
std::string Known(const OpSchema& schema, const std::string& names) {
  std::string known;
  for (const absl::string_view name : absl::StrSplit(names, ' ', absl::SkipEmpty())) {
    if (schema.Find(name) != nullptr) absl::StrAppend(&known, " ", name);
  }
  return known;
}

// The op with sensible extents; outputs that the case does not allow are left out.
v1::Op BuildCase(const Registry& registry, const OptionCase& c, const Shape& shape,
                 v1::DType model) {
  const OpSchema& schema = registry.Find(c.op)->schema();
  RequestBuilder builder;
  builder.dims["N"] = shape.rows;
  builder.dims["H"] = builder.dims["RefH"] = shape.hidden;
  builder.dims["V"] = builder.dims["VocabTotal"] = builder.dims["TeacherV"] = shape.vocab;
  builder.dims["TeacherH"] = shape.hidden + 8;
  RequestSpec spec;
  spec.op = c.op;
  spec.inputs = c.inputs + " " + c.added_inputs;
  spec.options = c.options + " " + c.added_options;
  spec.outputs = OutputsOf(c.op);
  if (spec.inputs.find("bias") == std::string::npos) {
    spec.outputs.resize(spec.outputs.rfind(" grad_bias") == std::string::npos
                            ? spec.outputs.size()
                            : spec.outputs.rfind(" grad_bias"));
  }
  spec.outputs = Known(schema, spec.outputs);
  // logprob is of a target.
  if (schema.Find("target") != nullptr && spec.inputs.find("target") == std::string::npos) {
    const size_t at = spec.outputs.find(" logprob");
    if (at != std::string::npos) spec.outputs.erase(at, 8);
  }
  spec.model = model;
  spec.seed = c.seed;
  v1::Op op = builder.Build(schema, spec);
  // Gradients in the model's type where the hidden size is odd, in fp32 elsewhere.
  for (const char* name : {"grad_hidden", "grad_weight", "grad_bias", "grad_student"}) {
    const FieldRule* rule = schema.Find(name);
    if (rule == nullptr || !HasField(*MutableRequest(&op), *rule) || shape.hidden % 2 == 0)
      continue;
    MutableTensor(MutableRequest(&op), *rule)->set_dtype(model);
  }
  // Logits of a few nats, whatever the hidden size.
  for (const char* name :
       {"hidden", "weight", "ref_hidden", "ref_weight", "teacher_hidden", "teacher_weight"}) {
    if (schema.Find(name) == nullptr || !HasField(*MutableRequest(&op), *schema.Find(name))) {
      continue;
    }
    v1::Tensor* tensor = MutableTensor(MutableRequest(&op), *schema.Find(name));
    std::vector<double> values = Elements(*tensor);
    for (double& value : values) value *= std::pow(5.0 / std::max<int64_t>(shape.hidden, 5), 0.25);
    SetElements(values, tensor);
  }
  return op;
}

// The backward op's lse and entropy as the forward op gives them: with others p is no probability, and fp16 overflows.
void UseForwardStatistics(LocalRunner& cpu, v1::Op* op) {
  if (!op->has_linear_logprob_backward()) return;
  v1::LinearLogprobBackward& backward = *op->mutable_linear_logprob_backward();
  v1::Op forward;
  v1::LinearLogprob& logprob = *forward.mutable_linear_logprob();
  *logprob.mutable_linear() = backward.linear();
  *logprob.mutable_head() = backward.head();
  for (v1::Tensor* output : {logprob.mutable_lse(), logprob.mutable_entropy()}) {
    *output = backward.lse();
    output->clear_inline_data();
  }
  const auto reply = cpu.Run(forward);
  if (!reply.ok()) return;  // the backward call is refused alike
  *backward.mutable_lse()->mutable_inline_data() = reply->outputs().at("lse").inline_data();
  if (backward.has_entropy()) {
    *backward.mutable_entropy()->mutable_inline_data() =
        reply->outputs().at("entropy").inline_data();
  }
}

double ToleranceOf(const std::string& op, const std::string& output, v1::DType model) {
  const bool is_gradient = output.rfind("grad_", 0) == 0;
  // Its gradient is made of signs: one whose difference is all rounding may be the other way round.
  if (is_gradient && op == "TotalVariation") return 5e-2;
  if (!is_gradient || model == v1::F32) return 3e-5;
  return model == v1::BF16 ? 5e-3 : 6e-4;
}

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
      {"TotalVariation", "", "student_kind=LOGITS teacher_kind=LOGITS", "", "temperature=1.5"}};
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

// Pairs that the lean kernel takes: a row in one block, in 8 blocks that end within a vector of columns, in 16.
struct LeanCase {
  const char* op;
  const char* options;
};

class LeanPairTest : public testing::TestWithParam<LeanCase> {
 protected:
  static bool HasHead() { return std::string(GetParam().op) == "LinearDistillLoss"; }

  void Compare(int64_t rows, int64_t vocab, v1::DType model, const std::string& added) {
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
    const std::string name = testing::PrintToString(option_case) + " " + v1::DType_Name(model) +
                             " V " + std::to_string(vocab);
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

// The product with exponentials in its epilogue where a row's reference, its target's logit, lies far below the largest logit; where rows that
// do not count hold NaNs; and where a row's gradient is zero though its logits are none.
class ExpEpilogueTest : public testing::Test {
 protected:
  static constexpr int64_t kRowCount = 600;

  v1::Op Build(const char* inputs, double scale) {
    const OptionCase option_case = {"LinearCrossEntropy", inputs, "", "", ""};
    v1::Op op = BuildCase(cpu_.registry(), option_case, {kRowCount, 72, 1000, 0}, v1::BF16);
    op.mutable_linear_cross_entropy()->clear_label_smoothing();
    v1::Tensor* hidden = op.mutable_linear_cross_entropy()->mutable_linear()->mutable_hidden();
    std::vector<double> values = Elements(*hidden);
    // Every third row by so much.
    for (size_t i = 0; i < values.size(); ++i) values[i] *= i / 72 % 3 == 0 ? scale : 1;
    SetElements(values, hidden);
    return op;
  }
  void Compare(const v1::Op& op, const char* plan = "epilogue=exp") {
    const auto want = cpu_.Run(op);
    ASSERT_TRUE(want.ok()) << want.status();
    for (const Way way : {Way::kInMemory, Way::kEnqueued}) {
      const auto got = RunBy(runner_, way, op);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_THAT(got->plan(), testing::HasSubstr(plan));
      for (const auto& [output, tensor] : want->outputs()) {
        EXPECT_LE(Distance(got->outputs().at(output), tensor, false),
                  ToleranceOf("", output, v1::BF16))
            << NameOf(way) << " " << output;
      }
    }
  }

  LocalRunner cpu_{uint64_t{1} << 30};
  CudaRunner runner_{uint64_t{256} << 20};
};

TEST_F(ExpEpilogueTest, ImpossibleTokens) {
  for (const double scale : {10.0, 40.0, 1000.0}) Compare(Build("target", scale));
  Compare(Build("target bias", 40));
}

// grad_weight in 16 bits with less memory than all rows want.
TEST_F(ExpEpilogueTest, SlicesOfTheVocabulary) {
  for (const char* inputs : {"target", "target bias mask"}) {
    v1::Op op = Build(inputs, 10);
    v1::LinearGradients& gradients = *op.mutable_linear_cross_entropy()->mutable_gradients();
    gradients.mutable_grad_weight()->set_dtype(v1::BF16);
    for (const uint64_t limit : {700000, 900000}) {
      runner_.cuda().device().workspace().SetLimit(limit);
      Compare(op, "slices of");
    }
    gradients.clear_grad_hidden();
    Compare(op, "slices of");
  }
}

TEST_F(ExpEpilogueTest, RowsOfNaN) {
  v1::Op op = Build("target mask d_loss", 1);
  v1::LinearCrossEntropy& request = *op.mutable_linear_cross_entropy();
  request.set_reduction(v1::REDUCTION_NONE);
  request.clear_loss();
  const std::vector<double> mask = Elements(request.head().mask());
  v1::Tensor* d_loss = request.mutable_d_loss();
  d_loss->set_shape(0, kRowCount);
  std::vector<double> upstream(kRowCount, 0.3);
  std::vector<double> hidden = Elements(request.linear().hidden());
  int uncounted = 0;
  for (int64_t r = 0; r < kRowCount; ++r) {
    const bool dead = r % 5 == 1;
    uncounted += mask[r] == 0;
    if (dead) upstream[r] = 0;
    if (dead || mask[r] == 0) std::fill_n(hidden.begin() + r * 72, 72, NAN);
  }
  ASSERT_GT(uncounted, 0);
  SetElements(upstream, d_loss);
  SetElements(hidden, request.mutable_linear()->mutable_hidden());
  Compare(op);
}

// A row's log-probability has the same bits in any call, by any operation.
struct InvarianceCase {
  const char* inputs;
  int64_t vocab;
};

class InvarianceTest : public testing::TestWithParam<InvarianceCase> {};

TEST_P(InvarianceTest, LogprobDoesNotDependOnTheCall) {
  CudaRunner runner(uint64_t{256} << 20);
  CudaRunner small(uint64_t{64} << 20);
  const OptionCase whole_case = {"LinearCrossEntropy", GetParam().inputs, "", "", ""};
  v1::Op whole =
      BuildCase(runner.registry(), whole_case, {700, 128, GetParam().vocab, 0}, v1::BF16);
  whole.mutable_linear_cross_entropy()->clear_entropy();
  const auto reference = RunBy(runner, Way::kInMemory, whole, true);
  ASSERT_TRUE(reference.ok()) << reference.status();
  const std::string want = reference->outputs().at("logprob").inline_data();

  const auto chunked = RunBy(small, Way::kEnqueued, whole, true);
  ASSERT_TRUE(chunked.ok()) << chunked.status();
  EXPECT_TRUE(chunked->outputs().at("logprob").inline_data() == want) << chunked->plan();

  // Rows 300 ... 316 alone, by another operation.
  constexpr int64_t kFirst = 300;
  constexpr int64_t kCount = 17;
  v1::Op part;
  const v1::LinearCrossEntropy& from = whole.linear_cross_entropy();
  v1::LinearLogprob& to = *part.mutable_linear_logprob();
  *to.mutable_linear() = from.linear();
  *to.mutable_head() = from.head();
  for (v1::Tensor* tensor :
       {to.mutable_linear()->mutable_hidden(), to.mutable_head()->mutable_target()}) {
    const size_t row = tensor->inline_data().size() / 700;
    tensor->set_shape(0, kCount);
    tensor->set_inline_data(tensor->inline_data().substr(kFirst * row, kCount * row));
  }
  to.mutable_logprob()->set_dtype(v1::F32);
  to.mutable_logprob()->add_shape(kCount);
  to.mutable_logprob()->set_inline_data("");
  const auto alone = RunBy(runner, Way::kInMemory, part, true);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_TRUE(alone->outputs().at("logprob").inline_data() == want.substr(kFirst * 4, kCount * 4));
}

// Operations whose gradients, or columns, need the logits again.
TEST(StatisticsTest, AreThoseOfEveryOperation) {
  CudaRunner runner(uint64_t{256} << 20);
  const Shape shape = {300, 128, 4099, 0};
  const auto logprob = [&](v1::Op op) {
    const auto reply = RunBy(runner, Way::kInMemory, op, true);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? reply->outputs().at("logprob").inline_data() : std::string();
  };
  const std::string want = logprob(
      BuildCase(runner.registry(), {"LinearCrossEntropy", "target", "", "", ""}, shape, v1::BF16));
  for (const OptionCase& c : std::vector<OptionCase>{
           {"LinearCrossEntropy", "target", "label_smoothing=0.1", "", ""},
           {"LinearLogprob", "target ids", "", "", "top_k=3"},
           {"LinearPolicyLoss", "target advantage old_logprob",
            "kind=PPO clip_low=0.9 clip_high=20 entropy_kind=TRUE entropy_coef=0.1", "", ""},
           {"LinearPolicyLoss", "target advantage old_logprob cu_seqlens",
            "kind=GSPO gspo_gradient=THROUGH_MEAN clip_low=0.9 clip_high=20 entropy_kind=TRUE entropy_coef=0.1", "", ""}}) {
    v1::Op op = BuildCase(runner.registry(), c, shape, v1::BF16);
    // The same head in each.
    const v1::Op model =
        BuildCase(runner.registry(), {"LinearCrossEntropy", "target", "", "", ""}, shape, v1::BF16);
    const auto copy = [&](auto* to) {
      *to->mutable_linear() = model.linear_cross_entropy().linear();
      *to->mutable_head()->mutable_target() = model.linear_cross_entropy().head().target();
    };
    if (op.has_linear_cross_entropy()) copy(op.mutable_linear_cross_entropy());
    if (op.has_linear_logprob()) {
      copy(op.mutable_linear_logprob());
      op.mutable_linear_logprob()->clear_vocab_stats();
    }
    if (op.has_linear_policy_loss()) copy(op.mutable_linear_policy_loss());
    EXPECT_TRUE(logprob(op) == want) << testing::PrintToString(c);
  }
}

// Also where rows are fetched while the row before is written, and without the statistics that only an entropy needs.
TEST_P(InvarianceTest, EveryRunHasTheSameBits) {
  LocalRunner cpu(uint64_t{1} << 30);
  CudaRunner runner(uint64_t{256} << 20);
  const OptionCase option_case = {"LinearCrossEntropy", GetParam().inputs, "", "", ""};
  v1::Op op = BuildCase(runner.registry(), option_case, {700, 128, GetParam().vocab, 0}, v1::BF16);
  op.mutable_linear_cross_entropy()->clear_entropy();
  const auto want = cpu.Run(op);
  ASSERT_TRUE(want.ok()) << want.status();
  const auto first = RunBy(runner, Way::kInMemory, op);
  ASSERT_TRUE(first.ok()) << first.status();
  for (const auto& [name, tensor] : want->outputs()) {
    EXPECT_LE(Distance(first->outputs().at(name), tensor, false), ToleranceOf("", name, v1::BF16))
        << name;
  }
  for (int i = 0; i < 5; ++i) {
    const auto again = RunBy(runner, Way::kInMemory, op);
    ASSERT_TRUE(again.ok()) << again.status();
    for (const auto& [name, tensor] : first->outputs()) {
      EXPECT_TRUE(tensor.inline_data() == again->outputs().at(name).inline_data()) << name;
    }
  }
}

// A row in one block; and in a cluster, of which there are fewer than rows. With a bias by the kernel for everything.
INSTANTIATE_TEST_SUITE_P(Cuda, InvarianceTest,
                         testing::Values(InvarianceCase{"target bias", 4099},
                                         InvarianceCase{"target bias", 18501},
                                         InvarianceCase{"target", 18501}));

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
