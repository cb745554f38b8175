// One token's loss: its derivatives against central differences of a second, independent spelling of the formulas in double, over options
// and tokens on both sides of every bound; and that each option does something.
#include "kernels/objectives/policy_token.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "kernels/objectives/policy_terms.h"

namespace lossd {
namespace {

using Options = PolicyOptions<double>;
using Token = PolicyToken<double>;

// The formulas of the specification, written once more from its text. What stands under sg() uses `held`, the log-probability where the
// gradient is taken, in place of lp.
double OracleRatio(const Options& o, double q) {
  if (o.log_ratio_clamp == LogRatioClamp::kSymmetric) {
    q = std::min(std::max(q, -o.log_ratio_bound), o.log_ratio_bound);
  }
  if (o.log_ratio_clamp == LogRatioClamp::kUpper) q = std::min(q, o.log_ratio_bound);
  return std::exp(q);
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// M of DPPO.
bool OracleKept(const Options& o, const Token& t, double held) {
  const double p = std::min(1.0, std::exp(held));
  const double p_old = std::min(1.0, std::exp(t.old));
  if (o.kind == PolicyKind::kDppoTv) {
    return t.advantage > 0 ? p - p_old <= o.clip_high : p - p_old >= -o.clip_low;
  }
  const double k =
      p_old * (t.old - held) + (1 - p_old) * std::log((1 - p_old + 1e-8) / (1 - p + 1e-8));
  return t.advantage > 0 ? k <= o.clip_high || p <= p_old : k <= o.clip_low || p >= p_old;
}

double OraclePpo(const Options& o, double a, double r, double cap) {
  const double capped = a < 0 ? std::min(r, cap) : r;
  return -std::min(capped * a, std::min(std::max(r, o.ratio_low), o.ratio_high) * a);
}

double OraclePolicy(const Options& o, const Token& t, double lp, double held) {
  const double a = t.advantage;
  const double r = OracleRatio(o, lp - t.old);
  const double held_r = OracleRatio(o, held - t.old);
  switch (o.kind) {
    case PolicyKind::kReinforce:
    case PolicyKind::kGpg:
      return -a * lp;
    case PolicyKind::kCispo:
      return -a * std::min(std::max(held_r, o.ratio_low), o.ratio_high) * lp;
    case PolicyKind::kSapo: {
      const double tau = a > 0 ? o.sapo_tau_pos : o.sapo_tau_neg;
      return -a * 4 / tau * Sigmoid(tau * (r - 1));
    }
    case PolicyKind::kDppoTv:
    case PolicyKind::kDppoKl:
      return OracleKept(o, t, held) ? -a * std::min(held_r, o.ratio_cap) * lp : 0;
    case PolicyKind::kDro:
      return -a * lp + o.dro_beta / 2 * (lp - t.old) * (lp - t.old);
    case PolicyKind::kClipCov:
      return t.selected ? 0 : OraclePpo(o, a, r, 1e300);
    case PolicyKind::kKlCov:
      return -a * r + (t.selected ? o.kl_cov_coef * std::abs(lp - t.old) : 0);
    default:
      return OraclePpo(o, a, r, o.ratio_cap);
  }
}

// lp: of the policy; kl_lp: of the KL term. The point where the gradient is taken is in the token.
double OracleKl(const Options& o, const Token& t, double lp, double kl_lp) {
  const double unclamped = t.reference - kl_lp;
  if (o.kl_straight_through) return unclamped * unclamped / 2;  // its gradient only
  // A clamp that is active at the point takes the gradient of the weight away as well.
  const auto value = [&](double x, double weight_at) {
    const double d = std::min(std::max(t.reference - x, -o.kl_in_clamp), o.kl_in_clamp);
    double e = 0;
    if (o.kl_estimator == KlEstimator::kK1) e = -d;
    if (o.kl_estimator == KlEstimator::kK2) e = d * d / 2;
    if (o.kl_estimator == KlEstimator::kK3) e = std::exp(d) - d - 1;
    if (o.kl_estimator == KlEstimator::kAbs) e = std::abs(d);
    double v = 1;
    if (o.kl_weight == KlWeight::kRatio) v = OracleRatio(o, weight_at - t.old);
    if (o.kl_weight == KlWeight::kScoreFunction) v = std::exp(weight_at - t.lp);
    if (o.kl_weight == KlWeight::kSamplerRatio) v = std::exp(weight_at - t.sampler);
    return v * e;
  };
  const double held = value(t.kl_lp, t.lp);
  const bool clamped =
      std::abs(t.reference - t.kl_lp) > o.kl_in_clamp || std::abs(held) > o.kl_out_clamp;
  return clamped ? std::min(std::max(held, -o.kl_out_clamp), o.kl_out_clamp) : value(kl_lp, lp);
}

double OracleLoss(const Options& o, const Token& t, double lp, double kl_lp) {
  double l = t.pg_weight * OraclePolicy(o, t, lp, t.lp);
  if (o.kl_estimator != KlEstimator::kNone) l += o.kl_coef * OracleKl(o, t, lp, kl_lp);
  double apart = 0;
  if (o.entropy_kind != EntropyKind::kNone && t.in_entropy_term) {
    const double h = o.entropy_kind == EntropyKind::kTrue ? t.entropy : -std::exp(lp) * lp;
    if (o.inverse_entropy_denominator != 0) {
      apart = -o.entropy_coef * h * t.entropy_scale;
    } else {
      l -= o.entropy_coef * h;
    }
  }
  return t.scale * t.row_weight * l + apart;
}

double Difference(const std::function<double(double)>& f, double x) {
  const double h = 1e-5;
  return (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h);
}

// Tokens on both sides of every bound that the options below set, none within 1e-3 of one.
std::vector<Token> Tokens() {
  std::vector<Token> tokens;
  for (const double lp : {-0.013, -0.7, -2.3, -9.1}) {
    for (const double q : {-3.1, -0.41, -0.07, 0.0, 0.11, 0.37, 0.9, 2.7}) {
      for (const double d : {-1.7, -0.33, 0.21, 1.9}) {
        for (const double advantage : {-1.3, 0.0, 0.8}) {
          Token t;
          t.lp = lp;
          t.old = lp - q;
          t.kl_lp = lp + 0.04;
          t.reference = t.kl_lp + d;
          t.sampler = lp - q / 2 + 0.2;
          t.entropy = 1.1;
          t.advantage = advantage;
          t.row_weight = 0.9;
          t.pg_weight = 1.7;
          t.scale = 0.31;
          t.entropy_scale = 0.17;
          t.selected = tokens.size() % 2 == 0;
          tokens.push_back(t);
        }
      }
    }
  }
  return tokens;
}

Options Ppo() {
  Options o;
  o.kind = PolicyKind::kPpo;
  o.ratio_low = 1 - 0.2;
  o.ratio_high = 1 + 0.28;
  return o;
}

struct Variation {
  std::string name;
  Options base;
  std::function<void(Options*)> change;
};

std::vector<Variation> Variations() {
  std::vector<Variation> out;
  const Options ppo = Ppo();
  Options kl = ppo;
  kl.kl_estimator = KlEstimator::kK3;
  kl.kl_coef = 0.3;
  Options plogp = ppo;
  plogp.entropy_kind = EntropyKind::kSampledPlogp;
  plogp.entropy_coef = 0.4;
  const auto add = [&](const std::string& name, const Options& base,
                       const std::function<void(Options*)>& change) {
    out.push_back({name, base, change});
  };
  add("reinforce", ppo, [](Options* o) { o->kind = PolicyKind::kReinforce; });
  add("gpg", ppo, [](Options* o) { o->kind = PolicyKind::kGpg; });
  const auto with = [&](PolicyKind kind, const std::function<void(Options*)>& set) {
    Options o = ppo;
    o.kind = kind;
    set(&o);
    return o;
  };
  const Options cispo = with(PolicyKind::kCispo, [](Options* o) {
    o->ratio_low = 0.6;
    o->ratio_high = 1.3;
  });
  const Options sapo = with(PolicyKind::kSapo, [](Options*) {});
  const Options tv =
      with(PolicyKind::kDppoTv, [](Options* o) { o->clip_low = o->clip_high = 0.1; });
  const Options dppo_kl =
      with(PolicyKind::kDppoKl, [](Options* o) { o->clip_low = o->clip_high = 0.01; });
  const Options dro = with(PolicyKind::kDro, [](Options* o) { o->dro_beta = 0.5; });
  const Options clip_cov = with(PolicyKind::kClipCov, [](Options*) {});
  const Options kl_cov = with(PolicyKind::kKlCov, [](Options* o) { o->kl_cov_coef = 0.7; });
  for (const Options& kind : {cispo, sapo, tv, dppo_kl, dro, clip_cov, kl_cov}) {
    add("kind " + std::to_string(static_cast<int>(kind.kind)), ppo,
        [kind](Options* o) { *o = kind; });
    if (kind.kind == PolicyKind::kDro) continue;
    add("clamp with kind " + std::to_string(static_cast<int>(kind.kind)), kind, [](Options* o) {
      o->log_ratio_clamp = LogRatioClamp::kSymmetric;
      o->log_ratio_bound = 0.2;
    });
  }
  add("cispo_low", cispo, [](Options* o) { o->ratio_low = 0.8; });
  add("cispo_high", cispo, [](Options* o) { o->ratio_high = 1.8; });
  add("sapo_tau_pos", sapo, [](Options* o) { o->sapo_tau_pos = 3; });
  add("sapo_tau_neg", sapo, [](Options* o) { o->sapo_tau_neg = 3; });
  for (const Options& dppo : {tv, dppo_kl}) {
    add("dppo cap", dppo, [](Options* o) { o->ratio_cap = 1.05; });
    add("dppo clip_low", dppo, [](Options* o) { o->clip_low /= 8; });
    add("dppo clip_high", dppo, [](Options* o) { o->clip_high /= 8; });
  }
  add("dro_beta", dro, [](Options* o) { o->dro_beta = 2; });
  add("clip_cov clip_low", clip_cov, [](Options* o) { o->ratio_low = 0.5; });
  add("clip_cov clip_high", clip_cov, [](Options* o) { o->ratio_high = 1.7; });
  add("kl_cov_coef", kl_cov, [](Options* o) { o->kl_cov_coef = 2; });
  add("clip_low", ppo, [](Options* o) { o->ratio_low = 0.5; });
  add("clip_high", ppo, [](Options* o) { o->ratio_high = 1.7; });
  add("ratio_cap", ppo, [](Options* o) { o->ratio_cap = 3; });
  add("clamp symmetric", ppo, [](Options* o) {
    o->log_ratio_clamp = LogRatioClamp::kSymmetric;
    o->log_ratio_bound = 0.2;
  });
  add("clamp upper", ppo, [](Options* o) {
    o->log_ratio_clamp = LogRatioClamp::kUpper;
    o->log_ratio_bound = 0.05;
  });
  for (const KlEstimator estimator :
       {KlEstimator::kK1, KlEstimator::kK2, KlEstimator::kK3, KlEstimator::kAbs}) {
    const std::string name = "estimator " + std::to_string(static_cast<int>(estimator));
    add(name, ppo, [estimator](Options* o) {
      o->kl_estimator = estimator;
      o->kl_coef = 0.7;
    });
    Options base = ppo;
    base.kl_estimator = estimator;
    base.kl_coef = 0.7;
    add(name + " in clamp", base, [](Options* o) { o->kl_in_clamp = 1; });
    add(name + " out clamp", base, [](Options* o) { o->kl_out_clamp = 0.5; });
    // K2's own gradient is what straight-through takes: there only a clamp shows the difference.
    add(name + " straight through", base, [](Options* o) {
      o->kl_straight_through = true;
      o->kl_in_clamp = 1;
    });
    for (const KlWeight weight :
         {KlWeight::kRatio, KlWeight::kScoreFunction, KlWeight::kSamplerRatio}) {
      const std::string with = name + " weight " + std::to_string(static_cast<int>(weight));
      add(with, base, [weight](Options* o) { o->kl_weight = weight; });
      Options weighted = base;
      weighted.kl_weight = weight;
      add(with + " in clamp", weighted, [](Options* o) { o->kl_in_clamp = 1; });
      add(with + " out clamp", weighted, [](Options* o) { o->kl_out_clamp = 0.5; });
    }
  }
  Options ratio_weight = kl;
  ratio_weight.kl_weight = KlWeight::kRatio;
  add("clamped ratio as kl weight", ratio_weight, [](Options* o) {
    o->log_ratio_clamp = LogRatioClamp::kSymmetric;
    o->log_ratio_bound = 0.2;
  });
  add("kl_coef", kl, [](Options* o) { o->kl_coef = -0.2; });
  add("entropy true", ppo, [](Options* o) {
    o->entropy_kind = EntropyKind::kTrue;
    o->entropy_coef = 0.4;
  });
  add("entropy sampled", ppo, [](Options* o) {
    o->entropy_kind = EntropyKind::kSampledPlogp;
    o->entropy_coef = 0.4;
  });
  add("entropy_denominator", plogp, [](Options* o) { o->inverse_entropy_denominator = 0.1; });
  return out;
}

double GradientNumber(const Options& o, const Token& t) {
  const PolicyTokenResult<double> r = EvaluatePolicyToken(o, t);
  return r.loss + 10 * (r.d_logprob + r.d_kl_logprob) + 100 * r.d_entropy;
}

TEST(PolicyTokenTest, DerivativesEqualFiniteDifferences) {
  for (const Variation& variation : Variations()) {
    Options o = variation.base;
    variation.change(&o);
    for (const Token& t : Tokens()) {
      const PolicyTokenResult<double> got = EvaluatePolicyToken(o, t);
      const double want =
          Difference([&](double lp) { return OracleLoss(o, t, lp, t.kl_lp); }, t.lp);
      // At q = 0 with estimators that are smooth there everything is; no token sits on a corner.
      EXPECT_NEAR(got.d_logprob, want, 1e-7 + 1e-7 * std::abs(want))
          << variation.name << " lp " << t.lp << " q " << t.lp - t.old << " d "
          << t.reference - t.lp << " A " << t.advantage;
      const double want_kl =
          Difference([&](double kl_lp) { return OracleLoss(o, t, t.lp, kl_lp); }, t.kl_lp);
      EXPECT_NEAR(got.d_kl_logprob, want_kl, 1e-7 + 1e-7 * std::abs(want_kl)) << variation.name;
      EXPECT_EQ(got.d_shared, 0) << "no sequence";
      Token more = t;
      const double d_entropy = Difference(
          [&](double entropy) {
            more.entropy = entropy;
            return OracleLoss(o, more, t.lp, t.kl_lp);
          },
          t.entropy);
      EXPECT_NEAR(got.d_entropy, d_entropy, 1e-8) << variation.name;
    }
  }
}

TEST(PolicyTokenTest, ValuesEqualTheSpecification) {
  for (const Variation& variation : Variations()) {
    Options o = variation.base;
    variation.change(&o);
    if (o.kl_straight_through) continue;  // there the oracle has the gradient's function
    if (o.inverse_entropy_denominator != 0) continue;
    for (const Token& t : Tokens()) {
      const double want = OracleLoss(o, t, t.lp, t.kl_lp);
      EXPECT_NEAR(EvaluatePolicyToken(o, t).loss * t.scale, want, 1e-12 + 1e-12 * std::abs(want))
          << variation.name;
    }
  }
}

TEST(PolicyTokenTest, EveryOptionChangesSomething) {
  for (const Variation& variation : Variations()) {
    Options o = variation.base;
    variation.change(&o);
    bool differs = false;
    for (const Token& t : Tokens()) {
      differs = differs || GradientNumber(o, t) != GradientNumber(variation.base, t);
    }
    EXPECT_TRUE(differs) << variation.name;
  }
}

TEST(PolicyTokenTest, EveryTokenFieldChangesSomething) {
  Options o = Ppo();
  o.kl_estimator = KlEstimator::kK3;
  o.kl_coef = 0.3;
  o.kl_weight = KlWeight::kSamplerRatio;
  o.entropy_kind = EntropyKind::kTrue;
  o.entropy_coef = 0.2;
  Options apart = o;
  apart.inverse_entropy_denominator = 0.5;
  Token t = Tokens()[2];
  t.old = t.lp - 0.1;
  ASSERT_GT(t.advantage, 0);
  const std::vector<std::function<void(Token*)>> changes = {
      [](Token* x) { x->lp -= 0.01; },       [](Token* x) { x->old -= 0.01; },
      [](Token* x) { x->reference += 0.1; }, [](Token* x) { x->sampler += 0.1; },
      [](Token* x) { x->advantage = 2; },    [](Token* x) { x->row_weight = 2; },
      [](Token* x) { x->pg_weight = 2; },    [](Token* x) { x->entropy = 2; },
      [](Token* x) { x->scale = 2; },        [](Token* x) { x->in_entropy_term = false; },
      [](Token* x) { x->kl_lp -= 0.01; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    Token other = t;
    changes[i](&other);
    EXPECT_NE(GradientNumber(o, other), GradientNumber(o, t)) << i;
  }
  Options cov = o;
  cov.kind = PolicyKind::kKlCov;
  cov.kl_cov_coef = 1;
  Token selected = t;
  selected.selected = !t.selected;
  EXPECT_NE(GradientNumber(cov, selected), GradientNumber(cov, t));
  Token other = t;
  other.entropy_scale = 2;
  EXPECT_NE(GradientNumber(apart, other), GradientNumber(apart, t));
}

}  // namespace
}  // namespace lossd
