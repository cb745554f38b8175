// The divergences of two whole distributions: values against their definitions, gradients by finite differences, all in double.
#include "kernels/objectives/divergence.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace lossd {
namespace {

using Row = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const Row kStudent = {0.3, -1.2, 0.9, 2.1, -0.4, 0.0, 1.5};
const Row kTeacher = {1.1, 0.2, -0.7, 1.9, 0.6, -1.3, 0.1};

// Probabilities and their logarithms of a row of values.
std::vector<Outcome<double>> Distribution(const Row& values, ValueKind kind) {
  double sum = 0;
  for (const double value : values) sum += std::exp(value);
  std::vector<Outcome<double>> out;
  for (const double value : values) {
    if (kind == ValueKind::kProbs) {
      out.push_back({value, std::log(value)});
    } else {
      const double log = kind == ValueKind::kLogits ? value - std::log(sum) : value;
      out.push_back({std::exp(log), log});
    }
  }
  return out;
}

DivergenceSums<double> SumsOf(const DivergenceKind<double>& kind, const Row& student,
                              const Row& teacher, ValueKind student_kind, ValueKind teacher_kind) {
  const auto q = Distribution(student, student_kind);
  const auto p = Distribution(teacher, teacher_kind);
  DivergenceSums<double> sums;
  sums.p = 0;
  for (size_t j = 0; j < q.size(); ++j) {
    const DivergenceTerms<double> terms = TermsOf(kind, p[j], q[j]);
    sums.x += terms.x;
    sums.y += terms.y;
    sums.p += p[j].p;
    sums.dot += student[j] * teacher[j];
    sums.student_square += student[j] * student[j];
    sums.teacher_square += teacher[j] * teacher[j];
  }
  return sums;
}

struct Case {
  std::string name;
  Divergence kind;
  double beta = 0;
  double mix = 0;
};

const std::vector<Case>& Cases() {
  static const auto* const kCases =
      new std::vector<Case>{{"forward", Divergence::kForwardKl},
                            {"reverse", Divergence::kReverseKl},
                            {"jsd", Divergence::kJsd, 0.35},
                            {"jsd near 0", Divergence::kJsd, 1e-6},
                            {"jsd near 1", Divergence::kJsd, 1 - 1e-6},
                            {"jsd 0", Divergence::kJsd, 0},
                            {"jsd 1", Divergence::kJsd, 1},
                            {"mixed", Divergence::kMixed, 0, 0.3},
                            {"mixed 0", Divergence::kMixed, 0, 0},
                            {"mixed 1", Divergence::kMixed, 0, 1},
                            {"tvd", Divergence::kTvd},
                            {"cosine", Divergence::kCosine}};
  return *kCases;
}

double Kl(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t j = 0; j < a.size(); ++j) sum += a[j] * std::log(a[j] / b[j]);
  return sum;
}

// Straight from the definitions.
double Expected(const Case& c, const Row& student, const Row& teacher) {
  Row p, q, m;
  for (const auto& side : Distribution(teacher, ValueKind::kLogits)) p.push_back(side.p);
  for (const auto& side : Distribution(student, ValueKind::kLogits)) q.push_back(side.p);
  double tvd = 0, dot = 0, student_square = 0, teacher_square = 0;
  for (size_t j = 0; j < p.size(); ++j) {
    m.push_back(c.beta * p[j] + (1 - c.beta) * q[j]);
    tvd += 0.5 * std::fabs(p[j] - q[j]);
    dot += student[j] * teacher[j];
    student_square += student[j] * student[j];
    teacher_square += teacher[j] * teacher[j];
  }
  switch (c.kind) {
    case Divergence::kForwardKl:
      return Kl(p, q);
    case Divergence::kReverseKl:
      return Kl(q, p);
    case Divergence::kMixed:
      return c.mix * Kl(p, q) + (1 - c.mix) * Kl(q, p);
    case Divergence::kJsd:
      if (c.beta == 0) return Kl(p, q);
      if (c.beta == 1) return Kl(q, p);
      return c.beta * Kl(p, m) + (1 - c.beta) * Kl(q, m);
    case Divergence::kTvd:
      return tvd;
    case Divergence::kCosine:
      return 1 - dot / std::sqrt(student_square * teacher_square);
  }
  return NAN;
}

TEST(DivergenceTest, ValuesAreTheDefinitions) {
  for (const Case& c : Cases()) {
    const auto kind = MakeDivergence<double>(c.kind, c.beta, c.mix);
    const auto sums = SumsOf(kind, kStudent, kTeacher, ValueKind::kLogits, ValueKind::kLogits);
    EXPECT_NEAR(ValueOf(kind, sums).value, Expected(c, kStudent, kTeacher), 1e-12) << c.name;
  }
}

