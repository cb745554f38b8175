// The losses on sequences as operations: which rows are read, wrong data, reference heads, chunks, repeated calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/local_runner.h"
#include "tests/testing/matchers.h"
#include "tests/testing/request_builder.h"

namespace lossd {
namespace {

using google::protobuf::Message;

const double kNan = std::numeric_limits<double>::quiet_NaN();
const char kPairs[] = "pairing=HALVES terms[0].type=SIGMOID terms[0].beta=0.5";
const char kLikelihood[] = " nll_coef=0.7 nll_denominator_from=COUNT";

class SequenceLossesTest : public testing::Test {
 protected:
  v1::Op Build(const std::string& op, const std::string& inputs, const std::string& options,
               const std::string& outputs) {
    return builder_.Build(schema(op),
                          {.op = op, .inputs = inputs, .options = options, .outputs = outputs});
  }
  const OpSchema& schema(const std::string& op) { return runner_.registry().Find(op)->schema(); }
  v1::Tensor* Tensor(v1::Op* op, const std::string& name) {
    Message* request = MutableRequest(op);
    const std::string type = request->GetDescriptor()->name();
    return MutableTensor(request, *schema(type).Find(name));
  }
  void Set(v1::Op* op, const std::string& name, const std::vector<double>& values) {
    SetElements(values, Tensor(op, name));
  }
  // Rewrites all elements of one row.
  void SetRow(v1::Op* op, const std::string& name, int row, double value) {
    v1::Tensor* tensor = Tensor(op, name);
    std::vector<double> values = Elements(*tensor);
    const int width = static_cast<int>(values.size()) / 7;
    for (int j = 0; j < width; ++j) values[row * width + j] = value;
    SetElements(values, tensor);
  }
  std::vector<double> Output(const v1::OpReply& reply, const std::string& name) {
    return Elements(reply.outputs().at(name));
  }

