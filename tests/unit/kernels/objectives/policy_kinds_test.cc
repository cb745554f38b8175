// The policy term of each kind by hand: values, bounds, extreme tokens, flags. Derivatives over all options are in policy_token_test.cc, kinds
// of whole sequences in policy_sequence_test.cc.
#include "kernels/objectives/policy_kinds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace lossd {
namespace {

using Options = PolicyOptions<double>;
using Arguments = PolicyArguments<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

Options OfKind(PolicyKind kind) {
  Options o;
  o.kind = kind;
  return o;
}

// A token with the ratio of an unclamped kind.
Arguments Token(double lp, double old, double advantage) {
  Arguments x;
  x.lp = lp;
  x.old = old;
  x.advantage = advantage;
  x.ratio = {std::exp(lp - old), std::exp(lp - old)};
  return x;
}

TEST(PolicyKindsTest, Cispo) {
  Options o = OfKind(PolicyKind::kCispo);
  o.ratio_low = 0.5;
  o.ratio_high = 1.5;
  const double half = std::log(0.5);
  EXPECT_NEAR(PolicyTerm(o, Token(half, half, 2)).value, -2 * half, 1e-15);
  EXPECT_NEAR(PolicyTerm(o, Token(half, half, 2)).slope, -2, 1e-15);
  EXPECT_NEAR(PolicyTerm(o, Token(half, std::log(0.1), 2)).slope, -3, 1e-15) << "ratio 5, held";
  EXPECT_NEAR(PolicyTerm(o, Token(half, 2, 2)).slope, -1, 1e-15) << "held from below";
  EXPECT_EQ(PolicyTerm(o, Token(-1, -1e4, 2)).slope, -3) << "an overflowing ratio is held";
  EXPECT_EQ(PolicyTerm(o, Token(half, half, 0)).value, 0);
  o.ratio_low = 0;
  EXPECT_EQ(PolicyTerm(o, Token(-kInfinity, -1, 2)).value, 0) << "the factor is 0";
  EXPECT_TRUE(std::isnan(PolicyTerm(o, Token(kNan, -1, 2)).value));
  const PolicyFlags high = BoundFlags(o, Token(-1, -2, -1));
  EXPECT_TRUE(high.above);
  EXPECT_FALSE(high.below);
  EXPECT_FALSE(high.capped);
}

TEST(PolicyKindsTest, SapoSaturates) {
  Options o = OfKind(PolicyKind::kSapo);
  EXPECT_NEAR(PolicyTerm(o, Token(-1, -1, 3)).value, -3 * 4 * 0.5, 1e-15) << "r = 1: half";
  EXPECT_NEAR(PolicyTerm(o, Token(-1, -1, 3)).slope, -3, 1e-15) << "as PPO there";
  EXPECT_NEAR(PolicyTerm(o, Token(-1, -1, -3)).value, 3 * 4 / 1.05 * 0.5, 1e-15);
  EXPECT_EQ(PolicyTerm(o, Token(-1, -1e4, 3)).value, -12) << "the ratio overflows";
  EXPECT_EQ(PolicyTerm(o, Token(-1, -1e4, 3)).slope, 0);
  EXPECT_EQ(PolicyTerm(o, Token(-1e4, -1, 3)).slope, 0) << "ratio 0";
  EXPECT_TRUE(std::isfinite(PolicyTerm(o, Token(-1e4, -1, 3)).value));
  EXPECT_EQ(PolicyTerm(o, Token(-1, -1e4, 0)).value, 0);
}

TEST(PolicyKindsTest, DppoByTotalVariation) {
  Options o = OfKind(PolicyKind::kDppoTv);
  o.clip_low = 0.25;
  o.clip_high = 0.25;
  const double half = std::log(0.5);
  const double quarter = std::log(0.25);
  EXPECT_NEAR(PolicyTerm(o, Token(half, quarter, 1)).value, -2 * half, 1e-15) << "on the bound";
  EXPECT_EQ(PolicyTerm(o, Token(half, std::log(0.249), 1)).value, 0);
  EXPECT_NE(PolicyTerm(o, Token(half, std::log(0.1), -1)).value, 0) << "pushed the other way";
  EXPECT_EQ(PolicyTerm(o, Token(quarter, std::log(0.501), -1)).value, 0);
  EXPECT_NE(PolicyTerm(o, Token(quarter, std::log(0.501), 1)).value, 0);
  o.ratio_cap = 1.5;
  EXPECT_NEAR(PolicyTerm(o, Token(half, quarter, 1)).slope, -1.5, 1e-15);
  EXPECT_TRUE(BoundFlags(o, Token(half, quarter, 1)).capped) << "kept and above the cap";
  EXPECT_FALSE(BoundFlags(o, Token(half, std::log(0.1), 1)).capped) << "masked";
  EXPECT_TRUE(BoundFlags(o, Token(half, std::log(0.1), 1)).above);
  EXPECT_FALSE(BoundFlags(o, Token(half, std::log(0.1), 1)).below);
  EXPECT_TRUE(BoundFlags(o, Token(quarter, std::log(0.501), -1)).below);
  EXPECT_FALSE(BoundFlags(o, Token(quarter, std::log(0.501), 0)).below)
      << "A = 0 is on neither side";
  EXPECT_EQ(PolicyTerm(o, Token(-1, -1e4, 1)).slope, 0) << "from nothing to something: masked";
  EXPECT_TRUE(std::isnan(PolicyTerm(o, Token(kNan, -1, 1)).value)) << "NaN is shown";
}

TEST(PolicyKindsTest, DppoByDivergence) {
  Options o = OfKind(PolicyKind::kDppoKl);
  o.clip_low = 0.05;
  o.clip_high = 0.05;
  const double p_old = 0.25;
  const auto divergence = [&](double p) {
    return p_old * std::log(p_old / p) +
           (1 - p_old) * std::log((1 - p_old + 1e-8) / (1 - p + 1e-8));
  };
  for (const double p : {0.05, 0.12, 0.2, 0.25, 0.3, 0.4, 0.8}) {
    const bool near = divergence(p) <= 0.05;
    const Arguments up = Token(std::log(p), std::log(p_old), 1);
    const Arguments down = Token(std::log(p), std::log(p_old), -1);
    EXPECT_EQ(PolicyTerm(o, up).slope != 0, near || p <= p_old) << p;
    EXPECT_EQ(PolicyTerm(o, down).slope != 0, near || p >= p_old) << p;
  }
  // Probability 1, old and new: the 1e-8 keeps it finite.
  for (const double lp : {0.0, -1e-9, -1e-4}) {
    for (const double old : {0.0, -1e-9, -1e-4}) {
      EXPECT_TRUE(std::isfinite(PolicyTerm(o, Token(lp, old, 1)).slope)) << lp << " " << old;
    }
  }
  EXPECT_EQ(PolicyTerm(o, Token(0, 0, 2)).slope, -2);
  EXPECT_EQ(PolicyTerm(o, Token(-kInfinity, -1, 1)).value, 0) << "ratio 0 against -infinity";
  EXPECT_EQ(PolicyTerm(o, Token(-kInfinity, -kInfinity, 0)).value, 0);
}

// In fp32 the divergence of near policies must not drown in rounding.
TEST(PolicyKindsTest, DivergenceOfConfidentTokens) {
  PolicyOptions<float> o;
  o.kind = PolicyKind::kDppoKl;
  const float lp = -1e-6f;
  const float old = -4e-6f;
  const double p = std::exp(static_cast<double>(lp));
  const double p_old = std::exp(static_cast<double>(old));
  const double k = p_old * (static_cast<double>(old) - lp) +
                   (1 - p_old) * std::log((1 - p_old + 1e-8) / (1 - p + 1e-8));
  o.clip_high = static_cast<float>(1.01 * k);
  EXPECT_TRUE(IsKeptByDppo(o, lp, old, 1.0f));
  o.clip_high = static_cast<float>(0.99 * k);
  EXPECT_FALSE(IsKeptByDppo(o, lp, old, 1.0f));
}

TEST(PolicyKindsTest, DroPullsWithoutAdvantage) {
  Options o = OfKind(PolicyKind::kDro);
  o.dro_beta = 0.5;
  EXPECT_NEAR(PolicyTerm(o, Token(-1, -3, 2)).value, 2 + 0.25 * 4, 1e-15);
  EXPECT_NEAR(PolicyTerm(o, Token(-1, -3, 2)).slope, -2 + 0.5 * 2, 1e-15);
  EXPECT_NEAR(PolicyTerm(o, Token(-1, -3, 0)).value, 1, 1e-15);
  EXPECT_NEAR(PolicyTerm(o, Token(-1, -3, 0)).slope, 1, 1e-15);
  EXPECT_NEAR(PolicyTerm(o, Token(-1e4, -1, 1)).slope, -1 - 0.5 * 9999, 1e-9) << "finite";
}

TEST(PolicyKindsTest, VespoFactorStaysFinite) {
  Options o = OfKind(PolicyKind::kVespo);
  EXPECT_NEAR(VespoFactor(o, 0.0, 1.0), 1, 1e-15) << "w = 1";
  EXPECT_NEAR(VespoFactor(o, std::log(2), 1.0), std::exp(3 + 2 * std::log(2) - 6), 1e-15);
  EXPECT_NEAR(VespoFactor(o, std::log(2), 0.0), VespoFactor(o, std::log(2), 1.0), 0) << "A >= 0";
  EXPECT_NEAR(VespoFactor(o, std::log(2), -1.0), std::exp(2 + 3 * std::log(2) - 4), 1e-15);
  EXPECT_EQ(VespoFactor(o, 20.0, 1.0), 0);
  o.vespo_k_pos = 1e6;
  o.vespo_lambda_pos = 1e-4;
  EXPECT_EQ(VespoFactor(o, 10.0, 1.0), 0) << "not finite";
  Arguments x = Token(-1, -1, 0);
  EXPECT_EQ(PolicyTerm(o, x).slope, 0) << "A = 0";
}

TEST(PolicyKindsTest, CovarianceKinds) {
  Options clip = OfKind(PolicyKind::kClipCov);
  clip.ratio_low = 0.8;
  clip.ratio_high = 1.2;
  Arguments x = Token(-1, -1.1, 1);
  EXPECT_NEAR(PolicyTerm(clip, x).value, -std::exp(0.1), 1e-15);
  EXPECT_TRUE(BoundFlags(clip, Token(-1, -2, 1)).above);
  EXPECT_FALSE(BoundFlags(clip, Token(-1, -9, -1)).capped) << "no cap";
  x.selected = true;
  EXPECT_EQ(PolicyTerm(clip, x).value, 0);
  EXPECT_EQ(PolicyTerm(clip, x).slope, 0);
  Options kl = OfKind(PolicyKind::kKlCov);
  kl.kl_cov_coef = 2;
  EXPECT_NEAR(PolicyTerm(kl, x).value, -std::exp(0.1) + 0.2, 1e-14);
  EXPECT_NEAR(PolicyTerm(kl, x).slope, -std::exp(0.1) + 2, 1e-14);
  x.advantage = 0;
  x.ratio.value = kInfinity;
  EXPECT_NEAR(PolicyTerm(kl, x).value, 0.2, 1e-14) << "without advantage, too";
  EXPECT_NEAR(PolicyTerm(kl, x).slope, 2, 1e-14);
  x = Token(-1, -1, 0);
  x.selected = true;
  EXPECT_EQ(PolicyTerm(kl, x).slope, 0) << "sign(0)";
  x.selected = false;
  EXPECT_EQ(PolicyTerm(kl, x).value, 0);
  EXPECT_FALSE(BoundFlags(kl, Token(-1, -9, 1)).above) << "no bounds";
}

TEST(PolicyKindsTest, FlagsOfRatiosAndLogRatios) {
  Options o = OfKind(PolicyKind::kPpo);
  o.ratio_low = 0.8;
  o.ratio_high = 1.28;
  o.ratio_cap = 3;
  const auto flags = [&](double r, double a) {
    Arguments x;
    x.ratio = {r, r};
    x.advantage = a;
    return BoundFlags(o, x);
  };
  for (const PolicyKind kind : {PolicyKind::kPpo, PolicyKind::kGspo, PolicyKind::kLuspo}) {
    o.kind = kind;
    EXPECT_TRUE(flags(0.7, 1).below);
    EXPECT_FALSE(flags(0.8, 1).below);
    EXPECT_TRUE(flags(1.3, 0).above) << "whatever the sign of A";
    EXPECT_FALSE(flags(3.5, 1).capped);
    EXPECT_TRUE(flags(3.5, -1).capped);
  }
  for (const PolicyKind kind : {PolicyKind::kReinforce, PolicyKind::kGpg, PolicyKind::kSapo,
                                PolicyKind::kDro, PolicyKind::kVespo, PolicyKind::kKlCov}) {
    o.kind = kind;
    EXPECT_FALSE(flags(3.5, -1).above);
    EXPECT_FALSE(flags(0.1, -1).below);
    EXPECT_FALSE(flags(3.5, -1).capped);
  }
  Options gmpo = OfKind(PolicyKind::kGmpo);
  gmpo.clip_low = 0.4;
  gmpo.clip_high = 0.5;
  EXPECT_TRUE(BoundFlags(gmpo, Token(-2, -1.59, 1)).below) << "q, not the ratio";
  EXPECT_FALSE(BoundFlags(gmpo, Token(-2, -1.61, 1)).below);
  EXPECT_TRUE(BoundFlags(gmpo, Token(-1, -1.51, 1)).above);
  EXPECT_FALSE(BoundFlags(gmpo, Token(-1, -1.49, 1)).above);
}

}  // namespace
}  // namespace lossd