// dz as the kernels put it together.
double Gradient(const DivergenceKind<double>& kind, const Row& student, const Row& teacher,
                ValueKind student_kind, ValueKind teacher_kind, size_t j) {
  const auto q = Distribution(student, student_kind)[j];
  const auto p = Distribution(teacher, teacher_kind)[j];
  const auto value = ValueOf(kind, SumsOf(kind, student, teacher, student_kind, teacher_kind));
  if (kind.kind == Divergence::kCosine) {
    return value.by_teacher * teacher[j] + value.by_student * student[j];
  }
  if (student_kind == ValueKind::kProbs) return TvdSlope(p.p, q.p);
  const double g = SlopeOf(kind, p.p, TermsOf(kind, p, q));
  return student_kind == ValueKind::kLogits ? g - q.p * value.total : g + kind.q_factor * q.p;
}

void ExpectDerivative(const Case& c, const Row& student, const Row& teacher, ValueKind student_kind,
                      ValueKind teacher_kind, double floor = 0) {
  auto kind = MakeDivergence<double>(c.kind, c.beta, c.mix);
  kind.teacher_floor = floor;
  double norm = 0;
  for (size_t j = 0; j < student.size(); ++j) {
    constexpr double kStep = 1e-6;
    double value[2];
    for (const int sign : {0, 1}) {
      Row moved = student;
      moved[j] += (2 * sign - 1) * kStep;
      value[sign] = ValueOf(kind, SumsOf(kind, moved, teacher, student_kind, teacher_kind)).value;
    }
    const double got = Gradient(kind, student, teacher, student_kind, teacher_kind, j);
    EXPECT_NEAR(got, (value[1] - value[0]) / (2 * kStep), 1e-8) << c.name << " column " << j;
    norm += got * got;
  }
  EXPECT_GT(norm, 0) << c.name;
}

TEST(DivergenceTest, GradientsOfLogits) {
  for (const Case& c : Cases()) {
    ExpectDerivative(c, kStudent, kTeacher, ValueKind::kLogits, ValueKind::kLogits);
  }
}

TEST(DivergenceTest, GradientsOfLogProbabilitiesThatAddUpToAnything) {
  const Row student = {-1.7, -0.4, -2.2, -3.0};
  for (const Row& teacher : {Row{-0.9, -1.6, -1.1, -2.5}, Row{-3.0, -2.0, -0.2, -1.0}}) {
    for (const Case& c : Cases()) {
      if (c.kind == Divergence::kTvd || c.kind == Divergence::kCosine) continue;
      ExpectDerivative(c, student, teacher, ValueKind::kLogprobs, ValueKind::kLogprobs);
    }
  }
}

TEST(DivergenceTest, GradientsWithATeacherOfProbabilities) {
  // They add up to 1.1: the gradient of the logits has to know.
  const Row teacher = {0.4, 0.1, 0.35, 0.25};
  const Row student = {-1.7, -0.4, -2.2, -3.0};
  for (const Case& c : {Cases()[0], Cases()[1]}) {
    ExpectDerivative(c, student, teacher, ValueKind::kLogits, ValueKind::kProbs);
    ExpectDerivative(c, student, teacher, ValueKind::kLogprobs, ValueKind::kProbs);
  }
  ExpectDerivative(Cases()[0], student, teacher, ValueKind::kLogprobs, ValueKind::kProbs, 0.2);
  const Case tvd = {"tvd", Divergence::kTvd};
  ExpectDerivative(tvd, {0.1, 0.2, 0.3, 0.4}, teacher, ValueKind::kProbs, ValueKind::kProbs);
}

TEST(DivergenceTest, TheFloorRaisesTheTeachersLogarithmAlone) {
  auto kind = MakeDivergence<double>(Divergence::kForwardKl, 0, 0);
  kind.teacher_floor = 0.01;
  const Outcome<double> q = {0.2, std::log(0.2)};
  EXPECT_DOUBLE_EQ(TermsOf(kind, {0.001, std::log(0.001)}, q).x,
                   0.001 * (std::log(0.01) - std::log(0.2)));
  EXPECT_DOUBLE_EQ(TermsOf(kind, {0.3, std::log(0.3)}, q).x, 0.3 * (std::log(0.3) - std::log(0.2)));
  EXPECT_EQ(TermsOf(kind, {0, -kInfinity}, q).x, 0);
}

