#include "kernels/cpu/pair_rows.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/objectives/team.h"

namespace lossd {
namespace {

constexpr int64_t kMaxIds = 1024;

LogitRow MakeRow(const PairSide& side, int64_t row, float* raw, const float* bias) {
  LogitRow out;
  out.raw = raw;
  out.bias = bias;
  out.columns = side.head.valid_columns;
  out.logit_scale = side.head.logit_scale;
  out.softcap = side.head.softcap;
  out.inverse_temperature = 1 / side.head.Temperature(row);
  return out;
}

// One row of the pass, step by step.
class PairRowRun {
 public:
  PairRowRun(const PairRows& shared, int64_t row, float* student, float* teacher)
      : shared_(shared), pass_(*shared.pass), row_(row) {
    whole_ = MakeRow(pass_.student, row, student, shared.student_bias);
    pair_.student.values = whole_;
    pair_.student.values.columns = std::min(pass_.columns, whole_.columns);
    pair_.student.kind = pass_.student.kind;
    pair_.divergence = pass_.program.divergence;
    if (teacher == nullptr) return;
    pair_.teacher.values = MakeRow(pass_.teacher, row, teacher, shared.teacher_bias);
    pair_.teacher.kind = pass_.teacher.kind;
  }

  bool Run() {
    FindStatistics();
    pass_.teacher.form == PairForm::kTopk ? CompareEntries() : CompareColumns();
    if (pass_.overlap) pass_.overlap.SetI32(row_, CountOverlap());
    const PairCoefficients coefficients = pass_.program.Row(row_, stats_);
    if (coefficients.IsZero() || !(pass_.gradients.any() || pass_.grad_student)) return false;
    WriteGradient(coefficients);
    return true;
  }

 private:
  void FindStatistics();
  void CompareColumns();
  void CompareEntries();
  int32_t CountOverlap() const;
  void WriteGradient(const PairCoefficients& coefficients);

  int64_t Entry(int64_t k) const { return pass_.teacher.topk_ids.Index(row_, k); }
  float LogitOf(int64_t column) const {
    float z = 0;
    shared_.sweeps->logits(whole_, column, 1, &z);
    return z;
  }
  void SetDistribution(DistributionRow* side) const {
    if (side->kind != ValueKind::kLogits) return;
    RowStatistics stats;
    shared_.sweeps->statistics(side->values, &stats);
    side->max = stats.max;
    side->sum_exp = stats.sum_exp;
  }

