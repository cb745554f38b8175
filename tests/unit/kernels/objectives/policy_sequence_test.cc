// Kinds of whole sequences. First in double: the gradient of all tokens, composed as the stages compose it, against central differences of
// a second spelling of the specification. Then the stages themselves, in fp32, against the double.
#include "kernels/objectives/policy_sequence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "kernels/objectives/policy.h"
#include "kernels/objectives/policy_token.h"
#include "kernels/objectives/team.h"
#include "tests/testing/thread_team.h"

namespace lossd {
namespace {

using Options = PolicyOptions<double>;

// Nine tokens in four sequences of 3, 0, 1 and 5.
struct Call {
  static constexpr int kTokens = 9;
  static constexpr int kSequences = 4;
  Options o;
  std::vector<int64_t> begin = {0, 3, 3, 4, 9};
  std::vector<double> lp = {-1.0, -0.5, -2.0, -0.7, -1.4, -0.2, -3.1, -0.9, -1.7};
  std::vector<double> old = {-1.3, -0.4, -1.9, -0.9, -1.5, -0.3, -2.6, -1.15, -1.62};
  std::vector<double> sampler = {-1.2, -0.5, -2.2, -0.8, -1.3, -0.4, -2.5, -1.1, -1.6};
  std::vector<double> reference = {-1.1, -0.9, -1.6, -0.5, -1.0, -0.7, -2.2, -1.3, -1.5};
  std::vector<double> advantage = {1.2, 1.2, 1.2, -0.8, 0.6, 0.6, 0.6, 0.6, 0.6};
  std::vector<double> entropy = {1.5, 0.4, 2, 1.1, 1.9, 0.2, 2.5, 1.3, 1.6};
  std::vector<double> row_weight = {1, 0.5, 2, 1, 1.5, 1, 0.8, 1.2, 1};
  std::vector<double> pg_weight;           // none
  std::vector<double> sequence_pg_weight;  // none
  std::vector<double> sequence_weight = {0.7, 1, 1.4, 0.9};
  double d_loss = 1.3;
  double denominator = 2.5;
};

// The specification in plain loops. `x` are the log-probabilities; what stands under sg() has those of the call.
double OracleRatio(const Options& o, double s) {
  if (o.log_ratio_clamp == LogRatioClamp::kSymmetric) {
    s = std::min(std::max(s, -o.log_ratio_bound), o.log_ratio_bound);
  }
  if (o.log_ratio_clamp == LogRatioClamp::kUpper) s = std::min(s, o.log_ratio_bound);
  return std::exp(s);
}

struct OracleWeights {
  std::vector<double> token;  // w_t
  bool once = false;          // ... is of the sequence
};

OracleWeights OracleImportance(const Call& c, int64_t from, int64_t to) {
  const Options& o = c.o;
  OracleWeights w;
  double sum = 0;
  for (int64_t t = from; t < to; ++t) sum += c.old[t] - c.sampler[t];
  const double mean = sum / static_cast<double>(to - from);
  for (int64_t t = from; t < to; ++t) {
    double weight = 1;
    if (o.is_level == ImportanceLevel::kToken) weight = std::exp(c.old[t] - c.sampler[t]);
    if (o.is_level == ImportanceLevel::kSequenceSum) weight = std::exp(sum);
    if (o.is_level == ImportanceLevel::kSequenceMean) weight = std::exp(mean);
    if (o.is_level != ImportanceLevel::kNone && o.is_mode == ImportanceMode::kTruncate) {
      weight = std::min(std::max(weight, o.is_min), o.is_max);
    }
    if (o.is_row_filter && (std::exp(mean) < o.is_row_min || std::exp(mean) > o.is_row_max)) {
      weight = 0;
    }
    w.token.push_back(weight);
  }
  w.once =
      o.is_level == ImportanceLevel::kSequenceSum || o.is_level == ImportanceLevel::kSequenceMean;
  return w;
}

// R at log-probabilities x of the tokens from ... to - 1; for GMPO the mean of the clamped ones.
double OracleShared(const Call& c, const std::vector<double>& x, int64_t from, int64_t to) {
  double sum = 0;
  for (int64_t t = from; t < to; ++t) {
    double q = x[t] - c.old[t];
    if (c.o.kind == PolicyKind::kGmpo) {
      const double a = c.advantage[t];
      q = a > 0 ? std::min(q, c.o.clip_high) : a < 0 ? std::max(q, -c.o.clip_low) : 0;
    }
    sum += q;
  }
  return sum / static_cast<double>(to - from);
}

double OracleLogW(const Call& c, int64_t from, int64_t to, const OracleWeights& w) {
  const double low = std::log(1e-8);
  const auto clamp = [&](double v) { return std::min(std::max(v, low), 20.0); };
  double sum = 0;
  for (int64_t t = from; t < to; ++t) {
    sum += std::min(std::max(c.lp[t] - c.old[t], -20.0), 20.0);
    if (!c.pg_weight.empty()) sum += clamp(std::log(c.pg_weight[t]));
    if (!w.once) sum += clamp(std::log(w.token[t - from]));
  }
  if (w.once) sum += clamp(std::log(w.token[0]));
  return sum;
}

double OracleLoss(const Call& c, const std::vector<double>& x) {
  const Options& o = c.o;
  double loss = 0;
  for (int b = 0; b < Call::kSequences; ++b) {
    const int64_t from = c.begin[b];
    const int64_t to = c.begin[b + 1];
    if (from == to) continue;
    const double n = static_cast<double>(to - from);
    const OracleWeights w = OracleImportance(c, from, to);
    const double spg = c.sequence_pg_weight.empty() ? 1 : c.sequence_pg_weight[b];
    const double held = OracleShared(c, c.lp, from, to);
    double geometric = 1;
    double mean_a = 0;
    for (int64_t t = from; t < to; ++t) {
      const double pg = c.pg_weight.empty() ? 1 : c.pg_weight[t];
      geometric *= std::pow(w.token[t - from] * pg * spg, 1 / n);
      mean_a += c.advantage[t] / n;
    }
    double log_w = OracleLogW(c, from, to, w);
    if (spg != 1) log_w += std::min(std::max(std::log(spg), std::log(1e-8)), 20.0);
    log_w = std::min(std::max(log_w, std::log(1e-8)), 20.0);
    double sum = 0;
    for (int64_t t = from; t < to; ++t) {
      const double a = c.advantage[t];
      const bool detached =
          o.kind == PolicyKind::kGspo && o.gspo_gradient == GspoGradient::kDetached;
      const double s = detached ? x[t] - c.lp[t] + held : OracleShared(c, x, from, to);
      const double r = OracleRatio(o, s);
      double pi = 0;
      double weight = w.token[t - from] * spg * (c.pg_weight.empty() ? 1 : c.pg_weight[t]);
      if (o.kind == PolicyKind::kGmpo) {
        pi = -mean_a * r;
        weight = geometric;
      } else if (o.kind == PolicyKind::kVespo) {
        const double k = a >= 0 ? o.vespo_k_pos : o.vespo_k_neg;
        const double lambda = a >= 0 ? o.vespo_lambda_pos : o.vespo_lambda_neg;
        pi = -a * std::exp(lambda + k * log_w - lambda * std::exp(log_w)) * x[t];
        weight = 1;
      } else {
        const double capped = a < 0 ? std::min(r, o.ratio_cap) : r;
        pi = -std::min(capped * a, std::min(std::max(r, o.ratio_low), o.ratio_high) * a);
      }
      if (c.entropy[t] < o.entropy_threshold) weight = 0;
      double l = weight * pi;
      if (o.kl_estimator == KlEstimator::kK3) {
        const double d = c.reference[t] - x[t];
        l += o.kl_coef * (o.kl_weight == KlWeight::kRatio ? r : 1) * (std::exp(d) - d - 1);
      }
      sum += c.row_weight[t] * l;
    }
    double omega = c.sequence_weight[b];
    if (o.sequence_weighting == SequenceWeighting::kInverseLength) omega /= n;
    loss += omega * sum;
  }
  return c.d_loss * loss / c.denominator;
}

// The pieces of the kernels, put together as the stages do.
struct Result {
  double loss = 0;
  std::vector<double> d_logprob;
  std::vector<double> ratio;
};

Result Compose(const Call& c) {
  const Options& o = c.o;
  Result result;
  for (int b = 0; b < Call::kSequences; ++b) {
    SequenceSums sums;
    for (int64_t t = c.begin[b]; t < c.begin[b + 1]; ++t) {
      ++sums.length;
      sums.importance += c.old[t] - c.sampler[t];
      sums.exponent += SequenceExponent(o, c.lp[t] - c.old[t], c.advantage[t]);
      sums.advantage += c.advantage[t];
      if (!c.pg_weight.empty()) sums.log_pg_weight += LogWeight(o, c.pg_weight[t]);
      if (o.is_level == ImportanceLevel::kToken) {
        sums.log_importance += LogWeight(o, ImportanceWeight(o, c.old[t] - c.sampler[t]).weight);
      }
    }
    if (sums.length == 0) continue;
    const double n = static_cast<double>(sums.length);
    SequenceWeights weights;
    if (IsSequenceLevel(o)) {
      const bool sum = o.is_level == ImportanceLevel::kSequenceSum;
      weights.importance = ImportanceWeight(o, sum ? sums.importance : sums.importance / n).weight;
    }
    if (!c.sequence_pg_weight.empty()) weights.pg_weight = c.sequence_pg_weight[b];
    weights.dropped = IsSequenceDropped(o, sums.importance / n);
    const SequenceRatio<double> shared = MakeSequenceRatio(o, sums, weights);
    const double omega = c.sequence_weight[b] * LengthFactor(o.sequence_weighting, n);
    double d_shared = 0;
    for (int64_t t = c.begin[b]; t < c.begin[b + 1]; ++t) {
      PolicyToken<double> token;
      token.lp = token.kl_lp = c.lp[t];
      token.old = c.old[t];
      token.reference = c.reference[t];
      token.advantage = c.advantage[t];
      token.row_weight = c.row_weight[t];
      token.shared = shared;
      token.scale = omega * c.d_loss / c.denominator;
      token.pg_weight = 1;
      if (o.kind == PolicyKind::kGmpo) {
        token.pg_weight = GeometricMeanWeight(sums, weights);
      } else if (o.kind != PolicyKind::kVespo) {
        double w = weights.importance;
        if (o.is_level == ImportanceLevel::kToken) {
          w = ImportanceWeight(o, c.old[t] - c.sampler[t]).weight;
        }
        if (weights.dropped) w = 0;
        token.pg_weight = w * weights.pg_weight * (c.pg_weight.empty() ? 1 : c.pg_weight[t]);
      }
      if (!PassesEntropyGate(o, c.entropy[t])) token.pg_weight = 0;
      const PolicyTokenResult<double> r = EvaluatePolicyToken(o, token);
      result.loss += token.scale * r.loss;
      result.ratio.push_back(r.ratio);
      result.d_logprob.push_back(r.d_logprob + r.d_kl_logprob);
      d_shared += r.d_shared;
    }
    for (int64_t t = c.begin[b]; t < c.begin[b + 1]; ++t) {
      result.d_logprob[t] +=
          ShareOfToken(o, d_shared, sums.length, c.lp[t] - c.old[t], c.advantage[t]);
    }
  }
  return result;
}

struct Variation {
  std::string name;
  Call base;
  std::function<void(Call*)> change;
};

Call OfKind(PolicyKind kind) {
  Call c;
  c.o.kind = kind;
  c.o.ratio_low = 1 - 0.3;
  c.o.ratio_high = 1 + 0.3;
  c.o.clip_low = 0.15;
  c.o.clip_high = 0.15;
  return c;
}

std::vector<Variation> Variations() {
  std::vector<Variation> out;
  const auto add = [&](const std::string& name, const Call& base,
                       const std::function<void(Call*)>& change) {
    out.push_back({name, base, change});
  };
  Call gspo = OfKind(PolicyKind::kGspo);
  add("gspo detached", gspo, [](Call* c) { c->o.gspo_gradient = GspoGradient::kDetached; });
  add("luspo", gspo, [](Call* c) {
    c->o.kind = PolicyKind::kLuspo;
    c->o.ratio_high = 1.01;
  });
  add("gmpo", gspo, [](Call* c) { c->o.kind = PolicyKind::kGmpo; });
  add("vespo", gspo, [](Call* c) { c->o.kind = PolicyKind::kVespo; });
  Call gmpo = OfKind(PolicyKind::kGmpo);
  add("gmpo clip_high", gmpo, [](Call* c) { c->o.clip_high = 0.05; });
  add("gmpo clip_low", gmpo, [](Call* c) {
    c->advantage[3] = -0.8;
    c->old[3] = -0.6;
    c->o.clip_low = 0.02;
  });
  Call vespo = OfKind(PolicyKind::kVespo);
  add("vespo_k_pos", vespo, [](Call* c) { c->o.vespo_k_pos = 1.5; });
  add("vespo_lambda_pos", vespo, [](Call* c) { c->o.vespo_lambda_pos = 1.5; });
  add("vespo_k_neg", vespo, [](Call* c) { c->o.vespo_k_neg = 1.5; });
  add("vespo_lambda_neg", vespo, [](Call* c) { c->o.vespo_lambda_neg = 1.5; });
  add("vespo, tokens far from the old policy on both sides", vespo, [](Call* c) {
    c->old[0] = -50;
    c->old[1] = 18;
  });
  Call weighted_vespo = vespo;
  weighted_vespo.o.is_level = ImportanceLevel::kToken;
  weighted_vespo.o.vespo_k_pos = 0.1;
  for (int t : {0, 1, 2}) weighted_vespo.old[t] = weighted_vespo.lp[t] - 14;
  add("vespo, a dropped sequence costs each of its tokens", weighted_vespo, [](Call* c) {
    c->o.is_row_filter = true;
    c->o.is_row_min = 0.5;
    c->o.is_row_max = 2;
  });
  for (const GspoGradient gradient : {GspoGradient::kThroughMean, GspoGradient::kDetached}) {
    Call base = gspo;
    base.o.gspo_gradient = gradient;
    const std::string name = gradient == GspoGradient::kDetached ? " detached" : "";
    add("clamp upper" + name, base, [](Call* c) {
      c->o.log_ratio_clamp = LogRatioClamp::kUpper;
      c->o.log_ratio_bound = 0.01;
    });
    add("clamp symmetric" + name, base, [](Call* c) {
      c->o.log_ratio_clamp = LogRatioClamp::kSymmetric;
      c->o.log_ratio_bound = 0.15;
    });
    add("clip_high" + name, base, [](Call* c) { c->o.ratio_high = 1.01; });
    add("clip_low" + name, base, [](Call* c) {
      c->old[3] = -0.3;
      c->o.ratio_low = 0.9;
    });
    Call narrow = base;
    narrow.o.ratio_high = 1.05;
    add("ratio_cap" + name, narrow, [](Call* c) { c->o.ratio_cap = 1.1; });
    add("advantage of tokens" + name, base, [](Call* c) { c->advantage[5] = -1.1; });
    Call kl = base;
    kl.o.kl_estimator = KlEstimator::kK3;
    kl.o.kl_coef = 0.4;
    add("kl" + name, base, [kl](Call* c) { *c = kl; });
    add("kl weighted by the ratio" + name, kl, [](Call* c) { c->o.kl_weight = KlWeight::kRatio; });
  }
  for (const PolicyKind kind :
       {PolicyKind::kGspo, PolicyKind::kLuspo, PolicyKind::kGmpo, PolicyKind::kVespo}) {
    const Call base = OfKind(kind);
    const std::string name = " of kind " + std::to_string(static_cast<int>(kind));
    add("pg_weight" + name, base,
        [](Call* c) { c->pg_weight = {1, 0.7, 1.2, 0.8, 1.3, 0.9, 1.1, 1, 0.6}; });
    add("a pg_weight of 0" + name, base,
        [](Call* c) { c->pg_weight = {1, 0.7, 0, 0.8, 1.3, 0.9, 1.1, 1, 0.6}; });
    add("sequence_pg_weight" + name, base, [](Call* c) {
      c->sequence_pg_weight = {0.6, 1, 1.2, 0.8};
    });
    for (const ImportanceLevel level :
         {ImportanceLevel::kToken, ImportanceLevel::kSequenceSum, ImportanceLevel::kSequenceMean}) {
      add("level " + std::to_string(static_cast<int>(level)) + name, base, [level](Call* c) {
        c->o.is_level = level;
        c->o.is_mode = ImportanceMode::kTruncate;
        c->o.is_max = 1.15;
      });
      Call weighted = base;
      weighted.o.is_level = level;
      add("row filter " + std::to_string(static_cast<int>(level)) + name, weighted, [](Call* c) {
        c->o.is_row_filter = true;
        c->o.is_row_min = 0.96;
        c->o.is_row_max = 1.05;
      });
    }
    add("entropy_threshold" + name, base, [](Call* c) { c->o.entropy_threshold = 1.2; });
    add("sequence_weighting" + name, base,
        [](Call* c) { c->o.sequence_weighting = SequenceWeighting::kInverseLength; });
    add("advantage 0 of a token" + name, base, [](Call* c) { c->advantage[6] = 0; });
  }
  return out;
}

double Difference(const std::function<double(double)>& f) {
  const double h = 1e-5;
  return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h);
}

TEST(PolicySequenceTest, DerivativesEqualFiniteDifferences) {
  for (const Variation& variation : Variations()) {
    Call c = variation.base;
    variation.change(&c);
    const Result got = Compose(c);
    EXPECT_NEAR(got.loss, OracleLoss(c, c.lp), 1e-12) << variation.name;
    for (int t = 0; t < Call::kTokens; ++t) {
      const double want = Difference([&](double step) {
        std::vector<double> x = c.lp;
        x[t] += step;
        return OracleLoss(c, x);
      });
      EXPECT_NEAR(got.d_logprob[t], want, 1e-9 + 1e-8 * std::abs(want))
          << variation.name << " token " << t;
    }
  }
}

TEST(PolicySequenceTest, EveryOptionChangesTheGradient) {
  for (const Variation& variation : Variations()) {
    Call c = variation.base;
    variation.change(&c);
    EXPECT_NE(Compose(c).d_logprob, Compose(variation.base).d_logprob) << variation.name;
  }
}

TEST(PolicySequenceTest, ByHand) {
  Call c = OfKind(PolicyKind::kGspo);
  const Result r = Compose(c);
  EXPECT_NEAR(r.ratio[0], std::exp((0.3 - 0.1 - 0.1) / 3), 1e-14);
  EXPECT_NEAR(r.ratio[3], std::exp(0.2), 1e-14) << "one token";
  // Sequence 2: one token, A = -0.8, within the bounds: -A R times its factors.
  EXPECT_NEAR(r.d_logprob[3], 1.4 * 1.3 / 2.5 * 0.8 * std::exp(0.2), 1e-14);
  c = OfKind(PolicyKind::kVespo);
  EXPECT_NEAR(Compose(c).ratio[1], std::exp(0.1), 1e-14) << "the sum, not the mean";
}

// The same call as the kernels see it.
class Kernels {
 public:
  explicit Kernels(const Call& c) : call_(c) {
    const auto n = static_cast<int64_t>(c.lp.size());
    PolicyProblem& p = problem_;
    SetOptions();
    p.rows = n;
    p.sequences = Call::kSequences;
    p.cu_seqlens = ViewOf(&call_.begin, DType::kI64);
    p.given_logprob = Column(c.lp);
    p.given_entropy = Column(c.entropy);
    p.old_logprob = Column(c.old);
    p.sampler_logprob = Column(c.sampler);
    p.ref_logprob = Column(c.reference);
    p.advantage = Column(c.advantage);
    p.row_weight = Column(c.row_weight);
    if (!c.pg_weight.empty()) p.pg_weight = Column(c.pg_weight);
    if (!c.sequence_pg_weight.empty()) p.sequence_pg_weight = Column(c.sequence_pg_weight);
    p.sequence_weight = Column(c.sequence_weight);
    p.d_loss = Column({c.d_loss});
    p.loss = ViewOf(&loss, DType::kF32);
    p.ratio = ViewOf(&ratio, DType::kF32);
    p.counted = counted_.data();
    p.sequence_of = sequence_of_.data();
    p.sequence = sequence_;
    p.totals = &totals_;
    p.metrics = {values_.data(), population_.data(), n, kPolicyMetrics};
    p.record = &record_;
    if (SharesRatioGradient(p.options)) p.d_shared = d_shared_.data();
  }

