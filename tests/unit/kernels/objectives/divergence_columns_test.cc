// The divergences in few instructions a column against their definitions in double: whole rows, added up in parts as a GPU adds them.
#include "kernels/objectives/divergence_columns.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace lossd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kVector = 4;
constexpr int kParts = 64;

using Row = std::vector<float>;

struct Result {
  double value = 0;
  std::vector<double> dz;  // with respect to the student's raw logits, upstream 1
  bool degenerate_student = false;
};

struct Problem {
  Row student;
  Row teacher;
  double student_slope = 1;  // logit_scale over temperature
  double teacher_slope = 1;
  double beta = 0.5;
  double mix = 0.5;
};

// By TermsOf, SlopeOf and ValueOf.
template <Divergence kKind>
Result Reference(const Problem& in) {
  const DivergenceKind<double> kind = MakeDivergence<double>(kKind, in.beta, in.mix);
  const size_t columns = in.student.size();
  const auto distribution = [&](const Row& raw, double slope) {
    double max = -INFINITY;
    for (const float v : raw) max = std::max(max, v * slope);
    double sum = 0;
    for (const float v : raw) sum += std::exp(v * slope - max);
    std::vector<Outcome<double>> out(columns);
    for (size_t j = 0; j < columns; ++j) {
      out[j].log = raw[j] * slope - max - std::log(sum);
      out[j].p = std::exp(out[j].log);
    }
    return out;
  };
  const auto q = distribution(in.student, in.student_slope);
  const auto p = distribution(in.teacher, in.teacher_slope);
  DivergenceSums<double> sums;
  sums.p = 0;
  for (size_t j = 0; j < columns; ++j) {
    const DivergenceTerms<double> terms = TermsOf(kind, p[j], q[j]);
    sums.x += terms.x;
    sums.y += terms.y;
    sums.p += p[j].p;
  }
  const DivergenceValue<double> value = ValueOf(kind, sums);
  Result out;
  out.value = value.value;
  for (size_t j = 0; j < columns; ++j) {
    const double g = SlopeOf(kind, p[j].p, TermsOf(kind, p[j], q[j]));
    out.dz.push_back(in.student_slope * (g - q[j].p * value.total));
  }
  return out;
}

// The first pass over a part, as the kernel makes it: relative to its first columns or, if those lie far below others, to all.
template <Divergence kKind>
ColumnTotals AddPart(const ColumnFactors& factors, const Row& student, const Row& teacher,
                     Row* kept_student, Row* kept_teacher) {
  const auto highest = [](const Row& row, size_t count) {
    float most = -kInfinity;
    for (size_t i = 0; i < std::min(count, row.size()); ++i) most = std::fmax(most, row[i]);
    return most;
  };
  ColumnTotals totals;
  for (const size_t count : {size_t{kVector}, student.size()}) {
    totals = ColumnTotals();
    totals.student_reference = ReferenceOf(factors.student, highest(student, count));
    totals.teacher_reference = ReferenceOf(factors.teacher, highest(teacher, count));
    *kept_student = student;
    *kept_teacher = teacher;
    for (size_t i = 0; i < student.size(); ++i) {
      AddColumn<kKind>(factors, &(*kept_student)[i], &(*kept_teacher)[i], &totals);
    }
    if (totals.IsSafe()) break;
  }
  return totals;
}