  const PairRows& shared_;
  const PairPass& pass_;
  const int64_t row_;
  LogitRow whole_;  // all columns of the student
  PairRow pair_;
  PairStatistics stats_;
  PairGradient gradient_;
  float entry_gradient_[kMaxIds];
};

void PairRowRun::FindStatistics() {
  const float temperature = pass_.student.head.Temperature(row_);
  gradient_.columns = whole_.columns;
  gradient_.temperature = temperature;
  if (pass_.student.kind != ValueKind::kLogits) return;
  RowStatistics& stats = stats_.student;
  shared_.sweeps->statistics(whole_, &stats);
  const HeadProblem& head = pass_.student.head;
  if (head.target) {
    gradient_.target = head.target.Index(row_);
    stats.owns_target = true;
    stats.target_d = stats.degenerate ? std::numeric_limits<float>::quiet_NaN()
                                      : LogitOf(gradient_.target) - stats.max;
  }
  stats_.hard_sum_exp = stats.sum_exp;
  if (pass_.program.hard_weight != 0 && temperature != 1) {
    LogitRow plain = whole_;
    plain.inverse_temperature = 1;
    RowStatistics at_one;
    shared_.sweeps->statistics(plain, &at_one);
    stats_.hard_sum_exp = at_one.sum_exp;
  }
  gradient_.hard_sum_exp = stats_.hard_sum_exp;
  gradient_.hard_max = stats.max;
  pair_.student.max = stats.max;
  pair_.student.sum_exp = stats.sum_exp;
}

void PairRowRun::CompareColumns() {
  if (pair_.student.values.columns < whole_.columns) SetDistribution(&pair_.student);
  SetDistribution(&pair_.teacher);
  DivergenceSums<double> sums;
  shared_.pair_sweeps->sums(pair_, &sums, &stats_.negative);
  DivergenceSums<float> rounded;
  rounded.x = static_cast<float>(sums.x);
  rounded.y = static_cast<float>(sums.y);
  rounded.p = pair_.teacher.kind == ValueKind::kLogits ? 1.0f : static_cast<float>(sums.p);
  rounded.dot = static_cast<float>(sums.dot);
  rounded.student_square = static_cast<float>(sums.student_square);
  rounded.teacher_square = static_cast<float>(sums.teacher_square);
  gradient_.value = ValueOf(pair_.divergence, rounded);
  stats_.divergence = gradient_.value.value;
}

void PairRowRun::CompareEntries() {
  const PairSide& teacher = pass_.teacher;
  const RowStatistics& student = stats_.student;
  TopkEntries<float> entries;
  entries.width = teacher.topk_ids.width;
  entries.ids = &teacher.topk_ids;
  entries.row = row_;
  entries.value = teacher.topk_logprob.Row<const float>(row_);
  entries.value_scale = pass_.program.topk_tempered ? 1 : whole_.inverse_temperature;
  entries.entropy = student.Entropy();
  entries.gradient = entry_gradient_;
  float log_q[kMaxIds];
  for (int64_t k = 0; k < entries.width; ++k) {
    log_q[k] = 0;
    if (Entry(k) < 0) continue;
    RowStatistics at = student;
    at.target_d = LogitOf(Entry(k)) - student.max;
    log_q[k] = at.Logprob();
  }
  entries.log_q = log_q;
  SerialTeam team;
  const TopkValue<float> value = TopkRow<float>(pass_.program.topk, entries).Run(team);
  stats_.divergence = value.value;
  stats_.student_mass = value.student_mass;
  stats_.teacher_mass = value.teacher_mass;
  gradient_.topk = true;
  gradient_.dense = value.dense;
  gradient_.log_factor = value.log_factor;
  gradient_.value.total = -value.listed;
}

// Entries among the K largest logits, equal ones by rising id.
int32_t PairRowRun::CountOverlap() const {
  const int64_t width = pass_.teacher.topk_ids.width;
  if (stats_.student.degenerate || width == 0) return 0;
  std::vector<float> z(whole_.columns);
  shared_.sweeps->logits(whole_, 0, whole_.columns, z.data());
  float least = -std::numeric_limits<float>::infinity();
  int64_t above = 0;
  if (width < whole_.columns) {
    std::vector<float> sorted = z;
    std::nth_element(sorted.begin(), sorted.begin() + width - 1, sorted.end(),
                     std::greater<float>());
    least = sorted[width - 1];
    for (const float value : z) above += value > least ? 1 : 0;
  }
  int32_t overlap = 0;
  for (int64_t k = 0; k < width; ++k) {
    const int64_t id = Entry(k);
    if (id < 0 || z[id] < least) continue;
    // Of those equal to the last, as many as there is room for.
    const bool in = z[id] > least || width >= whole_.columns ||
                    above + std::count(z.begin(), z.begin() + id, least) < width;
    overlap += in ? 1 : 0;
  }
  return overlap;
}

void PairRowRun::WriteGradient(const PairCoefficients& coefficients) {
  gradient_.coefficients = coefficients;
  const int64_t width = gradient_.topk && coefficients.soft != 0 ? pass_.teacher.topk_ids.width : 0;
  int64_t count = 0;
  int64_t column[kMaxIds];
  float value[kMaxIds];
  for (int64_t k = 0; k < width; ++k) {
    const int64_t id = Entry(k);
    if (id < 0) continue;
    float g = entry_gradient_[k];
    if (gradient_.log_factor != 0) {
      // The columns' own formula is not that of an entry: what it will have written is taken off, once.
      const bool first = std::find(column, column + count, id) == column + count;
      const float log_q = LogitOf(id) - pair_.student.max - std::log(pair_.student.sum_exp);
      const float q = std::exp(log_q);
      if (first && q != 0) {
        g -= q * (gradient_.value.total + gradient_.dense + gradient_.log_factor * log_q);
      }
    }
    column[count] = id;
    value[count++] = g * coefficients.soft * shared_.sweeps->slope(whole_, id);
  }
  shared_.pair_sweeps->gradient(pair_, gradient_);
  for (int64_t k = 0; k < count; ++k) whole_.raw[column[k]] += value[k];
}

}  // namespace

bool RunPairRow(const PairRows& shared, int64_t row, float* student, float* teacher) {
  return PairRowRun(shared, row, student, teacher).Run();
}

}  // namespace lossd
