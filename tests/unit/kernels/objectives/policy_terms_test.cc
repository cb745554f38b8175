// The terms of the policy loss by hand: values, bounds, factors of 0, extreme tokens. Their derivatives over all options are in
// policy_token_test.cc.
#include "kernels/objectives/policy_terms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/objectives/policy_token.h"

namespace lossd {
namespace {

using Options = PolicyOptions<double>;
using Token = PolicyToken<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

Options Ppo() {
  Options o;
  o.kind = PolicyKind::kPpo;
  o.ratio_low = 1 - 0.2;
  o.ratio_high = 1 + 0.28;
  return o;
}

TEST(PolicyTermsTest, PpoByHand) {
  Options o = Ppo();
  Token t;
  t.lp = std::log(0.5);
  t.old = std::log(0.4);  // r = 1.25, within 0.8 ... 1.28
  t.advantage = 2;
  EXPECT_NEAR(EvaluatePolicyToken(o, t).loss, -2.5, 1e-14);
  EXPECT_NEAR(EvaluatePolicyToken(o, t).d_logprob, -2.5, 1e-14);
  t.old = std::log(0.25);  // r = 2: clipped for A > 0
  EXPECT_NEAR(EvaluatePolicyToken(o, t).loss, -2.56, 1e-14);
  EXPECT_EQ(EvaluatePolicyToken(o, t).d_logprob, 0);
  t.advantage = -1;  // not clipped from above for A < 0
  EXPECT_NEAR(EvaluatePolicyToken(o, t).loss, 2, 1e-14);
  EXPECT_NEAR(EvaluatePolicyToken(o, t).d_logprob, 2, 1e-14);
  o.ratio_cap = 1.5;
  EXPECT_NEAR(EvaluatePolicyToken(o, t).loss, 1.5, 1e-14);
  EXPECT_EQ(EvaluatePolicyToken(o, t).d_logprob, 0);
  t.old = std::log(0.8);  // r = 0.625 < 0.8: clipped from below for A < 0
  EXPECT_NEAR(EvaluatePolicyToken(o, t).loss, 0.8, 1e-14);
  EXPECT_EQ(EvaluatePolicyToken(o, t).d_logprob, 0);
}

TEST(PolicyTermsTest, BoundsAreInside) {
  Options o = Ppo();
  o.ratio_low = 0.5;
  o.ratio_high = 1.5;
  o.ratio_cap = 4;
  EXPECT_EQ(PpoTerm(o, Term<double>{1.5, 1.5}, 2.0).slope, -3);
  EXPECT_EQ(PpoTerm(o, Term<double>{std::nextafter(1.5, 2), 1.5}, 2.0).slope, 0);
  EXPECT_EQ(PpoTerm(o, Term<double>{0.5, 0.5}, -2.0).slope, 1);
  EXPECT_EQ(PpoTerm(o, Term<double>{std::nextafter(0.5, 0), 0.5}, -2.0).slope, 0);
  EXPECT_EQ(PpoTerm(o, Term<double>{4, 4}, -2.0).slope, 8);
  EXPECT_EQ(PpoTerm(o, Term<double>{std::nextafter(4, 5), 4}, -2.0).slope, 0);
  o.log_ratio_clamp = LogRatioClamp::kSymmetric;
  o.log_ratio_bound = 0.25;
  EXPECT_EQ(RatioTerm(o, 0.25).slope, std::exp(0.25));
  EXPECT_EQ(RatioTerm(o, -0.25).slope, std::exp(-0.25));
  EXPECT_EQ(RatioTerm(o, -0.26).slope, 0);
  o.log_ratio_clamp = LogRatioClamp::kUpper;
  EXPECT_EQ(RatioTerm(o, -7.0).slope, std::exp(-7.0));
  EXPECT_EQ(RatioTerm(o, 0.26).value, std::exp(0.25));
  EXPECT_EQ(RatioTerm(o, 0.26).slope, 0);
  Options kl;
  kl.kl_estimator = KlEstimator::kK1;
  kl.kl_in_clamp = 0.5;
  EXPECT_EQ(KlTerm(kl, -0.5, {1, 0}).slope, 1);
  EXPECT_EQ(KlTerm(kl, -0.75, {1, 0}).slope, 0);
  EXPECT_EQ(KlTerm(kl, -0.75, {1, 1}).weight_slope, 0)
      << "the weight's gradient goes with the clamp";
  kl.kl_out_clamp = 0.25;
  EXPECT_EQ(KlTerm(kl, 0.25, {1, 1}).slope, 1);
  EXPECT_EQ(KlTerm(kl, 0.25, {1, 1}).weight_slope, -0.25);
  EXPECT_EQ(KlTerm(kl, 0.5, {1, 1}).slope, 0);
  EXPECT_EQ(KlTerm(kl, 0.5, {1, 1}).weight_slope, 0);
  EXPECT_EQ(KlTerm(kl, 0.5, {1, 1}).value, -0.25);
}

TEST(PolicyTermsTest, KlByHand) {
  EXPECT_EQ(KlEstimate(KlEstimator::kK1, 0.5).value, -0.5);
  EXPECT_EQ(KlEstimate(KlEstimator::kK2, -0.5).value, 0.125);
  EXPECT_EQ(KlEstimate(KlEstimator::kK2, -0.5).slope, 0.5);
  EXPECT_NEAR(KlEstimate(KlEstimator::kK3, std::log(2)).value, 1 - std::log(2), 1e-15);
  EXPECT_NEAR(KlEstimate(KlEstimator::kK3, std::log(2)).slope, -1, 1e-15);
  EXPECT_EQ(KlEstimate(KlEstimator::kAbs, -0.5).value, 0.5);
  EXPECT_EQ(KlEstimate(KlEstimator::kAbs, -0.5).slope, 1);
  EXPECT_EQ(KlEstimate(KlEstimator::kAbs, 0.0).slope, 0);
  // Close to the reference nothing may cancel away.
  EXPECT_NEAR(KlEstimate(KlEstimator::kK3, 1e-3f).value, 5.00166708e-7f, 1e-9f);
  Options o;
  o.kl_estimator = KlEstimator::kK1;
  o.kl_straight_through = true;
  o.kl_in_clamp = 1;
  EXPECT_EQ(KlTerm(o, 3.0, {1, 0}).value, -1);
  EXPECT_EQ(KlTerm(o, 3.0, {1, 0}).slope, -3) << "K2's gradient, unclamped";
}

TEST(PolicyTermsTest, AZeroFactorRemovesItsTerm) {
  Options o = Ppo();
  o.kl_estimator = KlEstimator::kK3;
  o.kl_coef = 0;
  o.entropy_kind = EntropyKind::kSampledPlogp;
  o.entropy_coef = 0;
  Token t;
  t.lp = -2;
  t.old = -1e4;  // the ratio overflows
  t.kl_lp = t.lp;
  t.reference = 1e4;  // so does the K3 term
  t.advantage = 0;
  PolicyTokenResult<double> r = EvaluatePolicyToken(o, t);
  EXPECT_EQ(r.loss, 0);
  EXPECT_EQ(r.d_logprob, 0);
  EXPECT_EQ(r.d_entropy, 0);
  EXPECT_EQ(r.ratio, kInfinity);
  EXPECT_EQ(r.kl, kInfinity) << "the metric shows it";
  t.advantage = -1;
  t.pg_weight = 0;
  r = EvaluatePolicyToken(o, t);
  EXPECT_EQ(r.loss, 0);
  EXPECT_EQ(r.pg, 0);
  EXPECT_EQ(r.d_logprob, 0);
  t.pg_weight = 1;
  r = EvaluatePolicyToken(o, t);
  EXPECT_EQ(r.loss, kInfinity);
  EXPECT_EQ(r.d_logprob, kInfinity);
  t.row_weight = 0;
  r = EvaluatePolicyToken(o, t);
  EXPECT_EQ(r.loss, 0);
  EXPECT_EQ(r.d_logprob, 0);
  t.row_weight = 1;
  t.scale = 0;
  r = EvaluatePolicyToken(o, t);
  EXPECT_EQ(r.loss, kInfinity) << "d_loss and sequence weights are not part of the token's value";
  EXPECT_EQ(r.d_logprob, 0);
}

TEST(PolicyTermsTest, ExtremeTokens) {
  Options o = Ppo();
  Token t;
  t.lp = -1e4;
  t.old = -1;
  t.advantage = 1;
  EXPECT_EQ(EvaluatePolicyToken(o, t).loss, 0) << "r = 0";
  t.advantage = -1;
  EXPECT_NEAR(EvaluatePolicyToken(o, t).loss, 0.8, 1e-15);
  t.lp = -kInfinity;
  EXPECT_NEAR(EvaluatePolicyToken(o, t).loss, 0.8, 1e-15);
  EXPECT_EQ(EvaluatePolicyToken(o, t).d_logprob, 0);
  o.kl_estimator = KlEstimator::kK3;
  o.kl_coef = 1;
  t.kl_lp = t.lp;
  t.reference = -1;
  EXPECT_EQ(EvaluatePolicyToken(o, t).loss, kInfinity);
  o.kl_out_clamp = 10;
  EXPECT_NEAR(EvaluatePolicyToken(o, t).loss, 10.8, 1e-14);
  EXPECT_EQ(EvaluatePolicyToken(o, t).d_logprob, 0);
  // An overflowing ratio is clipped for A > 0.
  t.lp = -1;
  t.old = -1e4;
  t.advantage = 1;
  t.reference = t.kl_lp = t.lp;
  EXPECT_NEAR(EvaluatePolicyToken(o, t).loss, -1.28, 1e-15);
  EXPECT_EQ(EvaluatePolicyToken(o, t).d_logprob, 0);
  // ... and held by a clamp for A < 0.
  o.log_ratio_clamp = LogRatioClamp::kSymmetric;
  t.advantage = -1;
  EXPECT_NEAR(EvaluatePolicyToken(o, t).loss, std::exp(20.0), 1e-3);
  EXPECT_EQ(EvaluatePolicyToken(o, t).d_logprob, 0);
  // Probability 1.
  EXPECT_EQ(SampledEntropyTerm(0.0).value, 0);
  EXPECT_EQ(SampledEntropyTerm(0.0).slope, -1);
  EXPECT_EQ(SampledEntropyTerm(-kInfinity).value, 0);
  EXPECT_EQ(SampledEntropyTerm(-kInfinity).slope, 0);
  EXPECT_NEAR(SampledEntropyTerm(std::log(0.5)).value, 0.5 * std::log(2), 1e-15);
  // NaN is shown, except behind a factor of 0.
  t.lp = kNan;
  EXPECT_TRUE(std::isnan(EvaluatePolicyToken(o, t).loss));
  EXPECT_TRUE(std::isnan(EvaluatePolicyToken(o, t).d_logprob));
  t.row_weight = 0;
  EXPECT_EQ(EvaluatePolicyToken(o, t).d_logprob, 0);
  // A sampler ratio that is not finite is 0.
  const Term<double> v = KlWeightTerm(KlWeight::kSamplerRatio, Term<double>{1, 1}, -1.0, -1e4);
  EXPECT_EQ(v.value, 0);
  EXPECT_EQ(v.slope, 0);
}

TEST(PolicyTermsTest, FirstRatioIsExactlyOne) {
  for (const float lp : {-0.0f, -1e-7f, -3.337f, -1e4f}) {
    PolicyOptions<float> o;
    o.ratio_low = 1;
    o.ratio_high = 1;
    PolicyToken<float> t;
    t.lp = t.old = lp;
    t.advantage = 3;
    const PolicyTokenResult<float> r = EvaluatePolicyToken(o, t);
    EXPECT_EQ(r.ratio, 1);
    EXPECT_EQ(r.loss, -3);
    EXPECT_EQ(r.d_logprob, -3);
  }
}

TEST(PolicyTermsTest, ImportanceWeights) {
  Options o;
  EXPECT_NEAR(ImportanceWeight(o, std::log(3)).weight, 3, 1e-14);
  EXPECT_FALSE(ImportanceWeight(o, 50.0).out_of_bounds) << "RAW has no bounds";
  EXPECT_EQ(ImportanceWeight(o, 1e4).weight, 0) << "not finite";
  EXPECT_EQ(ImportanceWeight(o, kNan).weight, 0);
  o.is_normalizer = 2;
  EXPECT_NEAR(ImportanceWeight(o, std::log(3)).weight, 1.5, 1e-14);
  o.is_normalizer = 1;
  o.is_log_clamp = 0.5;
  EXPECT_NEAR(ImportanceWeight(o, 2.0).weight, std::exp(0.5), 1e-14);
  EXPECT_NEAR(ImportanceWeight(o, -2.0).weight, std::exp(-0.5), 1e-14);
  o.is_log_clamp = Options::kNever;
  o.is_min = 0.5;
  o.is_max = 2;
  o.is_mode = ImportanceMode::kTruncate;
  EXPECT_EQ(ImportanceWeight(o, std::log(3)).weight, 2);
  EXPECT_EQ(ImportanceWeight(o, std::log(0.1)).weight, 0.5);
  EXPECT_TRUE(ImportanceWeight(o, std::log(3)).out_of_bounds);
  EXPECT_FALSE(ImportanceWeight(o, std::log(1.5)).out_of_bounds);
  EXPECT_EQ(ImportanceWeight(o, 1e4).weight, 0.5) << "0 comes before the bounds";
  o.is_mode = ImportanceMode::kMask;
  EXPECT_EQ(ImportanceWeight(o, std::log(3)).weight, 0);
  EXPECT_EQ(ImportanceWeight(o, 0.0).weight, 1);
  o.is_max = 1;
  EXPECT_EQ(ImportanceWeight(o, 0.0).weight, 1) << "a bound is inside";
  // e^100 is finite, though not in fp32.
  PolicyOptions<float> narrow;
  narrow.is_mode = ImportanceMode::kTruncate;
  narrow.is_max = 2;
  EXPECT_EQ(ImportanceWeight(narrow, 100.0).weight, 2);
}

TEST(PolicyTermsTest, RowFilterGatesAndLengths) {
  Options o;
  EXPECT_FALSE(IsSequenceDropped(o, 100.0)) << "no filter";
  o.is_row_filter = true;
  o.is_row_min = 1;
  o.is_row_max = 2;
  EXPECT_FALSE(IsSequenceDropped(o, 0.0));
  EXPECT_TRUE(IsSequenceDropped(o, -1e-9));
  EXPECT_TRUE(IsSequenceDropped(o, 0.7));
  EXPECT_TRUE(IsSequenceDropped(o, kNan));
  EXPECT_TRUE(PassesEntropyGate(o, kNan)) << "no gate";
  o.entropy_threshold = 1.5;
  EXPECT_TRUE(PassesEntropyGate(o, 1.5));
  EXPECT_FALSE(PassesEntropyGate(o, 1.4999));
  EXPECT_TRUE(PassesOffPolicyGate(o, -1.0, 9.0)) << "no gate";
  o.has_off_policy_threshold = true;
  o.off_policy_threshold = 0.5;
  EXPECT_TRUE(PassesOffPolicyGate(o, -1.0, 0.5));
  EXPECT_FALSE(PassesOffPolicyGate(o, -1.0, 0.6));
  EXPECT_TRUE(PassesOffPolicyGate(o, 0.0, 0.6));
  EXPECT_EQ(LengthFactor(SequenceWeighting::kOne, 4.0), 1);
  EXPECT_EQ(LengthFactor(SequenceWeighting::kInverseLength, 4.0), 0.25);
  EXPECT_EQ(LengthFactor(SequenceWeighting::kInverseLength, 0.0), 1);
  EXPECT_EQ(LengthFactor(SequenceWeighting::kLength, 4.0), 4);
}

TEST(PolicyTermsTest, MismatchByHand) {
  const double old = std::log(0.5);
  const double sampler = std::log(0.25);
  const MismatchMetrics<double> m = Mismatch(std::log(0.125), old, sampler);
  EXPECT_NEAR(m.prob_difference, 0.25, 1e-15);
  EXPECT_NEAR(m.mult_prob_error, 2, 1e-15);
  EXPECT_NEAR(m.sampler_k3, 1 - std::log(2), 1e-15);
  EXPECT_NEAR(m.policy_k3, 0.5 - 1 + std::log(2), 1e-15);
  const double mean = std::log(0.375);
  const auto k3 = [](double y) { return std::exp(y) - y - 1; };
  EXPECT_NEAR(m.js, (k3(old - mean) + k3(sampler - mean)) / 2, 1e-15);
  EXPECT_NEAR(Mismatch(-1.0, sampler, old).js, m.js, 1e-15) << "symmetric";
  EXPECT_NEAR(m.approx_entropy, 0.5 * std::log(8), 1e-14);
}

}  // namespace
}  // namespace lossd