  LocalRunner runner_;
  RequestBuilder builder_;
};

// Sequences of 7 rows: {0}, {1, 2}, {3, 4}, {5, 6}; the first two are chosen.
TEST_F(SequenceLossesTest, RowsOfTheLikelihoodAreReadInChosenSequencesOnly) {
  v1::Op op = Build("LinearPreferenceLoss", "target mask nll_mask ref_logprob",
                    absl::StrCat(kPairs, kLikelihood, " head_metrics=true"),
                    "loss logprob lse entropy grad_hidden grad_weight");
  Set(&op, "mask", {1, 0, 1, 1, 0, 1, 1});
  Set(&op, "nll_mask", {0, 1, 1, 1, 1, 1, 1});
  const auto clean = runner_.Run(op);
  ASSERT_OK(clean);
  EXPECT_EQ(clean->nll_count(), 2);
  EXPECT_EQ(clean->metrics().at("head_entropy").count(), 5) << "rows inside mask";
  const std::vector<double> grad = Output(*clean, "grad_hidden");
  for (const char* name : {"logprob", "lse", "entropy"}) {
    EXPECT_EQ(Output(*clean, name)[1], 0) << name << ": row 1 is of the likelihood alone";
    EXPECT_NE(Output(*clean, name)[2], 0) << name;
  }
  EXPECT_NE(grad[1 * 5], 0);
  EXPECT_EQ(grad[4 * 5], 0);

  // Row 4 is rejected and outside mask: it may hold anything.
  SetRow(&op, "hidden", 4, kNan);
  SetRow(&op, "target", 4, 1e9);
  SetRow(&op, "ref_logprob", 4, kNan);
  SetRow(&op, "ref_logprob", 1, kNan);
  const auto dirty = runner_.Run(op);
  ASSERT_OK(dirty);
  for (const auto& [name, tensor] : clean->outputs()) {
    EXPECT_EQ(tensor.inline_data(), dirty->outputs().at(name).inline_data()) << name;
  }
  // Row 1 is read.
  SetRow(&op, "target", 1, 1e9);
  const auto refused = runner_.Run(op);
  EXPECT_EQ(Refusal(refused), "INVALID_ARGUMENT target");
  EXPECT_EQ(GetErrorDetail(refused.status())->row(), 1);
}

TEST_F(SequenceLossesTest, WrongOffsetsAreRefusedAlsoWhereAMaskIsMadeOfThem) {
  for (const char* name : {"LinearPreferenceLoss", "PreferenceLoss"}) {
    const bool linear = std::string(name) != "PreferenceLoss";
    v1::Op op = Build(name, linear ? "target nll_mask ref_logprob" : "nll_mask ref_logprob",
                      absl::StrCat(kPairs, kLikelihood), "loss");
    for (const std::vector<double>& wrong : std::vector<std::vector<double>>{
             {1, 2, 3, 4, 7}, {0, 2, 1, 4, 7}, {0, 1, 2, 3, 6}, {0, -5, 1e15, 3, 7}}) {
      Set(&op, "cu_seqlens", wrong);
      EXPECT_EQ(Refusal(runner_.Run(op)), "INVALID_ARGUMENT cu_seqlens") << name;
    }
  }
}

// An empty sequence has a value: what it is multiplied by must be a number, even if no row counts.
TEST_F(SequenceLossesTest, WeightsAreCheckedWhereNoRowCounts) {
  v1::Op pairs = Build("PreferenceLoss", "mask ref_logprob pair_weight", kPairs, "loss d_logprob");
  Set(&pairs, "mask", std::vector<double>(7, 0));
  Set(&pairs, "pair_weight", {1, 3});
  const auto reply = runner_.Run(pairs);
  ASSERT_OK(reply);
  EXPECT_FLOAT_EQ(Output(*reply, "loss")[0], 4 * std::log(2.0));
  EXPECT_EQ(Output(*reply, "d_logprob"), std::vector<double>(7, 0));
  Set(&pairs, "pair_weight", {1, kNan});
  EXPECT_EQ(Refusal(runner_.Run(pairs)), "INVALID_ARGUMENT pair_weight");

  v1::Op single = Build("UnpairedLoss", "mask ref_logprob sequence_weight kl_baseline",
                        "type=KTO beta=0.5", "loss");
  Set(&single, "mask", std::vector<double>(7, 0));
  EXPECT_OK(runner_.Run(single));
  Set(&single, "sequence_weight", {1, kNan, 1});
  EXPECT_EQ(Refusal(runner_.Run(single)), "INVALID_ARGUMENT sequence_weight");
  Set(&single, "sequence_weight", {1, 1, 1});
  Set(&single, "kl_baseline", {kNan});
  EXPECT_EQ(Refusal(runner_.Run(single)), "INVALID_ARGUMENT kl_baseline");
}

TEST_F(SequenceLossesTest, NoRowsAndNoPairsAreLegal) {
  builder_.dims["N"] = 0;
  for (const int64_t pairs : {0, 2}) {
    builder_.dims["P"] = builder_.dims["B"] = pairs;
    for (const char* name : {"LinearPreferenceLoss", "PreferenceLoss"}) {
      const bool linear = std::string(name) != "PreferenceLoss";
      for (const char* type : {"SIGMOID", "AOT"}) {
        v1::Op op = Build(
            name, linear ? "target ref_hidden ref_weight" : "ref_logprob",
            absl::StrCat("pairing=HALVES terms[0].type=", type, " terms[0].beta=0.5", kLikelihood),
            linear ? "loss pair_loss grad_hidden grad_weight" : "loss pair_loss d_logprob");
        Set(&op, "cu_seqlens", std::vector<double>(2 * pairs + 1, 0));
        const auto reply = runner_.Run(op);
        ASSERT_OK(reply);
        EXPECT_FLOAT_EQ(Output(*reply, "loss")[0], static_cast<double>(pairs) * std::log(2.0));
        EXPECT_EQ(reply->count(), pairs);
        EXPECT_EQ(reply->nll_count(), 0);
        if (linear) {
          EXPECT_EQ(Output(*reply, "grad_weight"), std::vector<double>(55, 0));
        }
      }
    }
  }
}

// The reference head sees the head options, and only rows that count.
TEST_F(SequenceLossesTest, AReferenceHeadGivesTheLogprobOfItsOwnHead) {
  const std::string options = "temperature=0.7 softcap=2 logit_scale=1.3 valid_vocab=11";
  v1::Op reference = Build("LinearLogprob", "target mask bias", options, "logprob");
  const auto logprob = runner_.Run(reference);
  ASSERT_OK(logprob);
  builder_.dims["RefH"] = 5;
  v1::Op by_head = Build("LinearPreferenceLoss", "target mask ref_hidden ref_weight ref_bias",
                         absl::StrCat(kPairs, " ", options), "loss pair_loss grad_weight");
  for (const auto& [to, from] :
       {std::pair("ref_hidden", "hidden"), std::pair("ref_weight", "weight"),
        std::pair("ref_bias", "bias"), std::pair("target", "target"), std::pair("mask", "mask")}) {
    *Tensor(&by_head, to) = *Tensor(&reference, from);
  }
  v1::Op by_token = by_head;
  for (const char* name : {"ref_hidden", "ref_weight", "ref_bias"}) {
    const FieldRule* rule = schema("LinearPreferenceLoss").Find(name);
    Message* holder = MutableHolder(MutableRequest(&by_token), *rule);
    holder->GetReflection()->ClearField(holder, rule->descriptor);
  }
  v1::Tensor* given = Tensor(&by_token, "ref_logprob");
  *given = logprob->outputs().at("logprob");
  const auto want = runner_.Run(by_token);
  ASSERT_OK(want);
  SetRow(&by_head, "ref_hidden", 1, kNan);  // outside mask
  const auto got = runner_.Run(by_head);
  ASSERT_OK(got);
  for (const auto& [name, tensor] : want->outputs()) {
    EXPECT_EQ(tensor.inline_data(), got->outputs().at(name).inline_data()) << name;
  }
}

TEST_F(SequenceLossesTest, ChunksAndRepeatedCallsGiveTheSame) {
  builder_.dims["N"] = 61;
  builder_.dims["V"] = 3000;
  builder_.dims["H"] = 16;
  v1::Op op = Build("LinearPreferenceLoss", "target mask ref_hidden ref_weight",
                    absl::StrCat(kPairs, kLikelihood, " head_metrics=true"),
                    "loss pair_loss logprob grad_hidden grad_weight");
  LocalRunner small(700000);
  const auto whole = runner_.Run(op);
  const auto again = runner_.Run(op);
  const auto chunked = small.Run(op);
  ASSERT_OK(whole);
  ASSERT_OK(chunked);
  EXPECT_NE(chunked->plan(), whole->plan());
  for (const auto& [name, tensor] : whole->outputs()) {
    EXPECT_EQ(tensor.inline_data(), again->outputs().at(name).inline_data()) << name;
    const std::vector<double> a = Elements(tensor);
    const std::vector<double> b = Output(*chunked, name);
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_NEAR(a[i], b[i], 1e-5 * (1 + std::fabs(a[i]))) << name;
    }
  }
  EXPECT_EQ(whole->metrics().at("head_entropy").count(), 60);
}

// Thousands of pairs: the sorted types rank them in one go.
TEST_F(SequenceLossesTest, ManyPairsAreSorted) {
  constexpr int64_t kCount = 3000;
  builder_.dims["N"] = 4 * kCount;
  builder_.dims["P"] = kCount;
  v1::Op op = Build("PreferenceLoss", "ref_logprob",
                    "pairing=INTERLEAVED terms[0].type=AOT terms[0].beta=1", "loss pair_loss");
  const auto reply = runner_.Run(op);
  ASSERT_OK(reply);
  const std::vector<double> lp = Elements(*Tensor(&op, "logprob"));
  const std::vector<double> ref = Elements(*Tensor(&op, "ref_logprob"));
  std::vector<double> policy(kCount);
  std::vector<double> reference(kCount);
  for (int64_t k = 0; k < kCount; ++k) {
    policy[k] = lp[4 * k] + lp[4 * k + 1] - lp[4 * k + 2] - lp[4 * k + 3];
    reference[k] = ref[4 * k] + ref[4 * k + 1] - ref[4 * k + 2] - ref[4 * k + 3];
  }
  std::sort(policy.begin(), policy.end());
  std::sort(reference.begin(), reference.end());
  const std::vector<double> got = Output(*reply, "pair_loss");
  double sum = 0;
  for (int64_t k = 0; k < kCount; ++k) {
    const double want = std::log1p(std::exp(-(policy[k] - reference[k])));
    EXPECT_NEAR(got[k], want, 1e-5 * (1 + want)) << k;
    sum += want;
  }
  EXPECT_NEAR(Output(*reply, "loss")[0], sum, 1e-6 * sum);
}

// A token of probability 0, one of probability 1, and log-probabilities of -1e4: finite gradients.
TEST_F(SequenceLossesTest, ExtremeLogProbabilitiesStayFinite) {
  for (const char* type : {"SIGMOID", "HINGE", "NCA_PAIR", "BCO_PAIR", "SPPO_HARD", "IPO",
                           "DISCOPOP", "APO_ZERO", "APO_DOWN", "AOT", "AOT_UNPAIRED"}) {
    for (const char* score : {"REVERSE_KL", "JS"}) {
      if (std::string(score) == "JS" && (type[0] == 'A')) continue;
      v1::Op op = Build(
          "PreferenceLoss", "ref_logprob",
          absl::StrCat("pairing=HALVES terms[0].type=", type, " terms[0].beta=0.5 score=", score),
          "loss d_logprob");
      for (const std::vector<double>& lp :
           std::vector<std::vector<double>>{{-1e4, 0, 0, -1e4, -1e4, 0, 0},
                                            {0, 0, 0, 0, 0, 0, 0},
                                            {0, -1e4, -1e4, 0, 0, -1e4, 0}}) {
        Set(&op, "logprob", lp);
        const auto reply = runner_.Run(op);
        ASSERT_OK(reply);
        EXPECT_TRUE(std::isfinite(Output(*reply, "loss")[0])) << type;
        for (const double d : Output(*reply, "d_logprob")) EXPECT_TRUE(std::isfinite(d)) << type;
      }
    }
  }
}

}  // namespace
}  // namespace lossd
