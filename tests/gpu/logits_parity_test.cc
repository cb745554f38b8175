// The operations on logits on the GPU against the CPU backend: by the lean kernels, and by the row pass for everything (batch_invariant).
// Rows begin anywhere within 16 bytes, lie in one block or in several that end within 16 bytes, are more than the clusters that run at once;
// gradients apart and over the logits. Part of cuda_parity_test.
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/cuda_runner.h"
#include "tests/gpu/parity.h"
#include "tests/testing/local_runner.h"
#include "tests/testing/request_builder.h"

namespace lossd {
namespace {

struct LogitsCase {
  const char* op;
  const char* inputs;
  std::string options;
  std::string outputs;
};

class LogitsTest : public testing::Test {
 protected:
  void Compare(const LogitsCase& c, int64_t rows, int64_t vocab, v1::DType model) {
    const OpSchema& schema = cpu_.registry().Find(c.op)->schema();
    RequestBuilder builder;
    builder.dims["N"] = rows;
    builder.dims["V"] = vocab;
    RequestSpec spec;
    spec.op = c.op;
    spec.inputs = c.inputs;
    spec.options = c.options;
    spec.outputs = c.outputs;
    spec.model = model;
    v1::Op op = builder.Build(schema, spec);
    const FieldRule* grad = schema.Find("grad_logits");
    if (grad != nullptr && HasField(*MutableRequest(&op), *grad)) {
      MutableTensor(MutableRequest(&op), *grad)->set_dtype(model);
    }
    UseForwardStatistics(cpu_, &op);
    const std::string name = std::string(c.op) + " " + c.options + " -> " + c.outputs + " " +
                             v1::DType_Name(model) + " V " + std::to_string(vocab);
    const auto want = cpu_.Run(op);
    ASSERT_TRUE(want.ok()) << name << ": " << want.status();
    for (const bool invariant : {false, true}) {
      RunOptions options;
      options.batch_invariant = invariant;
      const auto got = runner_.RunInMemory(op, options);
      ASSERT_TRUE(got.ok()) << name << ": " << got.status();
      EXPECT_EQ(got->plan().find("lean") == std::string::npos, invariant) << name << got->plan();
      for (const auto& [output, tensor] : want->outputs()) {
        const bool gradient = output == "grad_logits";
        const double distance = Distance(got->outputs().at(output), tensor, !gradient);
        const double tolerance = !gradient || model == v1::F32 ? 3e-5
                                 : model == v1::BF16           ? 5e-3
                                                               : 6e-4;
        worst_ = std::max(worst_, gradient ? 0.0 : distance);
        EXPECT_LE(distance, tolerance) << name << ", " << output << ", " << got->plan();
      }
      for (const std::vector<std::string>& donated :
           {std::vector<std::string>(), std::vector<std::string>{"logits"}}) {
        const auto again = runner_.RunInMemory(op, options, donated);
        ASSERT_TRUE(again.ok()) << name << ": " << again.status();
        for (const auto& [output, tensor] : got->outputs()) {
          EXPECT_TRUE(tensor.inline_data() == again->outputs().at(output).inline_data())
              << name << ": " << output << " differs" << (donated.empty() ? "" : " in place");
        }
      }
    }
  }
  ~LogitsTest() override { std::cout << "  worst value: " << worst_ << "\n"; }

  // All that the kernels tell apart.
  void CompareAll(int64_t rows, int64_t vocab, v1::DType model, const std::string& options = "") {
    const std::string few = "row_loss logprob lse";
    const std::string all = few + " entropy argmax";
    for (const std::string& values : {few, all}) {
      Compare({"CrossEntropy", "target mask row_weight", options, values}, rows, vocab, model);
      Compare({"CrossEntropy", "target mask", options, values + " loss grad_logits"}, rows, vocab,
              model);
    }
    Compare({"Logprob", "target mask", options, "logprob lse max_prob"}, rows, vocab, model);
    Compare({"Logprob", "target", options,
             "logprob entropy argmax mean_logit lse2 log_sum_p2 correct max_prob"},
            rows, vocab, model);
    Compare({"LogprobBackward", "target mask d_logprob d_mean_logit", options, "grad_logits"}, rows,
            vocab, model);
    Compare({"LogprobBackward", "target d_logprob entropy d_entropy d_lse", options, "grad_logits"},
            rows, vocab, model);
  }

  LocalRunner cpu_{uint64_t{1} << 30};
  CudaRunner runner_{uint64_t{256} << 20};
  double worst_ = 0;
};

TEST_F(LogitsTest, AgreesWithTheCpuAtAnyShape) {
  for (const v1::DType model : {v1::BF16, v1::F32, v1::F16}) {
    CompareAll(1500, 1000, model);
    CompareAll(7, 1003, model, "temperature=1.7 logit_scale=1.2");
    CompareAll(3, 1, model);
    CompareAll(5, 6, model, "valid_vocab=5 ignore_index=5");
    CompareAll(9, 50257, model);
    CompareAll(5, 65600, model, "valid_vocab=65571 ignore_index=65571");
  }
  CompareAll(33, 128256, v1::BF16);
  CompareAll(3, 262147, v1::BF16);
  CompareAll(3, 151936, v1::F32);
}

}  // namespace
}  // namespace lossd
