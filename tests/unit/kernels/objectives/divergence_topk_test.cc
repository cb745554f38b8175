// The divergence from a list of the teacher's ids: every tail and divergence against its definition, its gradient by finite differences of
// the student's logits, in double; lists that are short, padded, repeated or empty.
#include "kernels/objectives/divergence_topk.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/objectives/team.h"

namespace lossd {
namespace {

using Row = std::vector<double>;

const Row kLogits = {0.3, -1.2, 0.9, 2.1, -0.4, 0.0, 1.5};

struct List {
  std::vector<int64_t> ids;
  Row values;
};

const List kPlain = {{3, 0, 5}, {-0.6, -1.9, -2.3}};
const List kPadded = {{-1, 3, -1, 2, 6}, {5.0, -0.9, NAN, -1.4, -2.0}};
const List kRepeated = {{3, 3, 1}, {-0.9, -1.4, -2.0}};

RowsView ViewOf(const std::vector<int64_t>& ids) {
  RowsView view;
  view.data = const_cast<int64_t*>(ids.data());
  view.dtype = DType::kI64;
  view.rows = 1;
  view.width = static_cast<int64_t>(ids.size());
  view.lead_strides[0] = view.width;
  view.present = true;
  return view;
}

struct Softmax {
  explicit Softmax(const Row& z) {
    double sum = 0;
    for (const double value : z) sum += std::exp(value);
    for (const double value : z) log.push_back(value - std::log(sum));
    for (const double value : log) entropy -= std::exp(value) * value;
  }
  Row log;
  double entropy = 0;
};

struct Result {
  TopkValue<double> value;
  Row gradient;  // of the logits
};

Result Evaluate(const TopkOptions<double>& options, const List& list, const Row& logits,
                double value_scale = 1) {
  const Softmax student(logits);
  const RowsView ids = ViewOf(list.ids);
  Row log_q(list.ids.size()), entry(list.ids.size(), NAN);
  for (size_t k = 0; k < list.ids.size(); ++k) {
    log_q[k] = list.ids[k] < 0 ? 0 : student.log[list.ids[k]];
  }
  TopkEntries<double> entries;
  entries.width = ids.width;
  entries.ids = &ids;
  entries.value = list.values.data();
  entries.value_scale = value_scale;
  entries.log_q = log_q.data();
  entries.entropy = student.entropy;
  entries.gradient = entry.data();
  SerialTeam team;
  Result out;
  out.value = TopkRow<double>(options, entries).Run(team);
  for (size_t j = 0; j < logits.size(); ++j) {
    const double q = std::exp(student.log[j]);
    double g = 0;
    bool listed = false;
    for (size_t k = 0; k < list.ids.size(); ++k) {
      if (list.ids[k] != static_cast<int64_t>(j)) continue;
      listed = true;
      g += entry[k];
    }
    g += listed ? q * out.value.listed
                : q * (out.value.dense + out.value.log_factor * student.log[j]);
    out.gradient.push_back(g);
  }
  return out;
}

struct Case {
  std::string name;
  Divergence kind;
  double beta = 0;
  double mix = 0;
};
const std::vector<Case> kCases = {{"forward", Divergence::kForwardKl},
                                  {"reverse", Divergence::kReverseKl},
                                  {"jsd", Divergence::kJsd, 0.35},
                                  {"mixed", Divergence::kMixed, 0, 0.3},
                                  {"tvd", Divergence::kTvd}};
const std::vector<TopkTail> kTails = {TopkTail::kDrop, TopkTail::kRenormalise, TopkTail::kGhost,
                                      TopkTail::kZeroOutside};

TopkOptions<double> OptionsOf(const Case& c, TopkTail tail) {
  TopkOptions<double> options;
  options.divergence = MakeDivergence<double>(c.kind, c.beta, c.mix);
  options.tail = tail;
  options.outside_logprob = -9;
  return options;
}

// The specification's table, outcome by outcome.
double Expected(const Case& c, TopkTail tail, const List& list, const Row& logits) {
  const Softmax student(logits);
  Row p, q;
  for (size_t k = 0; k < list.ids.size(); ++k) {
    if (list.ids[k] < 0) continue;
    p.push_back(std::exp(list.values[k]));
    q.push_back(std::exp(student.log[list.ids[k]]));
  }
  double p_sum = 0, q_sum = 0;
  for (const double value : p) p_sum += value;
  for (const double value : q) q_sum += value;
  if (tail == TopkTail::kRenormalise || tail == TopkTail::kZeroOutside) {
    for (double& value : p) value /= p_sum;
  }
  if (tail == TopkTail::kRenormalise) {
    for (double& value : q) value /= q_sum;
  }
  if (tail == TopkTail::kGhost) {
    p.push_back(std::max(1e-8, 1 - p_sum));
    q.push_back(std::max(1e-8, 1 - q_sum));
  }
  double forward = 0, reverse = 0, jsd = 0, tvd = 0;
  for (size_t k = 0; k < p.size(); ++k) {
    const double m = c.beta * p[k] + (1 - c.beta) * q[k];
    forward += p[k] * std::log(p[k] / q[k]);
    reverse += q[k] * std::log(q[k] / p[k]);
    jsd += c.beta * p[k] * std::log(p[k] / m) + (1 - c.beta) * q[k] * std::log(q[k] / m);
    tvd += 0.5 * std::fabs(p[k] - q[k]);
  }
  if (tail == TopkTail::kZeroOutside) {
    const std::set<int64_t> listed(list.ids.begin(), list.ids.end());
    for (size_t j = 0; j < logits.size(); ++j) {
      if (listed.count(static_cast<int64_t>(j)) > 0) continue;
      reverse += std::exp(student.log[j]) * (student.log[j] + 9);
    }
    jsd += -(1 - c.beta) * std::log(1 - c.beta) * (1 - q_sum);
    tvd += 0.5 * (1 - q_sum);
  }
  switch (c.kind) {
    case Divergence::kForwardKl:
      return forward;
    case Divergence::kReverseKl:
      return reverse;
    case Divergence::kMixed:
      return c.mix * forward + (1 - c.mix) * reverse;
    case Divergence::kJsd:
      return jsd;
    default:
      return tvd;
  }
}

void ExpectDerivative(const TopkOptions<double>& options, const List& list, const Row& logits,
                      const std::string& name, double value_scale = 1) {
  const Result result = Evaluate(options, list, logits, value_scale);
  constexpr double kStep = 1e-6;
  double norm = 0;
  for (size_t j = 0; j < logits.size(); ++j) {
    double value[2];
    for (const int sign : {0, 1}) {
      Row moved = logits;
      moved[j] += (2 * sign - 1) * kStep;
      value[sign] = Evaluate(options, list, moved, value_scale).value.value;
    }
    EXPECT_NEAR(result.gradient[j], (value[1] - value[0]) / (2 * kStep), 2e-8)
        << name << " column " << j;
    norm += result.gradient[j] * result.gradient[j];
  }
  EXPECT_GT(norm, 0) << name;
}

TEST(DivergenceTopkTest, ValuesAreTheTable) {
  for (const Case& c : kCases) {
    for (const TopkTail tail : kTails) {
      for (const List* list : {&kPlain, &kPadded, &kRepeated}) {
        EXPECT_NEAR(Evaluate(OptionsOf(c, tail), *list, kLogits).value.value,
                    Expected(c, tail, *list, kLogits), 1e-12)
            << c.name << " tail " << static_cast<int>(tail);
      }
    }
  }
}

TEST(DivergenceTopkTest, GradientsOfEveryTailAndDivergence) {
  for (const Case& c : kCases) {
    for (const TopkTail tail : kTails) {
      for (const List* list : {&kPlain, &kPadded, &kRepeated}) {
        ExpectDerivative(OptionsOf(c, tail), *list, kLogits,
                         c.name + " tail " + std::to_string(static_cast<int>(tail)));
      }
    }
  }
}

TEST(DivergenceTopkTest, MassesAreThoseOfTheTeacherAsUsedAndOfTheWholeStudent) {
  const Softmax student(kLogits);
  double q = 0, p = 0;
  for (size_t k = 0; k < kPlain.ids.size(); ++k) {
    q += std::exp(student.log[kPlain.ids[k]]);
    p += std::exp(kPlain.values[k]);
  }
  for (const TopkTail tail : kTails) {
    const auto value = Evaluate(OptionsOf(kCases[0], tail), kPlain, kLogits).value;
    EXPECT_NEAR(value.student_mass, q, 1e-12);
    const bool one = tail == TopkTail::kRenormalise || tail == TopkTail::kZeroOutside;
    EXPECT_NEAR(value.teacher_mass, one ? 1 : p, 1e-12);
  }
}

TEST(DivergenceTopkTest, AFloorRaisesBothSidesAndStopsTheStudentsGradient) {
  for (const Case& c : kCases) {
    TopkOptions<double> options = OptionsOf(c, TopkTail::kDrop);
    options.has_floor = true;
    options.floor = -2;
    // The teacher's third value is raised, and the student's probability of id 5.
    const Softmax student(kLogits);
    ASSERT_LT(student.log[5], -2);
    ExpectDerivative(options, kPlain, kLogits, c.name);
    List raised = kPlain;
    raised.values[2] = -2;
    EXPECT_NEAR(Evaluate(options, kPlain, kLogits).value.value,
                Evaluate(options, raised, kLogits).value.value, 1e-15);
    EXPECT_NE(Evaluate(options, kPlain, kLogits).value.value,
              Evaluate(OptionsOf(c, TopkTail::kDrop), kPlain, kLogits).value.value);
  }
}

TEST(DivergenceTopkTest, ARaisedRestHasNoGradient) {
  // The list holds all but 1e-12 of the student and more than all of the teacher.
  Row logits = {30, 29, 28.5, 0, 0, 0, 0};
  const List list = {{0, 1, 2}, {-0.2, -0.9, -1.5}};
  for (const Case& c : kCases) {
    ExpectDerivative(OptionsOf(c, TopkTail::kGhost), list, logits, c.name);
  }
}

TEST(DivergenceTopkTest, ValuesAtTemperatureOneAreTempered) {
  List tempered = kPlain;
  for (double& value : tempered.values) value /= 2;
  for (const TopkTail tail : {TopkTail::kRenormalise, TopkTail::kZeroOutside}) {
    const TopkOptions<double> options = OptionsOf(kCases[0], tail);
    EXPECT_NEAR(Evaluate(options, kPlain, kLogits, 0.5).value.value,
                Evaluate(options, tempered, kLogits).value.value, 1e-15);
    ExpectDerivative(options, kPlain, kLogits, "tempered", 0.5);
  }
}

TEST(DivergenceTopkTest, ARowWithoutEntriesIsNothing) {
  const List empty = {{-1, -1}, {-0.5, NAN}};
  const List none = {{}, {}};
  for (const Case& c : kCases) {
    for (const TopkTail tail : kTails) {
      for (const List* list : {&empty, &none}) {
        const Result result = Evaluate(OptionsOf(c, tail), *list, kLogits);
        EXPECT_EQ(result.value.value, 0);
        EXPECT_EQ(result.value.student_mass, 0);
        EXPECT_EQ(result.value.teacher_mass, 0);
        for (const double g : result.gradient) EXPECT_EQ(g, 0);
      }
    }
  }
}

TEST(DivergenceTopkTest, AnImpossibleTeacherEntryIsNothingToTheForwardKl) {
  const List list = {{3, 0}, {-0.2, -INFINITY}};
  const auto result = Evaluate(OptionsOf(kCases[0], TopkTail::kDrop), list, kLogits);
  const List alone = {{3}, {-0.2}};
  EXPECT_EQ(result.value.value,
            Evaluate(OptionsOf(kCases[0], TopkTail::kDrop), alone, kLogits).value.value);
}

}  // namespace
}  // namespace lossd