// As the kernel: each part has a range of the columns; then they are joined two by two.
template <Divergence kKind>
Result Columns(const Problem& in) {
  const DivergenceKind<float> kind = MakeDivergence<float>(kKind, in.beta, in.mix);
  ColumnFactors factors;
  factors.student = static_cast<float>(in.student_slope) * kLog2E;
  factors.teacher = static_cast<float>(in.teacher_slope) * kLog2E;
  const size_t columns = in.student.size();
  const size_t each = (columns + kParts - 1) / kParts;
  std::vector<Row> student(kParts), teacher(kParts);
  std::vector<ColumnTotals> parts(kParts);
  for (size_t part = 0; part < kParts; ++part) {
    const size_t begin = std::min(columns, part * each);
    const size_t end = std::min(columns, begin + each);
    parts[part] =
        AddPart<kKind>(factors, {&in.student[begin], &in.student[end]},
                       {&in.teacher[begin], &in.teacher[end]}, &student[part], &teacher[part]);
  }
  std::vector<ColumnTotals> joined = parts;
  for (int width = kParts / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      const ColumnTotals a = joined[i];
      const ColumnTotals b = joined[i + width];
      const float highest_student = std::max(a.student_reference, b.student_reference);
      const float highest_teacher = std::max(a.teacher_reference, b.teacher_reference);
      joined[i] = Rebased<kKind>(a, highest_student, highest_teacher);
      AddTotals<kKind>(Rebased<kKind>(b, highest_student, highest_teacher), &joined[i]);
    }
  }
  const RowScales row = ScalesOf(joined[0]);
  const auto scales = [&](size_t part) {
    return ScalesFor(row, parts[part].student_reference, parts[part].teacher_reference);
  };
  const float coefficient = static_cast<float>(in.student_slope);
  DivergenceValue<float> value;
  if constexpr (kIsCompared<kKind>) {
    const JsdSeries series = MakeJsdSeries(kind.beta);
    float value_sum = 0, y_sum = 0;
    for (size_t part = 0; part < kParts; ++part) {
      float part_value = 0, part_y = 0;
      for (size_t i = 0; i < student[part].size(); ++i) {
        const ComparedColumn column = CompareColumn<kKind>(scales(part), kind.beta, series,
                                                           student[part][i], teacher[part][i]);
        part_value += column.value;
        part_y += column.y;
        student[part][i] = column.q;
        teacher[part][i] = column.y;
      }
      const float unit = UnitOfCompared<kKind>(scales(part));
      value_sum += unit * part_value;
      y_sum += unit * part_y;
    }
    value = ValueOfCompared<kKind>(kind, row, value_sum, y_sum);
  } else {
    value = ValueOfTotals<kKind>(kind, row, joined[0].x, joined[0].y);
  }
  Result out;
  out.degenerate_student = !(joined[0].student_sum > 0);
  out.value = value.value;
  for (size_t part = 0; part < kParts; ++part) {
    const ColumnSlope slope = SlopeOfValue<kKind>(kind, value.total, scales(part), coefficient);
    for (size_t i = 0; i < student[part].size(); ++i) {
      out.dz.push_back(SlopeOfColumn<kKind>(slope, student[part][i], teacher[part][i]));
    }
  }
  return out;
}

double Distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

// Logits of the teacher with the given spread, the student's beside them at the given distance.
Problem Random(int columns, double spread, double distance, uint32_t seed, float offset = 0) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  Problem out;
  for (int j = 0; j < columns; ++j) {
    const double z = spread * normal(generator);
    out.teacher.push_back(static_cast<float>(z));
    out.student.push_back(static_cast<float>(z + distance * normal(generator)) + offset);
  }
  return out;
}

template <Divergence kKind>
void Compare(const Problem& problem, double relative, double absolute, double gradient,
             const std::string& what) {
  const Result want = Reference<kKind>(problem);
  const Result got = Columns<kKind>(problem);
  EXPECT_NEAR(got.value, want.value, relative * std::fabs(want.value) + absolute) << what;
  EXPECT_LE(Distance(got.dz, want.dz), gradient) << what;
}

// Distances from hardly any to far apart; the values run from 1e-7 to several nats.
template <Divergence kKind>
void CompareAll(double relative, double absolute, double gradient_floor = 3e-6) {
  for (const double distance : {0.003, 0.03, 0.3, 1.0, 4.0}) {
    for (const double weight : {0.02, 0.3, 0.5, 0.9, 0.999}) {
      Problem problem = Random(3001, 2, distance, 7);
      problem.beta = problem.mix = static_cast<float>(weight);
      const std::string what =
          "distance " + std::to_string(distance) + " weight " + std::to_string(weight);
      const double gradient = gradient_floor + 3e-6 / distance;
      // Beyond the series a value of the order of a tiny weight has an absolute error of fp32.
      const double loss = weight == 0.999 ? 5 * relative : relative;
      Compare<kKind>(problem, loss, absolute, gradient, what);
      problem.student_slope = 1.7 / 1.3;
      problem.teacher_slope = 0.6 / 1.3;
      Compare<kKind>(problem, loss, absolute, 3e-5, what + ", factors");
      if (kKind != Divergence::kJsd && kKind != Divergence::kMixed) break;
    }
  }
}

