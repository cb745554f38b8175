// Every instruction set that this processor has, against the formulas of objectives/divergence.h in double.
#include "kernels/cpu/pair_sweeps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace lossd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<const PairSweeps*> Tables() {
  const PairSweeps* tables[4];
  const int count = AvailablePairSweeps(tables, 4);
  return {tables, tables + count};
}

// What lies behind the columns must not matter, so it is NaN.
std::vector<float> Padded(const std::vector<float>& values, int64_t columns) {
  const int64_t padded = (columns + kColumnGroup - 1) / kColumnGroup * kColumnGroup;
  std::vector<float> out(padded, std::nanf(""));
  std::copy(values.begin(), values.end(), out.begin());
  return out;
}

std::vector<float> Random(int64_t columns, uint32_t seed, float deviation) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> out(columns);
  for (float& value : out) value = normal(random);
  return out;
}

struct Pair {
  Pair(std::vector<float> s, std::vector<float> t, ValueKind student_kind, ValueKind teacher_kind,
       const DivergenceKind<float>& divergence, int64_t common = 0)
      : columns(s.size()), student(Padded(s, columns)) {
    // The student's columns decide how far the teacher is read.
    teacher = Padded(t, std::max<int64_t>(columns, t.size()));
    row.student.kind = student_kind;
    row.teacher.kind = teacher_kind;
    row.divergence = divergence;
    row.student.values.columns = common > 0 ? common : columns;
    row.teacher.values.columns = std::min<int64_t>(t.size(), row.student.values.columns);
    row.student.values.raw = student.data();
    row.teacher.values.raw = teacher.data();
    Normalise(student, &row.student);
    Normalise(teacher, &row.teacher);
  }
  static void Normalise(const std::vector<float>& values, DistributionRow* side) {
    if (side->kind != ValueKind::kLogits) return;
    side->max = *std::max_element(values.begin(), values.begin() + side->values.columns);
    double sum = 0;
    for (int64_t j = 0; j < side->values.columns; ++j) {
      sum += std::exp(static_cast<double>(values[j]) - side->max);
    }
    side->sum_exp = static_cast<float>(sum);
  }
  static Outcome<double> OutcomeOf(const DistributionRow& side, const std::vector<float>& values,
                                   int64_t j) {
    if (j >= side.values.columns) return {0, -INFINITY};
    const double value = values[j];
    if (side.kind == ValueKind::kProbs) return {value, std::log(value)};
    const double log = side.kind == ValueKind::kLogits
                           ? value - side.max - std::log(static_cast<double>(side.sum_exp))
                           : value;
    return {std::exp(log), log};
  }
  Outcome<double> Q(int64_t j) const { return OutcomeOf(row.student, student, j); }
  Outcome<double> P(int64_t j) const { return OutcomeOf(row.teacher, teacher, j); }
  DivergenceKind<double> Kind() const {
    const DivergenceKind<float>& d = row.divergence;
    return {d.kind,     d.beta,     d.forward,  d.reverse,
            d.p_factor, d.y_factor, d.q_factor, d.teacher_floor};
  }
  DivergenceSums<double> Sums() const {
    DivergenceSums<double> sums;
    sums.p = 0;
    for (int64_t j = 0; j < row.student.values.columns; ++j) {
      const auto terms = TermsOf(Kind(), P(j), Q(j));
      const double t = j < row.teacher.values.columns ? teacher[j] : 0;
      sums.x += terms.x;
      sums.y += terms.y;
      sums.p += P(j).p;
      sums.dot += student[j] * t;
      sums.student_square += static_cast<double>(student[j]) * student[j];
      sums.teacher_square += t * t;
    }
    return sums;
  }

  int64_t columns;
  std::vector<float> student;
  std::vector<float> teacher;
  PairRow row;
};

std::vector<DivergenceKind<float>> Kinds() {
  auto floored = MakeDivergence<float>(Divergence::kForwardKl, 0, 0);
  floored.teacher_floor = 0.05f;
  return {MakeDivergence<float>(Divergence::kForwardKl, 0, 0),
          MakeDivergence<float>(Divergence::kReverseKl, 0, 0),
          MakeDivergence<float>(Divergence::kJsd, 0.35, 0),
          MakeDivergence<float>(Divergence::kMixed, 0, 0.3),
          MakeDivergence<float>(Divergence::kTvd, 0, 0),
          MakeDivergence<float>(Divergence::kCosine, 0, 0),
          floored};
}

