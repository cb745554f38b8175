#include "kernels/linear/bind_head.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

class BindHeadTest : public testing::Test {
 protected:
  BindHeadTest() {
    dims_.Set("N", 3);
    dims_.Set("H", 4);
    dims_.Set("V", 10);
    linear_.mutable_hidden();
    linear_.mutable_weight();
    head_.mutable_target();
  }
  std::string Check(ShardUse shard = ShardUse::kRefused) {
    return Refusal(CheckHead(linear_, head_, dims_, shard));
  }
  std::string CheckGrad() { return Refusal(CheckGradients(linear_, gradients_)); }

  Dims dims_;
  v1::LinearInput linear_;
  v1::HeadOptions head_;
  v1::LinearGradients gradients_;
};

TEST_F(BindHeadTest, PlainHead) {
  EXPECT_EQ(Check(), "OK");
  EXPECT_EQ(CheckGrad(), "OK");
  dims_.Set("N", 0);
  EXPECT_EQ(Check(), "OK");
}

TEST_F(BindHeadTest, Extents) {
  dims_.Set("V", 0);
  EXPECT_EQ(Check(), "INVALID_ARGUMENT weight");
  dims_.Set("H", 0);
  EXPECT_EQ(Check(), "INVALID_ARGUMENT hidden");
}

TEST_F(BindHeadTest, Vocabulary) {
  head_.set_valid_vocab(11);
  EXPECT_EQ(Check(), "INVALID_ARGUMENT valid_vocab");
  head_.set_valid_vocab(10);
  EXPECT_EQ(Check(), "OK");
  head_.set_vocab_start(1);
  EXPECT_EQ(Check(), "INVALID_ARGUMENT vocab_start");
  head_.clear_vocab_start();
  head_.set_vocab_total(9);
  EXPECT_EQ(Check(), "INVALID_ARGUMENT vocab_total");
  head_.set_vocab_total(12);
  EXPECT_EQ(Check(ShardUse::kRefused), "INVALID_ARGUMENT vocab_total");
  EXPECT_EQ(Check(ShardUse::kAllowed), "OK");
  head_.set_vocab_start(2);
  EXPECT_EQ(Check(ShardUse::kAllowed), "OK");
  EXPECT_TRUE(IsShard(head_, dims_));
  head_.set_vocab_start(3);
  EXPECT_EQ(Check(ShardUse::kAllowed), "INVALID_ARGUMENT vocab_start");
  head_.set_vocab_start(int64_t{1} << 62);
  EXPECT_EQ(Check(ShardUse::kAllowed), "INVALID_ARGUMENT vocab_start");
}

TEST_F(BindHeadTest, ValidColumnsOfAShard) {
  Binding nothing;
  head_.set_vocab_total(30);
  head_.set_vocab_start(10);
  for (const auto& [valid, columns] :
       {std::pair<int, int>{30, 10}, {20, 10}, {14, 4}, {10, 0}, {3, 0}}) {
    head_.set_valid_vocab(valid);
    const HeadProblem problem = BindHead(linear_, head_, dims_, nothing);
    EXPECT_EQ(problem.valid_columns, columns) << valid;
    EXPECT_EQ(problem.valid_vocab, valid);
  }
}

TEST_F(BindHeadTest, Temperature) {
  head_.mutable_temperature_rows();
  EXPECT_EQ(Check(), "OK");
  head_.set_temperature(1);  // its default says nothing
  EXPECT_EQ(Check(), "OK");
  head_.set_temperature(2);
  EXPECT_EQ(Check(), "INVALID_ARGUMENT temperature_rows");
  head_.clear_temperature_rows();
  EXPECT_EQ(Check(), "OK");
  head_.set_entropy_basis(v1::ENTROPY_BASIS_UNTEMPERED);
  EXPECT_EQ(Check(), "INVALID_ARGUMENT entropy_basis");
  head_.set_temperature(1);
  EXPECT_EQ(Check(), "OK");
  head_.clear_entropy_basis();
  head_.set_temperature(1e-300);  // 0 in fp32
  EXPECT_EQ(Check(), "INVALID_ARGUMENT temperature");
}

TEST_F(BindHeadTest, IgnoreIndexNeedsTarget) {
  head_.clear_target();
  EXPECT_EQ(Check(), "OK");
  head_.set_ignore_index(-100);
  EXPECT_EQ(Check(), "OK");
  head_.set_ignore_index(3);
  EXPECT_EQ(Check(), "INVALID_ARGUMENT ignore_index");
}

TEST_F(BindHeadTest, Gradients) {
  gradients_.mutable_grad_bias();
  EXPECT_EQ(CheckGrad(), "INVALID_ARGUMENT grad_bias");
  linear_.mutable_bias();
  EXPECT_EQ(CheckGrad(), "OK");
  gradients_.set_grad_weight_mode(v1::GRAD_MODE_ACCUMULATE);
  EXPECT_EQ(CheckGrad(), "INVALID_ARGUMENT grad_weight_mode");
  gradients_.mutable_grad_weight();
  EXPECT_EQ(CheckGrad(), "OK");
  gradients_.set_grad_bias_mode(v1::GRAD_MODE_ACCUMULATE);
  gradients_.clear_grad_bias();
  EXPECT_EQ(CheckGrad(), "INVALID_ARGUMENT grad_bias_mode");
  gradients_.set_grad_bias_mode(v1::GRAD_MODE_OVERWRITE);
  EXPECT_EQ(CheckGrad(), "OK");
  gradients_.set_grad_hidden_reduce(v1::GRAD_HIDDEN_REDUCE_SUM);
  EXPECT_EQ(CheckGrad(), "INVALID_ARGUMENT grad_hidden_reduce");
}

}  // namespace
}  // namespace lossd
