// Divergence from a teacher that lists its most likely ids. One team works on one row. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_DIVERGENCE_TOPK_H_
#define LOSSD_KERNELS_OBJECTIVES_DIVERGENCE_TOPK_H_

#include <cmath>
#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/core/tensor_view.h"
#include "kernels/objectives/divergence.h"

namespace lossd {

// Numbers of the wire; the operation checks it.
enum class TopkTail : int32_t { kDrop = 1, kRenormalise = 2, kGhost = 3, kZeroOutside = 4 };

template <class Real>
struct TopkOptions {
  DivergenceKind<Real> divergence;
  TopkTail tail = TopkTail::kDrop;
  Real outside_logprob = -100;
  bool has_floor = false;
  Real floor = 0;  // DROP: of the log-probabilities of both sides
};

// The entries of a row; those with a negative id are padding.
template <class Real>
struct TopkEntries {
  int64_t width = 0;
  const RowsView* ids = nullptr;
  int64_t row = 0;
  const Real* value = nullptr;  // [width]: the teacher's log-probabilities
  Real value_scale = 1;         // 1 / temperature where they were taken at temperature 1
  const Real* log_q = nullptr;  // [width]: the student's, of its whole softmax
  Real entropy = 0;             // the student's; ZERO_OUTSIDE with a reverse KL reads it
  Real* gradient = nullptr;     // [width], out: e_k, may be null

  LOSSD_HD bool Has(int64_t k) const { return ids->Index(row, k) >= 0; }
};

// With q and log q of the whole softmax: dz_j = q_j (dense + log_factor log q_j) for columns that are no entry, and
// dz_j = q_j listed + sum of e_k over the entries k of id j.
template <class Real>
struct TopkValue {
  Real value = 0;
  Real student_mass = 0;
  Real teacher_mass = 0;
  Real dense = 0;
  Real log_factor = 0;
  Real listed = 0;
};

// verl (DROP, floor), NeMo-RL and TRL (RENORMALISE), Megatron-LM (GHOST), NeMo-RL (ZERO_OUTSIDE). Sums in double.
template <class Real>
class TopkRow {
 public:
  LOSSD_HD TopkRow(const TopkOptions<Real>& options, const TopkEntries<Real>& entries)
      : o_(options), in_(entries) {}

  // Every thread of the team must call; every thread gets the result.
  template <class Team>
  LOSSD_HD TopkValue<Real> Run(Team& team) {
    TopkValue<Real> out;
    if (!Normalise(team)) return out;
    double x = 0;
    double y = 0;
    double q_mass = 0;
    double p_mass = 0;
    double q_distinct = 0;
    double q_log_distinct = 0;
    const bool outside = HasOutside();
    for (int64_t k = team.rank(); k < in_.width; k += team.size()) {
      if (!in_.Has(k)) continue;
      const DivergenceTerms<Real> terms = Terms(k);
      const Real whole = std::exp(in_.log_q[k]);
      x += terms.x;
      y += terms.y;
      q_mass += whole;
      p_mass += Teacher(k).p;
      if (!outside || !IsFirst(k)) continue;
      q_distinct += whole;
      q_log_distinct += whole == 0 ? Real(0) : whole * in_.log_q[k];
    }
    x = team.Sum(x);
    y = team.Sum(y);
    q_mass = team.Sum(q_mass);
    p_mass = team.Sum(p_mass);
    out.student_mass = static_cast<Real>(q_mass);
    out.teacher_mass = static_cast<Real>(p_mass);

    DivergenceTerms<Real> rest;
    if (o_.tail == TopkTail::kGhost) rest = Rest(q_mass, p_mass);
    double value = Weighted(x + rest.x, y + rest.y);
    if (o_.tail == TopkTail::kZeroOutside) {
      if (outside) {
        q_distinct = team.Sum(q_distinct);
        q_log_distinct = team.Sum(q_log_distinct);
        const double mass = 1 - q_distinct;
        out_mass_ = mass > 0 ? mass : mass * 0;
        out_term_ = -in_.entropy - q_log_distinct - o_.outside_logprob * out_mass_;
        value += o_.divergence.reverse * out_term_;
      } else {
        value += per_outside_ * (1 - q_mass);
      }
    }
    out.value = static_cast<Real>(value);
    const double total = Gradient(team);
    // Entries within a renormalised list move nothing outside it.
    if (o_.tail == TopkTail::kRenormalise) return out;
    out.listed = static_cast<Real>(-total);
    out.dense = out.listed;
    if (!outside) return out;
    const double r = o_.divergence.reverse;
    const double g = total + r * (out_term_ + out_mass_);
    out.listed = static_cast<Real>(-g);
    out.dense = static_cast<Real>(r * (1 - o_.outside_logprob) - g);
    out.log_factor = o_.divergence.reverse;
    return out;
  }

 private:
  // The teacher gives ids outside the list a finite log-probability: they all add to a reverse KL.
  LOSSD_HD bool HasOutside() const {
    return o_.tail == TopkTail::kZeroOutside && (o_.divergence.kind == Divergence::kReverseKl ||
                                                 o_.divergence.kind == Divergence::kMixed);
  }
  LOSSD_HD bool IsFirst(int64_t k) const {
    const int64_t id = in_.ids->Index(in_.row, k);
    for (int64_t before = 0; before < k; ++before) {
      if (in_.ids->Index(in_.row, before) == id) return false;
    }
    return true;
  }
  LOSSD_HD double Weighted(double x, double y) const {
    double value = 0;
    if (o_.divergence.forward != 0) value += o_.divergence.forward * x;
    if (o_.divergence.reverse != 0) value += o_.divergence.reverse * y;
    return value;
  }

  LOSSD_HD Real Value(int64_t k) const { return in_.value[k] * in_.value_scale; }