// Gradient as the objectives have it, with the hard term.
double Expected(const Pair& pair, const PairGradient& g, int64_t j) {
  double out = 0;
  const auto kind = pair.Kind();
  if (j < pair.row.student.values.columns) {
    const auto p = pair.P(j);
    const auto q = pair.Q(j);
    double soft = 0;
    if (g.topk) {
      soft = q.p * (g.dense + g.log_factor * q.log);
    } else if (kind.kind == Divergence::kCosine) {
      const double t = j < pair.row.teacher.values.columns ? pair.teacher[j] : 0;
      soft = g.value.by_teacher * t + g.value.by_student * pair.student[j];
    } else if (kind.kind == Divergence::kTvd && pair.row.student.kind == ValueKind::kProbs) {
      soft = TvdSlope(p.p, q.p);
    } else {
      soft = SlopeOf(kind, p.p, TermsOf(kind, p, q));
      soft +=
          pair.row.student.kind == ValueKind::kLogits ? -q.p * g.value.total : kind.q_factor * q.p;
    }
    out += g.coefficients.soft * soft;
  }
  if (g.coefficients.hard != 0) {
    const double p = std::exp((static_cast<double>(pair.student[j]) - g.hard_max) * g.temperature) /
                     g.hard_sum_exp;
    out += g.coefficients.hard * g.temperature * (p - (j == g.target ? 1 : 0));
  }
  return out;
}

void Compare(const Pair& base, const PairGradient& gradient) {
  for (const PairSweeps* sweeps : Tables()) {
    Pair pair = base;
    pair.row.student.values.raw = pair.student.data();
    pair.row.teacher.values.raw = pair.teacher.data();
    DivergenceSums<double> got;
    bool negative = false;
    sweeps->sums(pair.row, &got, &negative);
    const DivergenceSums<double> want = base.Sums();
    const double close = 2e-6;
    EXPECT_NEAR(got.x, want.x, close * (1 + std::fabs(want.x)));
    EXPECT_NEAR(got.y, want.y, close * (1 + std::fabs(want.y)));
    if (pair.row.divergence.kind == Divergence::kCosine) {
      // The sums of the terms are those of the cosine.
      EXPECT_NEAR(got.dot, want.dot, close * (1 + want.student_square));
      EXPECT_NEAR(got.student_square, want.student_square, close * want.student_square);
      EXPECT_NEAR(got.teacher_square, want.teacher_square, close * want.teacher_square);
    } else {
      EXPECT_NEAR(got.p, want.p, close);
    }
    EXPECT_FALSE(negative);
    sweeps->gradient(pair.row, gradient);
    for (int64_t j = 0; j < gradient.columns; ++j) {
      EXPECT_NEAR(pair.student[j], Expected(base, gradient, j), 2e-6) << "column " << j;
    }
  }
}

PairGradient GradientOf(const Pair& pair) {
  PairGradient gradient;
  DivergenceSums<float> sums;
  const DivergenceSums<double> exact = pair.Sums();
  sums.x = static_cast<float>(exact.x);
  sums.y = static_cast<float>(exact.y);
  sums.p = static_cast<float>(exact.p);
  sums.dot = static_cast<float>(exact.dot);
  sums.student_square = static_cast<float>(exact.student_square);
  sums.teacher_square = static_cast<float>(exact.teacher_square);
  gradient.value = ValueOf(pair.row.divergence, sums);
  gradient.coefficients.soft = 0.7f;
  gradient.columns = pair.columns;
  return gradient;
}

TEST(PairSweepsTest, LogitsOfEveryDivergence) {
  for (const int64_t columns : {1, 15, 16, 17, 200, 1031}) {
    for (const auto& kind : Kinds()) {
      const Pair pair(Random(columns, 1, 2), Random(columns, 2, 2), ValueKind::kLogits,
                      ValueKind::kLogits, kind);
      PairGradient gradient = GradientOf(pair);
      Compare(pair, gradient);
      gradient.coefficients.hard = 0.4f;
      gradient.temperature = 1.3f;
      gradient.hard_sum_exp = 3.1f;
      gradient.hard_max = 5;
      gradient.target = columns / 2;
      Compare(pair, gradient);
    }
  }
}

TEST(PairSweepsTest, ColumnsThatTheTeacherOrTheDivergenceDoesNotHave) {
  for (const auto& kind : Kinds()) {
    const bool reverse = kind.kind == Divergence::kReverseKl || kind.kind == Divergence::kMixed;
    if (!reverse) {
      const Pair fewer(Random(50, 1, 2), Random(21, 2, 2), ValueKind::kLogits, ValueKind::kLogits,
                       kind);
      Compare(fewer, GradientOf(fewer));
    }
    const Pair common(Random(50, 1, 2), Random(21, 2, 2), ValueKind::kLogits, ValueKind::kLogits,
                      kind, 21);
    PairGradient gradient = GradientOf(common);
    gradient.coefficients.hard = 0.5f;
    gradient.hard_sum_exp = 20;
    gradient.hard_max = 4.5f;
    gradient.target = 40;
    Compare(common, gradient);
  }
}