TEST(DivergenceColumns, ForwardKl) { CompareAll<Divergence::kForwardKl>(1e-5, 1e-6); }
TEST(DivergenceColumns, ReverseKl) { CompareAll<Divergence::kReverseKl>(1e-5, 1e-6); }
TEST(DivergenceColumns, Mixed) { CompareAll<Divergence::kMixed>(1e-5, 1e-6); }
TEST(DivergenceColumns, Tvd) { CompareAll<Divergence::kTvd>(1e-5, 2e-7); }
// Nothing but rounding would be left of small values if they were differences of logarithms. Far apart, y is such a difference: its error
// is one of q, which at a small beta is far above the gradient.
TEST(DivergenceColumns, JsdIsAccurateFromTheSmallestValuesOn) {
  CompareAll<Divergence::kJsd>(3e-5, 0, 2.5e-5);
}

// A row whose logits are far from 0, and one whose largest come last, far above the first.
TEST(DivergenceColumns, ReferencesFollow) {
  for (const float offset : {-300.0f, 80.0f}) {
    const Problem problem = Random(1000, 2, 1, 3, offset);
    Compare<Divergence::kForwardKl>(problem, 2e-5, 2e-5, 2e-5, "offset");
    Compare<Divergence::kReverseKl>(problem, 2e-5, 2e-5, 2e-5, "offset");
    Compare<Divergence::kJsd>(problem, 2e-5, 0, 2e-5, "offset");
  }
  Problem rising = Random(1000, 1, 0.5, 4);
  for (int j = 0; j < 1000; ++j) {
    rising.student[j] += 0.2f * static_cast<float>(j);
    rising.teacher[j] += 0.2f * static_cast<float>(j);
  }
  Compare<Divergence::kForwardKl>(rising, 2e-5, 2e-5, 5e-5, "rising");
  Compare<Divergence::kReverseKl>(rising, 2e-5, 2e-5, 5e-5, "rising");
  Compare<Divergence::kMixed>(rising, 2e-5, 2e-5, 5e-5, "rising");
  Compare<Divergence::kJsd>(rising, 2e-5, 0, 5e-5, "rising");
  Compare<Divergence::kTvd>(rising, 2e-5, 1e-6, 5e-5, "rising");
}

template <Divergence kKind>
void CompareMasked(const Problem& problem) {
  const Result want = Reference<kKind>(problem);
  const Result got = Columns<kKind>(problem);
  if (std::isfinite(want.value)) {
    EXPECT_NEAR(got.value, want.value, 1e-5 * want.value + 1e-6);
    EXPECT_LE(Distance(got.dz, want.dz), 1e-5);
  } else {
    EXPECT_EQ(got.value, want.value);
  }
}

// Columns of -infinity on both sides add nothing and have no gradient; on one side alone they count for that side.
TEST(DivergenceColumns, ColumnsOfProbability0) {
  for (const bool both : {true, false}) {
    Problem problem = Random(997, 2, 1, 5);
    for (int j = 300; j < 700; ++j) {
      problem.student[j] = -kInfinity;
      if (both) problem.teacher[j] = -kInfinity;
    }
    CompareMasked<Divergence::kForwardKl>(problem);
    CompareMasked<Divergence::kReverseKl>(problem);
    CompareMasked<Divergence::kMixed>(problem);
    CompareMasked<Divergence::kJsd>(problem);
    CompareMasked<Divergence::kTvd>(problem);
    for (const double g :
         {Columns<Divergence::kReverseKl>(problem).dz[500],
          Columns<Divergence::kJsd>(problem).dz[500], Columns<Divergence::kTvd>(problem).dz[500]}) {
      EXPECT_EQ(g, 0);
    }
    std::swap(problem.student, problem.teacher);
    CompareMasked<Divergence::kForwardKl>(problem);
    CompareMasked<Divergence::kReverseKl>(problem);
    CompareMasked<Divergence::kJsd>(problem);
    CompareMasked<Divergence::kTvd>(problem);
  }
}

template <Divergence kKind>
void ExpectNan(const Problem& problem, bool degenerate_student) {
  const Result got = Columns<kKind>(problem);
  EXPECT_TRUE(std::isnan(got.value));
  EXPECT_EQ(got.degenerate_student, degenerate_student);
  EXPECT_TRUE(std::isnan(got.dz[0]));
}

