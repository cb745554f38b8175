// The head on the GPU: exponentials in the product's epilogue, and bits that do not depend on the call.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu/cuda_runner.h"
#include "tests/gpu/parity.h"

namespace lossd {
namespace {

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

// Two rows in three have no advantage: their gradients are zeros, and the products are those of the others. Also where rows are masked, where
// all rows of all sequences come first, and where no row has one.
TEST_F(ExpEpilogueTest, RowsWithoutGradientLeave) {
  runner_.cuda().head().set_worth_waiting(0);
  const std::string kind = " clip_low=0.9 clip_high=20";
  for (const OptionCase& option_case : std::vector<OptionCase>{
           {"LinearPolicyLoss", "target advantage old_logprob", "kind=PPO" + kind, "", ""},
           {"LinearPolicyLoss", "target mask bias advantage old_logprob", "kind=PPO" + kind, "",
            ""},
           {"LinearPolicyLoss", "target advantage old_logprob cu_seqlens",
            "kind=GSPO gspo_gradient=DETACHED" + kind, "", ""}}) {
    for (const int one_in : {3, 1 << 30}) {
      v1::Op op = BuildCase(cpu_.registry(), option_case, {2100, 72, 1000, 0}, v1::BF16);
      v1::Tensor* advantage =
          op.mutable_linear_policy_loss()->mutable_policy()->mutable_advantage();
      std::vector<double> values = Elements(*advantage);
      for (size_t i = 0; i < values.size(); ++i) {
        if (static_cast<int>(i) % one_in != one_in - 1) values[i] = 0;
      }
      SetElements(values, advantage);
      SCOPED_TRACE(testing::PrintToString(option_case) + (one_in == 3 ? "" : ", none"));
      const auto want = cpu_.Run(op);
      ASSERT_TRUE(want.ok()) << want.status();
      const auto got = runner_.RunInMemory(op, RunOptions());
      ASSERT_TRUE(got.ok()) << got.status();
      // The library's products take multiples of 256.
      EXPECT_THAT(got->plan(), testing::ContainsRegex(one_in == 3 ? "gradient_rows=(512|768)"
                                                                  : "gradient_rows=256"));
      for (const auto& [output, tensor] : want->outputs()) {
        EXPECT_LE(Distance(got->outputs().at(output), tensor, false),
                  ToleranceOf("", output, v1::BF16))
            << output;
      }
    }
  }
}

// Few tokens have most of the mass: what is left out is little, and with a bound of almost nothing it is nothing.
TEST_F(ExpEpilogueTest, FilteredGradients) {
  for (const char* inputs : {"target", "target mask"}) {
    v1::Op op = Build(inputs, 40);
    const auto exact = runner_.RunInMemory(op, RunOptions());
    ASSERT_TRUE(exact.ok()) << exact.status();
    for (const double bound : {1e-12, 1e-3}) {
      for (const v1::DType dtype : {v1::F32, v1::BF16}) {
        v1::LinearGradients& gradients = *op.mutable_linear_cross_entropy()->mutable_gradients();
        gradients.mutable_grad_weight()->set_dtype(dtype);
        gradients.mutable_grad_hidden()->set_dtype(dtype);
        RunOptions options;
        options.gradient_filter = static_cast<float>(bound);
        const auto got = runner_.RunInMemory(op, options);
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_THAT(got->plan(), testing::HasSubstr("filter="));
        for (const auto& [output, tensor] : exact->outputs()) {
          const bool gradient = output.rfind("grad_", 0) == 0;
          EXPECT_LE(Distance(got->outputs().at(output), tensor, false), !gradient      ? 0
                                                                        : bound > 1e-6 ? 3e-2
                                                                                       : 3e-3)
              << inputs << " " << bound << " " << output;
        }
      }
    }
  }
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
            "kind=GSPO gspo_gradient=THROUGH_MEAN clip_low=0.9 clip_high=20 entropy_kind=TRUE "
            "entropy_coef=0.1",
            "", ""}}) {
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

// What another process has to find, too: run.sh compares two runs.
TEST(RestartTest, Digest) {
  CudaRunner runner(uint64_t{256} << 20);
  uint64_t digest = 14695981039346656037u;  // FNV-1a
  for (const OptionCase& c : std::vector<OptionCase>{
           {"LinearCrossEntropy", "target mask", "", "", ""},
           {"LinearCrossEntropy", "target bias", "label_smoothing=0.1", "", ""},
           {"LinearPolicyLoss", "target advantage old_logprob",
            "kind=PPO clip_low=0.9 clip_high=20", "", ""},
           {"LinearPolicyLoss", "target advantage old_logprob cu_seqlens",
            "kind=GSPO gspo_gradient=DETACHED clip_low=0.9 clip_high=20", "", ""}}) {
    const v1::Op op = BuildCase(runner.registry(), c, {700, 128, 4099, 0}, v1::BF16);
    const auto reply = RunBy(runner, Way::kInMemory, op);
    ASSERT_TRUE(reply.ok()) << c.op << ": " << reply.status();
    // In the order of names.
    const std::map<std::string, v1::Tensor> outputs(reply->outputs().begin(),
                                                    reply->outputs().end());
    for (const auto& [name, tensor] : outputs) {
      for (const char byte : tensor.inline_data()) {
        digest = (digest ^ static_cast<uint8_t>(byte)) * 1099511628211u;
      }
    }
  }
  std::printf("  digest %016llx\n", static_cast<unsigned long long>(digest));
}

// A row in one block; and in a cluster, of which there are fewer than rows. With a bias by the kernel for everything.
INSTANTIATE_TEST_SUITE_P(Cuda, InvarianceTest,
                         testing::Values(InvarianceCase{"target bias", 4099},
                                         InvarianceCase{"target bias", 18501},
                                         InvarianceCase{"target", 18501}));

}  // namespace
}  // namespace lossd
