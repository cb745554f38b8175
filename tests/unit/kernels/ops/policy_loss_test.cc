// PolicyLoss and LinearPolicyLoss as whole operations, every kind: extreme tokens, nothing to count, one-token sequences, ties, the
// selection against a sort, and that both fronts give the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/objectives/policy_select.h"
#include "tests/testing/local_runner.h"
#include "tests/testing/matchers.h"
#include "tests/testing/request_builder.h"

namespace lossd {
namespace {

const std::vector<std::string>& Kinds() {
  static const auto* const kKinds = new std::vector<std::string>{
      "kind=PPO clip_low=0.2 clip_high=0.3",
      "kind=REINFORCE",
      "kind=GPG",
      "kind=GSPO clip_low=0.2 clip_high=0.3 gspo_gradient=THROUGH_MEAN",
      "kind=GSPO clip_low=0.2 clip_high=0.3 gspo_gradient=DETACHED",
      "kind=LUSPO clip_low=0.2 clip_high=0.3",
      "kind=CISPO cispo_high=1.3",
      "kind=SAPO",
      "kind=GMPO clip_low=0.4 clip_high=0.4",
      "kind=DPPO_TV clip_low=0.2 clip_high=0.2",
      "kind=DPPO_KL clip_low=0.05 clip_high=0.05",
      "kind=DRO dro_beta=0.5",
      "kind=VESPO",
      "kind=CLIP_COV clip_low=0.2 clip_high=0.3 cov_ratio=0.3 cov_low=-9 cov_high=9 cov_seed=3",
      "kind=KL_COV kl_cov_coef=0.5 cov_ratio=0.3"};
  return *kKinds;
}

bool IsKind(const std::string& options, const std::string& kind) {
  return (options + " ").find("kind=" + kind + " ") != std::string::npos;
}

class PolicyLossTest : public testing::Test {
 protected:
  const OpSchema& Schema(const std::string& op) { return runner_.registry().Find(op)->schema(); }

  v1::Op Build(const std::string& options, const std::string& more_inputs = "") {
    RequestSpec spec;
    spec.op = "PolicyLoss";
    spec.inputs = "mask old_logprob advantage cu_seqlens " + more_inputs;
    spec.options = options;
    spec.outputs = "loss row_loss d_logprob";
    v1::Op op = builder_.Build(Schema("PolicyLoss"), spec);
    Set(&op, "mask", std::vector<double>(builder_.dims["N"], 1));
    return op;
  }

  void Set(v1::Op* op, const std::string& name, const std::vector<double>& values) {
    SetElements(values, MutableTensor(MutableRequest(op), *Schema("PolicyLoss").Find(name)));
  }
  void SetRow(v1::Op* op, const std::string& name, int64_t row, double value) {
    v1::Tensor* tensor = MutableTensor(MutableRequest(op), *Schema("PolicyLoss").Find(name));
    std::vector<double> values = Elements(*tensor);
    values[row] = value;
    SetElements(values, tensor);
  }
  std::vector<double> Get(v1::Op* op, const std::string& name) {
    return Elements(*MutableTensor(MutableRequest(op), *Schema("PolicyLoss").Find(name)));
  }

  v1::OpReply Run(const v1::Op& op) {
    const auto reply = runner_.Run(op);
    EXPECT_OK(reply);
    return reply.ok() ? *reply : v1::OpReply();
  }

  static void ExpectFinite(const v1::OpReply& reply, const std::string& what) {
    for (const auto& [name, tensor] : reply.outputs()) {
      for (const double value : Elements(tensor)) {
        EXPECT_TRUE(std::isfinite(value)) << what << ": " << name << " is " << value;
      }
    }
    EXPECT_TRUE(std::isfinite(reply.sum())) << what;
  }

  static std::vector<double> Output(const v1::OpReply& reply, const std::string& name) {
    return Elements(reply.outputs().at(name));
  }

