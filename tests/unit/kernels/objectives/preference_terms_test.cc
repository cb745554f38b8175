// The types of a preference loss in double: derivatives against central differences over all types, scores and options, values by hand,
// extreme arguments.
#include "kernels/objectives/preference_terms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace lossd {
namespace {

using Options = PreferenceOptions<double>;
using TermOptions = PreferenceTermOptions<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TermOptions Term(PreferenceType type) {
  TermOptions term;
  term.type = type;
  term.beta = 0.5;
  return term;
}

struct TermCase {
  std::string name;
  TermOptions term;
};

// Every type, and every option that a type reads.
std::vector<TermCase> AllTerms() {
  std::vector<TermCase> cases;
  for (int type = 1; type <= 12; ++type) {
    TermOptions term = Term(static_cast<PreferenceType>(type));
    if (term.type == PreferenceType::kExoPair) term.label_smoothing = 0.1;
    if (term.type == PreferenceType::kDiscopop) term.tau = 0.8;
    cases.push_back({"type " + std::to_string(type), term});
  }
  const auto add = [&](const char* name, PreferenceType type, double TermOptions::*option,
                       double value) {
    TermOptions term = Term(type);
    if (type == PreferenceType::kExoPair) term.label_smoothing = 0.1;
    if (type == PreferenceType::kDiscopop) term.tau = 0.8;
    term.*option = value;
    cases.push_back({name, term});
  };
  add("cDPO", PreferenceType::kSigmoid, &TermOptions::label_smoothing, 0.2);
  add("margin", PreferenceType::kSigmoid, &TermOptions::margin, 0.7);
  add("hinge margin", PreferenceType::kHinge, &TermOptions::margin, 0.65);
  add("robust", PreferenceType::kRobust, &TermOptions::label_smoothing, 0.2);
  add("exo", PreferenceType::kExoPair, &TermOptions::label_smoothing, 0.3);
  add("bco delta", PreferenceType::kBcoPair, &TermOptions::bco_delta, 0.4);
  add("discopop tau", PreferenceType::kDiscopop, &TermOptions::tau, 2.5);
  for (int type = 1; type <= 12; ++type) {
    add("beta", static_cast<PreferenceType>(type), &TermOptions::beta, 1.7);
  }
  return cases;
}

std::vector<Options> AllScores() {
  std::vector<Options> all;
  for (int score = 1; score <= 5; ++score) {
    Options options;
    options.score = static_cast<PreferenceScore>(score);
    options.score_alpha = 0.3;
    all.push_back(options);
  }
  all.push_back(all.back());
  all.back().score_alpha = -0.6;
  return all;
}

const std::vector<double>& Points() {
  static const auto* const kPoints = new std::vector<double>{-6, -1.3, -0.4, -0.05, 0.3, 2.1, 9};
  return *kPoints;
}

TEST(PreferenceTermsTest, DerivativesMatchCentralDifferences) {
  const double step = 1e-5;
  for (const Options& options : AllScores()) {
    for (const TermCase& c : AllTerms()) {
      for (const double x : Points()) {
        for (const double y : Points()) {
          const auto at = [&](double chosen, double rejected) {
            return EvaluatePairTerm(options, c.term, chosen, rejected).value;
          };
          const PairTerm<double> got = EvaluatePairTerm(options, c.term, x, y);
          const double size =
              1 + std::fabs(got.value) + std::fabs(got.chosen) + std::fabs(got.rejected);
          SCOPED_TRACE(c.name + " score " + std::to_string(static_cast<int>(options.score)) +
                       " at " + std::to_string(x) + ", " + std::to_string(y));
          EXPECT_NEAR(got.chosen, (at(x + step, y) - at(x - step, y)) / (2 * step), 1e-5 * size);
          EXPECT_NEAR(got.rejected, (at(x, y + step) - at(x, y - step)) / (2 * step), 1e-5 * size);
        }
      }
    }
  }
}

TEST(PreferenceTermsTest, SortedTermsDerivativeMatchesCentralDifferences) {
  for (const double e : {0.0, 0.2}) {
    TermOptions term = Term(PreferenceType::kAot);
    term.label_smoothing = e;
    const double step = 1e-5;
    for (const double x : Points()) {
      const double got = EvaluateSortedTerm(term, x, 0.3).slope;
      const double want = (EvaluateSortedTerm(term, x + step, 0.3).value -
                           EvaluateSortedTerm(term, x - step, 0.3).value) /
                          (2 * step);
      EXPECT_NEAR(got, want, 1e-8);
    }
  }
}

// Every option changes the value of a type that reads it, and of no other.
TEST(PreferenceTermsTest, OptionsAreReadByTheirTypesAlone) {
  using T = PreferenceType;
  struct Reader {
    double TermOptions::*option;
    double value;
    std::vector<T> types;
  };
  const std::vector<Reader> readers = {
      {&TermOptions::label_smoothing, 0.15, {T::kSigmoid, T::kRobust, T::kExoPair}},
      {&TermOptions::margin, 0.7, {T::kSigmoid, T::kHinge}},
      {&TermOptions::tau, 0.3, {T::kDiscopop}},
      {&TermOptions::bco_delta, 0.4, {T::kBcoPair}},
  };
  for (const Reader& reader : readers) {
    for (int type = 1; type <= 12; ++type) {
      TermOptions term = Term(static_cast<T>(type));
      if (term.type == T::kExoPair) term.label_smoothing = 0.1;
      const double before = EvaluatePairTerm(Options(), term, -0.7, -1.1).value;
      term.*reader.option = reader.value;
      const double after = EvaluatePairTerm(Options(), term, -0.7, -1.1).value;
      const bool reads =
          std::find(reader.types.begin(), reader.types.end(), term.type) != reader.types.end();
      // Margins are taken from u, which other types share; the operation refuses them there.
      if (!reads && reader.option == &TermOptions::margin) continue;
      EXPECT_EQ(before != after, reads) << "type " << type;
    }
  }
}

TEST(PreferenceTermsTest, ValuesByHand) {
  const auto value = [](PreferenceType type, double x, double y) {
    TermOptions term = Term(type);
    if (type == PreferenceType::kExoPair) term.label_smoothing = 0.1;
    return EvaluatePairTerm(Options(), term, x, y).value;
  };
  using T = PreferenceType;
  const auto sig = [](double z) { return 1 / (1 + std::exp(-z)); };
  // beta 0.5: u = 0.5 (1 - (-2)) = 1.5
  EXPECT_NEAR(value(T::kSigmoid, 1, -2), std::log(1 + std::exp(-1.5)), 1e-14);
  EXPECT_NEAR(value(T::kHinge, 1, -2), 0, 1e-14);
  EXPECT_NEAR(value(T::kHinge, 1, 0), 0.5, 1e-14);
  EXPECT_NEAR(value(T::kIpo, 1, -2), 4, 1e-14);  // (3 - 1)^2
  EXPECT_NEAR(value(T::kExoPair, 1, -2),
              sig(1.5) * std::log(sig(1.5) / 0.9) + sig(-1.5) * std::log(sig(-1.5) / 0.1), 1e-14);
  EXPECT_NEAR(value(T::kNcaPair, 1, -2),
              -std::log(sig(0.5)) - 0.5 * std::log(sig(-0.5)) - 0.5 * std::log(sig(1)), 1e-14);
  EXPECT_NEAR(value(T::kBcoPair, 1, -2), -std::log(sig(0.5)) - std::log(sig(1)), 1e-14);
  EXPECT_NEAR(value(T::kSppoHard, 1, -2), 0 + 1, 1e-14);
  EXPECT_NEAR(value(T::kApoZero, 1, -2), 1 - sig(0.5) + sig(-1), 1e-14);
  EXPECT_NEAR(value(T::kApoDown, 1, -2), sig(0.5) + 1 - sig(1.5), 1e-14);
  const double odds =
      std::log(std::exp(-1) / (1 - std::exp(-1))) - std::log(std::exp(-2) / (1 - std::exp(-2)));
  EXPECT_NEAR(value(T::kOrpo, -1, -2), -0.5 * std::log(sig(odds)), 1e-14);
}

TEST(PreferenceTermsTest, OptionsByHand) {
  using T = PreferenceType;
  const auto sig = [](double z) { return 1 / (1 + std::exp(-z)); };
  const auto value = [](T type, double TermOptions::*option, double of) {
    TermOptions term = Term(type);
    term.*option = of;
    return EvaluatePairTerm(Options(), term, 1.0, -2.0).value;  // u = 1.5
  };
  EXPECT_NEAR(value(T::kSigmoid, &TermOptions::label_smoothing, 0.2),
              -0.8 * std::log(sig(1.5)) - 0.2 * std::log(sig(-1.5)), 1e-14);
  EXPECT_NEAR(value(T::kRobust, &TermOptions::label_smoothing, 0.2),
              (-0.8 * std::log(sig(1.5)) + 0.2 * std::log(sig(-1.5))) / 0.6, 1e-14);
  EXPECT_NEAR(value(T::kSigmoid, &TermOptions::margin, 0.6), -std::log(sig(0.9)), 1e-14);
  EXPECT_NEAR(value(T::kHinge, &TermOptions::margin, 0.6), 0.1, 1e-14);
  EXPECT_NEAR(value(T::kBcoPair, &TermOptions::bco_delta, 0.3),
              -std::log(sig(0.5 - 0.3)) - std::log(sig(1 + 0.3)), 1e-14);
  EXPECT_NEAR(value(T::kDiscopop, &TermOptions::tau, 0.5),
              -std::log(sig(1.5)) * sig(-3) + std::exp(-1.5) * sig(3), 1e-14);
}

TEST(PreferenceTermsTest, ScoresByHand) {
  const auto score = [](PreferenceScore of, double alpha) { return ScoreOf(of, alpha, 0.7).value; };
  EXPECT_EQ(score(PreferenceScore::kReverseKl, 0), 0.7);
  EXPECT_NEAR(score(PreferenceScore::kForwardKl, 0), -std::exp(-0.7), 1e-15);
  EXPECT_NEAR(score(PreferenceScore::kJs, 0), -std::log(1 + std::exp(-0.7)), 1e-15);
  EXPECT_NEAR(score(PreferenceScore::kAlpha, 0.3), std::exp(-0.49) / -0.7, 1e-15);
  EXPECT_NEAR(score(PreferenceScore::kAlphaReward, 0.3), (1 - std::exp(-0.21)) / 0.3, 1e-15);
}

// Far from 0 every type but the squares and the exponential is finite, and so are all derivatives.
TEST(PreferenceTermsTest, ExtremeArgumentsStayFinite) {
  for (const Options& options : AllScores()) {
    for (const TermCase& c : AllTerms()) {
      for (const double x : {-1e4, -300.0, 0.0, 300.0, 1e4}) {
        for (const double y : {-1e4, -300.0, 0.0, 300.0, 1e4}) {
          const PairTerm<double> got = EvaluatePairTerm(options, c.term, x, y);
          EXPECT_TRUE(std::isfinite(got.value) && std::isfinite(got.chosen) &&
                      std::isfinite(got.rejected))
              << c.name << " score " << static_cast<int>(options.score) << " at " << x << ", " << y
              << ": " << got.value << " " << got.chosen << " " << got.rejected;
        }
      }
    }
  }
}

TEST(PreferenceTermsTest, DiscopopsExponentialIsOne) {
  TermOptions term = Term(PreferenceType::kDiscopop);
  term.beta = 1;
  term.tau = 0.05;
  // u = -40: sig(u / tau) is 0 and e^-u is 2e17; their product is e^(-800 + 40).
  const PairTerm<double> low = EvaluatePairTerm(Options(), term, -40.0, 0.0);
  EXPECT_NEAR(low.value, 40, 1e-9);
  EXPECT_NEAR(low.chosen, -1, 1e-9);
  const PairTerm<double> high = EvaluatePairTerm(Options(), term, 40.0, 0.0);
  EXPECT_NEAR(high.value, std::exp(-40), 1e-25);
}

TEST(PreferenceTermsTest, ExponentsAreClampedAt80) {
  const ValueSlope<double> inside = ScoreOf(PreferenceScore::kForwardKl, 0.0, -80.0);
  EXPECT_EQ(inside.value, -std::exp(80.0));
  EXPECT_EQ(inside.slope, std::exp(80.0));
  const ValueSlope<double> beyond = ScoreOf(PreferenceScore::kForwardKl, 0.0, -80.01);
  EXPECT_EQ(beyond.value, -std::exp(80.0));
  EXPECT_EQ(beyond.slope, 0);
  EXPECT_EQ(ScoreOf(PreferenceScore::kAlpha, 2.0, 81.0).value, std::exp(80.0));
  EXPECT_EQ(ScoreOf(PreferenceScore::kAlpha, 2.0, 81.0).slope, 0);
  EXPECT_EQ(ScoreOf(PreferenceScore::kAlphaReward, 0.5, -161.0).slope, 0);
  EXPECT_NEAR(ScoreOf(PreferenceScore::kAlphaReward, 0.5, -161.0).value / (-2 * std::exp(80.0)), 1,
              1e-12);
  EXPECT_TRUE(std::isnan(ScoreOf(PreferenceScore::kForwardKl, 0.0, std::nan("")).value));
}

TEST(PreferenceTermsTest, OrpoClampsACertainAnswer) {
  const TermOptions term = Term(PreferenceType::kOrpo);
  const PairTerm<double> certain = EvaluatePairTerm(Options(), term, 0.0, -1.0);
  EXPECT_TRUE(std::isfinite(certain.value));
  EXPECT_EQ(certain.chosen, 0);
  EXPECT_GT(certain.rejected, 0);
  EXPECT_EQ(EvaluatePairTerm(Options(), term, -1.0, 0.0).rejected, 0);
  // On the clamp the gradient passes.
  EXPECT_NE(EvaluatePairTerm(Options(), term, -1e-6, -1.0).chosen, 0);
}

TEST(PreferenceTermsTest, HingeHasNoGradientFromItsCornerOn) {
  TermOptions term = Term(PreferenceType::kHinge);
  term.beta = 1;
  EXPECT_EQ(EvaluatePairTerm(Options(), term, 1.0, 0.0).chosen, 0);
  EXPECT_EQ(EvaluatePairTerm(Options(), term, std::nextafter(1.0, 0.0), 0.0).chosen, -1);
}

TEST(PreferenceTermsTest, LogisticFunctionsAreExactAtBothEnds) {
  EXPECT_EQ(LogSigmoid(-1e4), -1e4);
  EXPECT_EQ(LogSigmoid(800.0), -0.0);
  EXPECT_NEAR(LogSigmoid(40.0), -std::exp(-40.0), 1e-30);
  EXPECT_EQ(Sigmoid(-1e4), 0);
  EXPECT_EQ(Sigmoid(1e4), 1);
  EXPECT_NEAR(SigmoidSlope(40.0), std::exp(-40.0), 1e-30);
  EXPECT_EQ(Sigmoid(-kInfinity), 0);
  EXPECT_EQ(LogSigmoid(-kInfinity), -kInfinity);
  EXPECT_EQ(Sigmoid(-200.0f), 0);
  EXPECT_EQ(LogSigmoid(-200.0f), -200);
}

TEST(PreferenceTermsTest, AnUnlikelyTokenKeepsItsGradient) {
  // lp = -infinity of the chosen answer: the loss is infinite, its derivative is not.
  const PairTerm<double> got =
      EvaluatePairTerm(Options(), Term(PreferenceType::kSigmoid), -kInfinity, -1.0);
  EXPECT_EQ(got.value, kInfinity);
  EXPECT_EQ(got.chosen, -0.5);
}

}  // namespace
}  // namespace lossd