  void Run(int threads) {
    const RowsView d = ViewOf(&d_logprob, DType::kF32);
    RunStage(PolicySequenceStage{problem_}, threads);
    RunStage(PolicyStartStage{problem_}, threads);
    RunStage(PolicyRowStage{problem_, {d, {}, {}}}, threads);
    if (problem_.d_shared != nullptr) RunStage(PolicyShareStage{problem_, d}, threads);
    RunStage(PolicyEndStage{problem_}, threads);
  }

  std::vector<float> loss = {-77};
  std::vector<float> ratio = std::vector<float>(Call::kTokens, -77);
  std::vector<float> d_logprob = std::vector<float>(Call::kTokens, -77);

 private:
  template <class Stage>
  static void RunStage(const Stage& stage, int threads) {
    RunTeam(threads, [&](auto& team) {
      for (int64_t i = 0; i < stage.Instances(); ++i) {
        stage.Run(team, i);
        team.Sync();
      }
    });
  }

  void SetOptions() {
    const Options& from = call_.o;
    PolicyOptions<float>& to = problem_.options;
    to.kind = from.kind;
    to.gspo_gradient = from.gspo_gradient;
    to.log_ratio_clamp = from.log_ratio_clamp;
    to.is_level = from.is_level;
    to.is_mode = from.is_mode;
    to.is_row_filter = from.is_row_filter;
    to.kl_estimator = from.kl_estimator;
    to.kl_weight = from.kl_weight;
    to.sequence_weighting = from.sequence_weighting;
    to.denominator = call_.denominator;
    const auto set = [](double value, float* option) { *option = static_cast<float>(value); };
    set(from.log_ratio_bound, &to.log_ratio_bound);
    set(from.ratio_low, &to.ratio_low);
    set(from.ratio_high, &to.ratio_high);
    set(from.clip_low, &to.clip_low);
    set(from.clip_high, &to.clip_high);
    set(from.ratio_cap, &to.ratio_cap);
    set(from.vespo_k_pos, &to.vespo_k_pos);
    set(from.vespo_k_neg, &to.vespo_k_neg);
    set(from.vespo_lambda_pos, &to.vespo_lambda_pos);
    set(from.vespo_lambda_neg, &to.vespo_lambda_neg);
    set(from.is_max, &to.is_max);
    set(from.is_row_min, &to.is_row_min);
    set(from.is_row_max, &to.is_row_max);
    set(from.entropy_threshold, &to.entropy_threshold);
    set(from.kl_coef, &to.kl_coef);
  }