TEST(DivergenceTest, ProbabilityZeroRemovesItsTerm) {
  const Outcome<double> none = {0, -kInfinity};
  const Outcome<double> some = {0.5, std::log(0.5)};
  for (const Case& c : Cases()) {
    const auto kind = MakeDivergence<double>(c.kind, c.beta, c.mix);
    const DivergenceTerms<double> both = TermsOf(kind, none, none);
    EXPECT_EQ(both.x, 0) << c.name;
    EXPECT_EQ(both.y, 0) << c.name;
    // Only the side that is 0 is silent.
    const DivergenceTerms<double> no_teacher = TermsOf(kind, none, some);
    const DivergenceTerms<double> no_student = TermsOf(kind, some, none);
    switch (kind.kind) {
      case Divergence::kForwardKl:
        EXPECT_EQ(no_teacher.x, 0);
        EXPECT_EQ(no_student.x, kInfinity);
        break;
      case Divergence::kReverseKl:
        EXPECT_EQ(no_teacher.y, kInfinity);
        EXPECT_EQ(no_student.y, 0);
        break;
      case Divergence::kMixed:
        EXPECT_EQ(no_teacher.x, 0);
        EXPECT_EQ(no_teacher.y, kInfinity);
        break;
      case Divergence::kJsd:
        EXPECT_NEAR(no_teacher.y, -0.5 * std::log(1 - c.beta), 1e-12) << c.name;
        EXPECT_NEAR(no_student.x, -0.5 * std::log(c.beta), 1e-9) << c.name;
        break;
      case Divergence::kTvd:
        EXPECT_EQ(no_teacher.x, 0.25);
        EXPECT_EQ(no_student.x, 0.25);
        break;
      case Divergence::kCosine:
        break;
    }
  }
}

TEST(DivergenceTest, NanIsNotHidden) {
  const Outcome<double> nan = {NAN, NAN};
  const Outcome<double> some = {0.5, std::log(0.5)};
  for (const Case& c : Cases()) {
    if (c.kind == Divergence::kCosine) continue;
    const auto kind = MakeDivergence<double>(c.kind, c.beta, c.mix);
    for (const auto& terms : {TermsOf(kind, nan, some), TermsOf(kind, some, nan)}) {
      EXPECT_TRUE(std::isnan(kind.forward * terms.x + kind.reverse * terms.y)) << c.name;
    }
  }
}

TEST(DivergenceTest, EqualSidesAreAtDistanceZeroWithoutAGradient) {
  for (const Case& c : Cases()) {
    const auto kind = MakeDivergence<double>(c.kind, c.beta, c.mix);
    const auto sums = SumsOf(kind, kStudent, kStudent, ValueKind::kLogits, ValueKind::kLogits);
    EXPECT_NEAR(ValueOf(kind, sums).value, 0, 1e-15) << c.name;
    for (size_t j = 0; j < kStudent.size(); ++j) {
      const double g =
          Gradient(kind, kStudent, kStudent, ValueKind::kLogits, ValueKind::kLogits, j);
      EXPECT_NEAR(g, 0, c.kind == Divergence::kTvd ? 0 : 1e-15) << c.name;
    }
  }
}

// In fp32, from differences of the logarithms between nothing and far beyond what exp can hold.
TEST(DivergenceTest, LogsToMixtureAreAccurateInFp32) {
  for (const double beta : {0.1f, 0.5f, 0.9f}) {
    for (const double d : {0.0, 1e-6, -1e-6, 1e-3, 0.7, -0.7, 30.0, -30.0, 300.0, -300.0}) {
      const auto exact = [&](double x, double y) {  // log of (beta e^x + (1 - beta) e^y)
        const double m = std::max(x, y);
        return m + std::log(beta * std::exp(x - m) + (1 - beta) * std::exp(y - m));
      };
      const auto got = LogsToMixture(static_cast<float>(beta), static_cast<float>(d));
      const double log_m = exact(0, static_cast<float>(d));
      EXPECT_NEAR(got.x, -log_m, 2e-7 * (std::fabs(d) + std::fabs(log_m)) + 1e-12)
          << beta << " " << d;
      EXPECT_NEAR(got.y, d - log_m, 2e-7 * (std::fabs(d) + std::fabs(log_m)) + 1e-12);
    }
  }
}

TEST(DivergenceTest, AWeightThatRoundsToAnEndIsThatEnd) {
  EXPECT_EQ(MakeDivergence<float>(Divergence::kJsd, 1 - 1e-12, 0).kind, Divergence::kReverseKl);
  EXPECT_EQ(MakeDivergence<float>(Divergence::kMixed, 0, 1 - 1e-12).kind, Divergence::kForwardKl);
  EXPECT_EQ(MakeDivergence<float>(Divergence::kJsd, 1e-3, 0).kind, Divergence::kJsd);
}

TEST(DivergenceTest, CosineOfAZeroRowIsFinite) {
  DivergenceSums<double> sums;
  sums.teacher_square = 4;
  const auto value = CosineOf(sums);
  EXPECT_EQ(value.value, 1);
  EXPECT_EQ(value.by_student, 0);
  EXPECT_TRUE(std::isfinite(value.by_teacher));
}

}  // namespace
}  // namespace lossd