TEST(DivergenceColumns, RowsThatAreNoDistributions) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
    for (const int column : {0, 511}) {
      for (const bool student : {true, false}) {
        Problem problem = Random(900, 2, 1, 6);
        (student ? problem.student : problem.teacher)[column] = bad;
        ExpectNan<Divergence::kForwardKl>(problem, student);
        ExpectNan<Divergence::kReverseKl>(problem, student);
        ExpectNan<Divergence::kMixed>(problem, student);
        ExpectNan<Divergence::kJsd>(problem, student);
        ExpectNan<Divergence::kTvd>(problem, student);
      }
    }
  }
  for (const bool student : {true, false}) {
    Problem problem = Random(900, 2, 1, 6);
    Row& row = student ? problem.student : problem.teacher;
    std::fill(row.begin(), row.end(), -kInfinity);
    ExpectNan<Divergence::kForwardKl>(problem, student);
    ExpectNan<Divergence::kJsd>(problem, student);
    ExpectNan<Divergence::kTvd>(problem, student);
  }
}

TEST(DivergenceColumns, EqualRowsHaveNoDivergence) {
  Problem problem = Random(900, 2, 0, 8);
  EXPECT_EQ(Columns<Divergence::kJsd>(problem).value, 0);
  EXPECT_EQ(Columns<Divergence::kTvd>(problem).value, 0);
  EXPECT_EQ(Columns<Divergence::kForwardKl>(problem).value, 0);
  for (const double g : Columns<Divergence::kJsd>(problem).dz) EXPECT_EQ(g, 0);
  // Equal columns have the slope 0, whatever the others do.
  for (const double g : Columns<Divergence::kTvd>(problem).dz) EXPECT_EQ(g, 0);
}

// One column's JSD over all distances, against LogsToMixture in double. Where the logarithm of the mixture is taken, it has an absolute
// error of fp32.
TEST(DivergenceColumns, JsdOfAColumn) {
  for (const float beta : {1e-4f, 0.1f, 0.5f, 0.75f, 0.9999f}) {
    const JsdSeries series = MakeJsdSeries(beta);
    ColumnScales scales = {};
    for (double d = -30; d < 30; d += 0.0137) {
      const float log_q = static_cast<float>(d > 0 ? 0 : d / std::log(2.0));
      const float log_p = static_cast<float>(d > 0 ? -d / std::log(2.0) : 0);
      const ComparedColumn got = CompareJsd(scales, beta, series, log_q, log_p);
      const double q = std::exp2(double{log_q});
      const double p = std::exp2(double{log_p});
      const DivergenceTerms<double> logs =
          LogsToMixture<double>(beta, (double{log_q} - log_p) * std::log(2.0));
      const double value = beta * p * logs.x + (1 - double{beta}) * q * logs.y;
      const double larger = std::max(p, q);
      const bool near = std::fabs(d) < 0.34;
      const double series_error = beta < 0.2 ? 3e-5 : 1e-5;
      EXPECT_NEAR(got.q, q, 4e-7 * q) << beta << " " << d;
      EXPECT_NEAR(kLn2 * got.y, q * logs.y,
                  near ? series_error * std::fabs(q * logs.y) : 6e-7 * q * (1 + std::fabs(d)))
          << beta << " " << d;
      EXPECT_NEAR(kLn2 * got.value, value,
                  near ? series_error * value : 6e-7 * larger * (1 + std::fabs(d)))
          << beta << " " << d;
    }
  }
}

// Logits that lie far above the first ones, or behind columns of probability 0.
TEST(DivergenceColumns, FirstColumnsAreNoReference) {
  for (const float first : {-kInfinity, -std::numeric_limits<float>::max(), -1e4f, -200.0f}) {
    Problem problem = Random(900, 2, 1, 9);
    for (int j = 0; j < 300; ++j) {
      if (j % 15 < kVector) problem.student[j] = problem.teacher[j] = first;
    }
    CompareMasked<Divergence::kForwardKl>(problem);
    CompareMasked<Divergence::kReverseKl>(problem);
    CompareMasked<Divergence::kMixed>(problem);
    CompareMasked<Divergence::kJsd>(problem);
    CompareMasked<Divergence::kTvd>(problem);
  }
}

}  // namespace
}  // namespace lossd