  template <class T>
  static RowsView ViewOf(std::vector<T>* values, DType dtype) {
    RowsView view;
    view.data = values->data();
    view.dtype = dtype;
    view.rows = static_cast<int64_t>(values->size());
    view.lead_shape[0] = view.rows;
    view.lead_strides[0] = 1;
    view.present = true;
    return view;
  }
  RowsView Column(const std::vector<double>& values) {
    columns_.push_back(std::vector<float>(values.begin(), values.end()));
    return ViewOf(&columns_.back(), DType::kF32);
  }

  Call call_;
  std::vector<std::vector<float>> columns_ = [] {
    std::vector<std::vector<float>> columns;
    columns.reserve(32);  // views point into it
    return columns;
  }();
  std::vector<uint8_t> counted_ = std::vector<uint8_t>(Call::kTokens, 1);
  std::vector<int32_t> sequence_of_ = std::vector<int32_t>(Call::kTokens);
  std::vector<float> d_shared_ = std::vector<float>(Call::kTokens);
  std::vector<float> values_ = std::vector<float>(kPolicyMetrics * Call::kTokens);
  std::vector<uint64_t> population_ = std::vector<uint64_t>(Call::kTokens);
  PolicySequence sequence_[Call::kSequences];
  PolicyTotals totals_;
  ResultRecord record_;
  PolicyProblem problem_;
};

TEST(PolicySequenceTest, TheStagesComputeIt) {
  for (const Variation& variation : Variations()) {
    Call c = variation.base;
    variation.change(&c);
    const Result want = Compose(c);
    for (const int threads : {1, 3}) {
      Kernels kernels(c);
      kernels.Run(threads);
      EXPECT_NEAR(kernels.loss[0], want.loss / c.d_loss, 2e-5) << variation.name;
      for (int t = 0; t < Call::kTokens; ++t) {
        const double close = 2e-5 + 1e-4 * std::abs(want.d_logprob[t]);
        EXPECT_NEAR(kernels.d_logprob[t], want.d_logprob[t], close) << variation.name << " " << t;
        EXPECT_NEAR(kernels.ratio[t], want.ratio[t], 1e-4 * want.ratio[t]) << variation.name;
      }
    }
  }
}

}  // namespace
}  // namespace lossd