TEST(PairSweepsTest, LogProbabilitiesAndProbabilities) {
  std::vector<float> logs = Random(70, 3, 1);
  std::vector<float> others = Random(70, 4, 1);
  std::vector<float> probs(70), more(70);
  for (int64_t j = 0; j < 70; ++j) {
    logs[j] -= 5;
    others[j] -= 5;
    probs[j] = std::exp(others[j]);
    more[j] = std::exp(logs[j]);
  }
  probs[3] = 0;
  probs[9] = 1e-40f;  // below the normal numbers
  for (const auto& kind : Kinds()) {
    if (kind.kind == Divergence::kCosine) continue;
    const Pair plain(logs, others, ValueKind::kLogprobs, ValueKind::kLogprobs, kind);
    if (kind.kind != Divergence::kTvd) Compare(plain, GradientOf(plain));
    if (kind.kind == Divergence::kForwardKl) {
      const Pair mixed(logs, probs, ValueKind::kLogprobs, ValueKind::kProbs, kind);
      Compare(mixed, GradientOf(mixed));
      const Pair logits(logs, probs, ValueKind::kLogits, ValueKind::kProbs, kind);
      Compare(logits, GradientOf(logits));
    }
    if (kind.kind == Divergence::kTvd) {
      const Pair tvd(more, probs, ValueKind::kProbs, ValueKind::kProbs, kind);
      Compare(tvd, GradientOf(tvd));
    }
  }
}

TEST(PairSweepsTest, TheDensePartOfAList) {
  const Pair pair(Random(40, 5, 2), {}, ValueKind::kLogits, ValueKind::kLogits, Kinds()[1]);
  PairGradient gradient;
  gradient.columns = 40;
  gradient.topk = true;
  gradient.coefficients.soft = 0.8f;
  gradient.dense = -0.6f;
  for (const float factor : {0.0f, 0.5f}) {
    gradient.log_factor = factor;
    for (const PairSweeps* sweeps : Tables()) {
      Pair copy = pair;
      copy.row.student.values.raw = copy.student.data();
      sweeps->gradient(copy.row, gradient);
      for (int64_t j = 0; j < 40; ++j) {
        EXPECT_NEAR(copy.student[j], Expected(pair, gradient, j), 1e-6);
      }
    }
  }
}

TEST(PairSweepsTest, ImpossibleAndUnderflowedColumns) {
  // Both impossible; one side impossible; both far below what exp can hold.
  const std::vector<float> student = {0, -kInfinity, -kInfinity, 1, -300, -200};
  const std::vector<float> teacher = {0.5f, -kInfinity, 1, -kInfinity, -300, -250};
  for (const PairSweeps* sweeps : Tables()) {
    for (const auto& kind : Kinds()) {
      if (kind.kind == Divergence::kCosine) continue;
      Pair pair(student, teacher, ValueKind::kLogits, ValueKind::kLogits, kind);
      DivergenceSums<double> got;
      bool negative = false;
      sweeps->sums(pair.row, &got, &negative);
      const bool forward = kind.kind == Divergence::kForwardKl || kind.kind == Divergence::kMixed;
      const bool reverse = kind.kind == Divergence::kReverseKl || kind.kind == Divergence::kMixed;
      EXPECT_EQ(std::isinf(got.x), forward);
      EXPECT_EQ(std::isinf(got.y), reverse);
      if (forward || reverse) continue;
      EXPECT_NEAR(got.x, pair.Sums().x, 1e-6);
      EXPECT_NEAR(got.y, pair.Sums().y, 1e-6);
    }
  }
}

TEST(PairSweepsTest, EqualSidesGiveExactZeros) {
  const std::vector<float> values = Random(100, 6, 4);
  for (const PairSweeps* sweeps : Tables()) {
    for (const auto& kind : Kinds()) {
      if (kind.kind == Divergence::kCosine || kind.teacher_floor > 0) continue;
      Pair pair(values, values, ValueKind::kLogits, ValueKind::kLogits, kind);
      DivergenceSums<double> sums;
      bool negative = false;
      sweeps->sums(pair.row, &sums, &negative);
      EXPECT_EQ(sums.x, 0);
      EXPECT_EQ(sums.y, 0);
      if (kind.kind != Divergence::kTvd) continue;
      sweeps->gradient(pair.row, GradientOf(pair));
      for (int64_t j = 0; j < 100; ++j) EXPECT_EQ(pair.student[j], 0);
    }
  }
}

TEST(PairSweepsTest, NegativeProbabilitiesAndNanAreSeen) {
  for (const PairSweeps* sweeps : Tables()) {
    Pair pair(Random(30, 7, 1), std::vector<float>(30, 0.03f), ValueKind::kLogits,
              ValueKind::kProbs, Kinds()[0]);
    pair.teacher[29] = -0.001f;
    DivergenceSums<double> sums;
    bool negative = false;
    sweeps->sums(pair.row, &sums, &negative);
    EXPECT_TRUE(negative);
    for (const auto& kind : Kinds()) {
      if (kind.kind == Divergence::kCosine) continue;
      Pair nan(Random(30, 7, 1), Random(30, 8, 1), ValueKind::kLogits, ValueKind::kLogits, kind);
      nan.student[4] = std::nanf("");
      nan.row.student.sum_exp = nan.row.student.max = std::nanf("");
      sweeps->sums(nan.row, &sums, &negative);
      EXPECT_TRUE(std::isnan(sums.x + sums.y));
    }
  }
}

}  // namespace
}  // namespace lossd