  LocalRunner runner_;
  RequestBuilder builder_;
};

TEST_F(PolicyLossTest, TokensOfNoProbability) {
  for (const std::string& kind : Kinds()) {
    for (const double advantage : {-1.0, 0.0, 1.0}) {
      v1::Op op = Build(kind);
      SetRow(&op, "logprob", 0, -1e4);
      Set(&op, "advantage", std::vector<double>(7, advantage));
      ExpectFinite(Run(op), kind);
    }
  }
}

TEST_F(PolicyLossTest, RatiosThatOverflow) {
  for (const std::string& kind : Kinds()) {
    v1::Op op = Build(kind, "sequence_pg_weight");
    SetRow(&op, "old_logprob", 0, -1e4);
    Set(&op, "advantage", std::vector<double>(7, 0));
    v1::OpReply reply = Run(op);
    ExpectFinite(reply, kind + ", A = 0");
    const bool pulls = IsKind(kind, "DRO") || IsKind(kind, "KL_COV");
    EXPECT_EQ(Output(reply, "loss")[0] != 0, pulls) << kind;
    // Behind a weight of 0 nothing is left, whatever the sign.
    for (const double advantage : {-1.0, 1.0}) {
      Set(&op, "advantage", std::vector<double>(7, advantage));
      Set(&op, "sequence_pg_weight", {0, 1, 1});
      reply = Run(op);
      ExpectFinite(reply, kind + ", W = 0");
      if (!IsKind(kind, "VESPO")) {
        EXPECT_EQ(Output(reply, "row_loss")[0], 0) << kind;
        EXPECT_EQ(Output(reply, "d_logprob")[1], 0) << kind;
      }
    }
    // A clip, a gate or a bound holds it for A > 0.
    if (IsKind(kind, "KL_COV")) continue;
    Set(&op, "sequence_pg_weight", {1, 1, 1});
    ExpectFinite(Run(op), kind + ", A > 0");
  }
}

TEST_F(PolicyLossTest, CertainTokens) {
  for (const std::string& kind : Kinds()) {
    v1::Op op = Build(kind);
    Set(&op, "logprob", std::vector<double>(7, 0));
    Set(&op, "old_logprob", std::vector<double>(7, 0));
    Set(&op, "advantage", std::vector<double>(7, 1.5));
    const v1::OpReply reply = Run(op);
    ExpectFinite(reply, kind);
    for (size_t i = 0; i < 7; ++i) {
      const double d = Output(reply, "d_logprob")[i];
      const bool selected = IsKind(kind, "CLIP_COV") && d == 0;
      // Policy equal to old: the derivative is -A in every kind.
      EXPECT_TRUE(selected || std::abs(d + 1.5) < 1e-6) << kind << " " << d;
    }
  }
}

TEST_F(PolicyLossTest, NothingCounts) {
  for (const std::string& kind : Kinds()) {
    for (const char* denominator : {"", " denominator_from=COUNT", " denominator_from=SEQUENCES"}) {
      v1::Op op = Build(kind + denominator);
      Set(&op, "mask", std::vector<double>(7, 0));
      for (const char* name : {"logprob", "old_logprob", "advantage"}) {
        Set(&op, name, std::vector<double>(7, NAN));
      }
      const v1::OpReply reply = Run(op);
      EXPECT_EQ(reply.count(), 0);
      EXPECT_EQ(reply.sequence_count(), 0);
      for (const auto& [name, tensor] : reply.outputs()) {
        for (const double value : Elements(tensor)) EXPECT_EQ(value, 0) << kind << " " << name;
      }
    }
  }
}

TEST_F(PolicyLossTest, NoRows) {
  builder_.dims["N"] = 0;
  for (const std::string& kind : Kinds()) {
    const v1::OpReply reply = Run(Build(kind + " denominator_from=COUNT"));
    EXPECT_EQ(Output(reply, "loss")[0], 0) << kind;
    EXPECT_EQ(reply.count(), 0);
  }
}

TEST_F(PolicyLossTest, EmptySequences) {
  for (const std::string& kind : Kinds()) {
    for (const char* weighting : {"", " sequence_weighting=INVERSE_LENGTH"}) {
      if (IsKind(kind, "LUSPO") && *weighting != 0) continue;
      v1::Op op = Build(kind + weighting);
      Set(&op, "cu_seqlens", {0, 0, 7, 7});
      const v1::OpReply reply = Run(op);
      ExpectFinite(reply, kind);
      EXPECT_EQ(reply.sequence_count(), 1);
      EXPECT_EQ(reply.count(), 7);
    }
  }
}

// With one token in each sequence its ratio is the token's.
TEST_F(PolicyLossTest, OneTokenSequences) {
  builder_.dims["B"] = 7;
  const std::string clip = " clip_low=0.5 clip_high=0.6";
  const v1::OpReply token = Run(Build("kind=PPO" + clip));
  for (const char* kind :
       {"kind=GSPO gspo_gradient=THROUGH_MEAN", "kind=GSPO gspo_gradient=DETACHED", "kind=LUSPO"}) {
    const v1::OpReply reply = Run(Build(kind + clip));
    for (const char* name : {"loss", "row_loss", "d_logprob"}) {
      EXPECT_EQ(Output(reply, name), Output(token, name)) << kind << " " << name;
    }
  }
  const v1::OpReply wide = Run(Build("kind=PPO clip_low=1 clip_high=1000"));
  const v1::OpReply gmpo = Run(Build("kind=GMPO clip_low=20 clip_high=20"));
  for (const char* name : {"loss", "row_loss", "d_logprob"}) {
    EXPECT_EQ(Output(gmpo, name), Output(wide, name)) << name;
  }
}

TEST_F(PolicyLossTest, TiesGoToTheFirstRows) {
  v1::Op op = Build("kind=KL_COV kl_cov_coef=0.5 cov_ratio=0.5");
  Set(&op, "logprob", std::vector<double>(7, -0.7));
  Set(&op, "old_logprob", std::vector<double>(7, -0.9));
  Set(&op, "advantage", std::vector<double>(7, 0.1));
  const std::vector<double> row_loss = Output(Run(op), "row_loss");
  const double r = std::exp(0.2);
  for (int i = 0; i < 7; ++i) {
    EXPECT_NEAR(row_loss[i], -0.1 * r + (i < 3 ? 0.5 * 0.2 : 0), 1e-6) << i;
  }
}

// Selection over many rows, with ties, against sorting.
TEST_F(PolicyLossTest, SelectionIsExact) {
  constexpr int kRows = 3000;
  builder_.dims["N"] = kRows;
  for (const bool kl : {true, false}) {
    const std::string options =
        kl ? "kind=KL_COV kl_cov_coef=0.5 cov_ratio=0.01"
           : "kind=CLIP_COV clip_low=0.4 clip_high=0.6 cov_ratio=0.02 cov_low=0.1 cov_high=1.5 "
             "cov_seed=11";
    v1::Op op = Build(options);
    std::vector<double> mask(kRows);
    std::vector<double> lp = Get(&op, "logprob");
    std::vector<double> a = Get(&op, "advantage");
    const std::vector<double> old = Get(&op, "old_logprob");
    for (int i = 0; i < kRows; ++i) {
      mask[i] = i % 7 != 2 ? 1 : 0;
      lp[i] = -0.125 * std::floor(8 * -lp[i]);  // many equal ones
      a[i] = i % 5 == 0 ? 0 : a[i] > 0 ? 1 : -0.5;
    }
    Set(&op, "mask", mask);
    Set(&op, "logprob", lp);
    Set(&op, "advantage", a);
    double mean_a = 0;
    double mean_lp = 0;
    int count = 0;
    for (int i = 0; i < kRows; ++i) {
      if (mask[i] == 0) continue;
      mean_a += a[i];
      mean_lp += lp[i];
      ++count;
    }
    mean_a /= count;
    mean_lp /= count;
    std::vector<int> rows;
    std::vector<double> cov(kRows);
    for (int i = 0; i < kRows; ++i) {
      cov[i] = (a[i] - mean_a) * (lp[i] - mean_lp);
      const double r = std::exp(lp[i] - old[i]);
      const bool clipped = std::min(std::max(r, 0.6), 1.6) * a[i] < r * a[i];
      if (mask[i] != 0 && (kl || (cov[i] > 0.1 && cov[i] < 1.5 && !clipped))) rows.push_back(i);
    }
    std::stable_sort(rows.begin(), rows.end(), [&](int x, int y) {
      return kl ? cov[x] > cov[y] : SplitMix64(11, x) < SplitMix64(11, y);
    });
    const int wanted = static_cast<int>((kl ? 0.01 : 0.02) * count);
    ASSERT_GT(static_cast<int>(rows.size()), wanted) << "a real choice";
    if (kl) {
      ASSERT_EQ(cov[rows[wanted - 1]], cov[rows[wanted]]) << "a tie at the border";
    }
    const std::set<int> selected(rows.begin(), rows.begin() + wanted);
    const std::vector<double> row_loss = Output(Run(op), "row_loss");
    for (int i = 0; i < kRows; ++i) {
      if (mask[i] == 0) continue;
      const double r = std::exp(lp[i] - old[i]);
      const bool in = selected.count(i) > 0;
      double want = -a[i] * r + (in ? 0.5 * std::abs(lp[i] - old[i]) : 0);
      if (!kl) want = in ? 0 : -std::min(r * a[i], std::min(std::max(r, 0.6), 1.6) * a[i]);
      EXPECT_NEAR(row_loss[i], want, 1e-5 * (1 + std::abs(want))) << i << (in ? " selected" : "");
    }
  }
}

// First numbers of the sequence for seed 0, as Vigna's reference gives them.
TEST(SplitMixTest, ReferenceSequence) {
  EXPECT_EQ(SplitMix64(0, 0), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(SplitMix64(0, 1), 0x6E789E6AA1B965F4u);
  EXPECT_EQ(SplitMix64(0, 2), 0x06C45D188009454Fu);
}

TEST_F(PolicyLossTest, BothFrontsGiveTheSameBits) {
  const std::string extra =
      " entropy_kind=TRUE entropy_coef=0.1 is_level=TOKEN is_mode=TRUNCATE is_max=1.5 "
      "kl_estimator=K3 kl_coef=0.2 denominator_from=COUNT";
  for (const std::string& kind : Kinds()) {
    RequestSpec spec;
    spec.op = "LinearPolicyLoss";
    spec.inputs =
        "target mask old_logprob advantage cu_seqlens ref_logprob sampler_logprob row_weight "
        "pg_weight sequence_pg_weight";
    spec.options = kind + extra;
    spec.outputs = "loss row_loss ratio importance_weight kl logprob entropy grad_hidden";
    v1::Op linear = builder_.Build(Schema("LinearPolicyLoss"), spec);
    const v1::OpReply with_head = Run(linear);
    v1::Op op;
    v1::PolicyLoss& request = *op.mutable_policy_loss();
    *request.mutable_policy() = linear.linear_policy_loss().policy();
    *request.mutable_mask() = linear.linear_policy_loss().head().mask();
    *request.mutable_results() = linear.linear_policy_loss().results();
    *request.mutable_logprob() = with_head.outputs().at("logprob");
    *request.mutable_entropy() = with_head.outputs().at("entropy");
    for (v1::Tensor* d : {request.mutable_d_logprob(), request.mutable_d_entropy()}) {
      *d = request.logprob();
      d->clear_inline_data();
    }
    const v1::OpReply given = Run(op);
    for (const char* name : {"loss", "row_loss", "ratio", "importance_weight", "kl"}) {
      EXPECT_EQ(given.outputs().at(name).inline_data(), with_head.outputs().at(name).inline_data())
          << kind << " " << name;
    }
    // The head's gradient from these derivatives is the one that it computes itself.
    v1::Op backward;
    v1::LinearLogprobBackward& request_back = *backward.mutable_linear_logprob_backward();
    *request_back.mutable_linear() = linear.linear_policy_loss().linear();
    *request_back.mutable_head() = linear.linear_policy_loss().head();
    *request_back.mutable_gradients() = linear.linear_policy_loss().gradients();
    *request_back.mutable_entropy() = request.entropy();
    *request_back.mutable_d_logprob() = given.outputs().at("d_logprob");
    *request_back.mutable_d_entropy() = given.outputs().at("d_entropy");
    v1::Op statistics;
    *statistics.mutable_linear_logprob()->mutable_linear() = request_back.linear();
    *statistics.mutable_linear_logprob()->mutable_head() = request_back.head();
    *statistics.mutable_linear_logprob()->mutable_lse() = request.d_logprob();
    *request_back.mutable_lse() = Run(statistics).outputs().at("lse");
    const std::vector<double> want = Output(Run(backward), "grad_hidden");
    const std::vector<double> got = Output(with_head, "grad_hidden");
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << kind;
  }
}

}  // namespace
}  // namespace lossd