  // Log of sum exp over the entries, with its maximum taken out.
  template <class Team, class Log>
  LOSSD_HD Real LogSum(Team& team, Log log) {
    double max = -INFINITY;
    for (int64_t k = team.rank(); k < in_.width; k += team.size()) {
      if (in_.Has(k) && log(k) > max) max = log(k);
    }
    max = team.Max(max);
    double sum = 0;
    for (int64_t k = team.rank(); k < in_.width; k += team.size()) {
      if (in_.Has(k)) sum += std::exp(log(k) - static_cast<Real>(max));
    }
    sum = team.Sum(sum);
    return static_cast<Real>(max + std::log(sum));
  }

  // The logarithms to take off both sides. False if the row has no entry.
  template <class Team>
  LOSSD_HD bool Normalise(Team& team) {
    int64_t entries = 0;
    for (int64_t k = team.rank(); k < in_.width; k += team.size()) entries += in_.Has(k) ? 1 : 0;
    entries = team.Sum(entries);
    if (entries == 0) {
      if (in_.gradient == nullptr) return false;
      for (int64_t k = team.rank(); k < in_.width; k += team.size()) in_.gradient[k] = 0;
      return false;
    }
    if (o_.tail == TopkTail::kRenormalise || o_.tail == TopkTail::kZeroOutside) {
      teacher_sum_ = LogSum(team, [this](int64_t k) { return Value(k); });
    }
    if (o_.tail == TopkTail::kRenormalise) {
      student_sum_ = LogSum(team, [this](int64_t k) { return in_.log_q[k]; });
    }
    if (o_.tail == TopkTail::kZeroOutside) {
      // What an id outside the list adds for each unit of q.
      if (o_.divergence.kind == Divergence::kJsd) {
        per_outside_ = -(1 - o_.divergence.beta) * std::log1p(-o_.divergence.beta);
      }
      if (o_.divergence.kind == Divergence::kTvd) per_outside_ = Real(0.5);
    }
    return true;
  }

  LOSSD_HD Outcome<Real> Teacher(int64_t k) const {
    Outcome<Real> out;
    out.log = Value(k) - teacher_sum_;
    if (o_.has_floor && out.log < o_.floor) out.log = o_.floor;
    out.p = std::exp(out.log);
    return out;
  }
  LOSSD_HD bool IsRaised(int64_t k) const { return o_.has_floor && in_.log_q[k] < o_.floor; }
  LOSSD_HD Outcome<Real> Student(int64_t k) const {
    Outcome<Real> out;
    out.log = IsRaised(k) ? o_.floor : in_.log_q[k] - student_sum_;
    out.p = std::exp(out.log);
    return out;
  }
  LOSSD_HD DivergenceTerms<Real> Terms(int64_t k) const {
    return TermsOf(o_.divergence, Teacher(k), Student(k));
  }

  // GHOST: the outcome of all ids outside the list.
  LOSSD_HD DivergenceTerms<Real> Rest(double q_mass, double p_mass) {
    constexpr double kLeast = 1e-8;
    const double q = 1 - q_mass;
    const double p = 1 - p_mass;
    // NaN is not raised.
    rest_is_raised_ = q < kLeast;
    Outcome<Real> student;
    student.p = static_cast<Real>(rest_is_raised_ ? kLeast : q);
    student.log = std::log(student.p);
    Outcome<Real> teacher;
    teacher.p = static_cast<Real>(p < kLeast ? kLeast : p);
    teacher.log = std::log(teacher.p);
    const DivergenceTerms<Real> terms = TermsOf(o_.divergence, teacher, student);
    // d log q_rest = -sum q_k dlog q_k / q_rest.
    if (!rest_is_raised_) rest_slope_ = SlopeOf(o_.divergence, teacher.p, terms) / student.p;
    return terms;
  }

  // Writes e_k and gives their sum.
  template <class Team>
  LOSSD_HD double Gradient(Team& team) {
    double total = 0;
    for (int64_t k = team.rank(); k < in_.width; k += team.size()) {
      if (in_.Has(k) && !IsRaised(k)) total += Slope(k);
    }
    total = team.Sum(total);
    if (in_.gradient == nullptr) return total;
    for (int64_t k = team.rank(); k < in_.width; k += team.size()) {
      Real e = 0;
      if (in_.Has(k) && !IsRaised(k)) {
        e = Slope(k);
        if (o_.tail == TopkTail::kRenormalise) {
          e -= static_cast<Real>(Student(k).p * total);
        }
      }
      in_.gradient[k] = e;
    }
    return total;
  }

  // g of an entry. The part that adds up to a multiple of q over all outcomes cancels if these are the whole distribution.
  LOSSD_HD Real Slope(int64_t k) const {
    const Real q = Student(k).p;
    Real g = SlopeOf(o_.divergence, Teacher(k).p, Terms(k));
    const bool whole =
        o_.tail == TopkTail::kRenormalise || (o_.tail == TopkTail::kGhost && !rest_is_raised_);
    if (!whole && o_.divergence.q_factor != 0) g += o_.divergence.q_factor * q;
    if (o_.tail == TopkTail::kGhost) g -= rest_slope_ * q;
    if (!HasOutside()) g -= per_outside_ * q;
    return g;
  }

  const TopkOptions<Real>& o_;
  const TopkEntries<Real>& in_;
  Real teacher_sum_ = 0;
  Real student_sum_ = 0;
  Real per_outside_ = 0;
  Real rest_slope_ = 0;
  bool rest_is_raised_ = false;
  double out_mass_ = 0;  // of ids outside the list
  double out_term_ = 0;  // sum of q (log q - outside_logprob) over them
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_DIVERGENCE_TOPK_H_
