#include "kernels/cpu/pair_sweeps.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/cpu/logit_transform.h"
#include "kernels/cpu/vector_math.h"

namespace lossd {
namespace {

using vec::F32;
using vec::I32;
using vec::kLanes;

// Partial sums of this many groups are added up before they go to the row's sums in double.
constexpr int64_t kGroupsPerBlock = 32;

LOSSD_VEC Transformed TransformAny(const LogitRow& row, int64_t j) {
  const F32 raw = vec::Load(row.raw + j);
  return row.softcap > 0 ? Transform<true>(row, j, raw) : Transform<false>(row, j, raw);
}

struct Outcomes {
  F32 p;
  F32 log;
  F32 value;  // as stored, after the transform
};

// A side's distribution, ready for its columns.
struct Side {
  const DistributionRow* row;
  float log_sum;
  float inverse_sum;
};

LOSSD_VEC Side MakeSide(const DistributionRow& row) {
  return {&row, std::log(row.sum_exp), 1.0f / row.sum_exp};
}

LOSSD_VEC Outcomes FromValue(const Side& side, F32 z) {
  Outcomes out;
  out.value = z;
  switch (side.row->kind) {
    case ValueKind::kLogits: {
      const F32 d = z - side.row->max;
      out.p = vec::Exp(d) * side.inverse_sum;
      out.log = d - side.log_sum;
      break;
    }
    case ValueKind::kLogprobs:
      out.p = vec::Exp(z);
      out.log = z;
      break;
    case ValueKind::kProbs:
      out.p = z;
      out.log = vec::Log(z);
      break;
  }
  return out;
}

// Lanes of the group at j below `columns`.
LOSSD_VEC I32 Below(int64_t columns, int64_t j) {
  const int64_t left = std::clamp<int64_t>(columns - j, 0, kLanes);
  return vec::Lanes() < static_cast<int32_t>(left);
}

LOSSD_VEC Outcomes TeacherAt(const Side& side, int64_t j) {
  const LogitRow& row = side.row->values;
  const F32 infinity = vec::Splat(INFINITY);
  Outcomes out;
  if (j >= row.columns) {
    out.p = out.value = F32{};
    out.log = -infinity;
    return out;
  }
  out = FromValue(side, TransformAny(row, j).z);
  if (j + kLanes <= row.columns) return out;
  const I32 inside = Below(row.columns, j);
  out.p = inside ? out.p : F32{};
  out.log = inside ? out.log : -infinity;
  out.value = inside ? out.value : F32{};
  return out;
}

struct Terms {
  F32 x;
  F32 y;
};

// TermsOf of objectives/divergence.h, with the divergence known to the compiler.
template <Divergence kKind>
LOSSD_VEC Terms VectorTerms(const DivergenceKind<float>& kind, const Outcomes& p,
                            const Outcomes& q) {
  Terms out = {F32{}, F32{}};
  if (kKind == Divergence::kForwardKl || kKind == Divergence::kMixed) {
    F32 log_p = p.log;
    if (kKind == Divergence::kForwardKl && kind.teacher_floor > 0) {
      log_p = p.p < kind.teacher_floor ? vec::Splat(std::log(kind.teacher_floor)) : log_p;
    }
    const F32 x = p.p * (log_p - q.log);
    out.x = p.p == 0.0f ? F32{} : x;
  }
  if (kKind == Divergence::kReverseKl || kKind == Divergence::kMixed) {
    const F32 y = q.p * (q.log - p.log);
    out.y = q.p == 0.0f ? F32{} : y;
  }
  if (kKind == Divergence::kJsd) {
    const F32 d = q.log - p.log;
    const I32 above = d >= 0.0f;
    const F32 a = vec::Expm1Negative(above ? -d : d);
    const F32 larger = -vec::Log1p((above ? vec::Splat(kind.beta) : vec::Splat(1 - kind.beta)) * a);
    const F32 x = p.p * (above ? larger - d : larger);
    const F32 y = q.p * (above ? larger : larger + d);
    out.x = p.p == 0.0f ? F32{} : x;
    out.y = q.p == 0.0f ? F32{} : y;
  }
  if (kKind == Divergence::kTvd) {
    const F32 d = q.p - p.p;
    const F32 half = 0.5f * q.p;
    out.x = 0.5f * (d < 0.0f ? -d : d);
    out.y = d > 0.0f ? half : (d < 0.0f ? -half : d * 0.0f);
  }
  return out;
}

struct Lanes {
  F32 x = {};
  F32 y = {};
  F32 p = {};
  F32 dot = {};
  F32 student = {};
  F32 teacher = {};
};

LOSSD_VEC void Flush(Lanes* lanes, DivergenceSums<double>* sums) {
  sums->x += vec::SumLanes(lanes->x);
  sums->y += vec::SumLanes(lanes->y);
  sums->p += vec::SumLanes(lanes->p);
  sums->dot += vec::SumLanes(lanes->dot);
  sums->student_square += vec::SumLanes(lanes->student);
  sums->teacher_square += vec::SumLanes(lanes->teacher);
  *lanes = Lanes();
}

template <Divergence kKind>
LOSSD_VEC void SumsBody(const PairRow& row, DivergenceSums<double>* sums, bool* negative) {
  const Side student = MakeSide(row.student);
  const Side teacher = MakeSide(row.teacher);
  const int64_t columns = row.student.values.columns;
  *sums = DivergenceSums<double>();
  sums->p = 0;
  Lanes lanes;
  I32 below_zero = {};
  int64_t groups = 0;
  for (int64_t j = 0; j < columns; j += kLanes) {
    const I32 inside = Below(columns, j);
    const F32 z = TransformAny(row.student.values, j).z;
    const Outcomes p = TeacherAt(teacher, j);
    below_zero |= p.p < 0.0f;
    if (kKind == Divergence::kCosine) {
      const F32 s = inside ? z : F32{};
      lanes.dot += inside ? z * p.value : F32{};
      lanes.student += s * s;
      lanes.teacher += p.value * p.value;
    } else {
      const Terms terms = VectorTerms<kKind>(row.divergence, p, FromValue(student, z));
      lanes.x += inside ? terms.x : F32{};
      lanes.y += inside ? terms.y : F32{};
      lanes.p += p.p;
    }
    if (++groups % kGroupsPerBlock == 0) Flush(&lanes, sums);
  }
  Flush(&lanes, sums);
  for (int lane = 0; lane < kLanes; ++lane) *negative = *negative || below_zero[lane] != 0;
}

LOSSD_VEC void SumsChoice(const PairRow& row, DivergenceSums<double>* sums, bool* negative) {
  switch (row.divergence.kind) {
    case Divergence::kForwardKl:
      return SumsBody<Divergence::kForwardKl>(row, sums, negative);
    case Divergence::kReverseKl:
      return SumsBody<Divergence::kReverseKl>(row, sums, negative);
    case Divergence::kMixed:
      return SumsBody<Divergence::kMixed>(row, sums, negative);
    case Divergence::kJsd:
      return SumsBody<Divergence::kJsd>(row, sums, negative);
    case Divergence::kTvd:
      return SumsBody<Divergence::kTvd>(row, sums, negative);
    case Divergence::kCosine:
      return SumsBody<Divergence::kCosine>(row, sums, negative);
  }
}

// The divergence's part of dz of a group of columns.
template <Divergence kKind, bool kTopk>
LOSSD_VEC F32 SoftPart(const PairRow& row, const PairGradient& g, const Side& student,
                       const Side& teacher, int64_t j, F32 z) {
  const DivergenceKind<float>& kind = row.divergence;
  const Outcomes q = FromValue(student, z);
  if (kTopk) {
    F32 factor = vec::Splat(g.dense);
    if (g.log_factor != 0) factor += g.log_factor * q.log;
    return q.p == 0.0f ? F32{} : q.p * factor;
  }
  const Outcomes p = TeacherAt(teacher, j);
  if (kKind == Divergence::kCosine) {
    return g.value.by_teacher * p.value + g.value.by_student * z;
  }
  if (kKind == Divergence::kTvd && row.student.kind == ValueKind::kProbs) {
    const F32 d = q.p - p.p;
    return d > 0.0f ? vec::Splat(0.5f) : (d < 0.0f ? vec::Splat(-0.5f) : d * 0.0f);
  }
  F32 out = {};
  if (kKind == Divergence::kForwardKl || kKind == Divergence::kMixed) out -= kind.p_factor * p.p;
  if (kKind != Divergence::kForwardKl) {
    out += kind.y_factor * VectorTerms<kKind>(kind, p, q).y;
  }
  if (row.student.kind == ValueKind::kLogits) return out - q.p * g.value.total;
  return kind.q_factor != 0 ? out + kind.q_factor * q.p : out;
}

template <Divergence kKind, bool kTopk>
LOSSD_VEC void GradientBody(const PairRow& row, const PairGradient& g) {
  const Side student = MakeSide(row.student);
  const Side teacher = MakeSide(row.teacher);
  const LogitRow& values = row.student.values;
  const float soft = g.coefficients.soft;
  const float hard = g.coefficients.hard * g.temperature;
  const float inverse_hard = 1.0f / g.hard_sum_exp;
  for (int64_t j = 0; j < g.columns; j += kLanes) {
    const Transformed at = TransformAny(values, j);
    F32 dz = {};
    if (soft != 0 && j < values.columns) {
      const F32 part = soft * SoftPart<kKind, kTopk>(row, g, student, teacher, j, at.z);
      dz = Below(values.columns, j) ? part : F32{};
    }
    if (hard != 0) {
      const F32 p = vec::Exp((at.z - g.hard_max) * g.temperature) * inverse_hard;
      const I32 is_target = vec::Lanes() == static_cast<int32_t>(g.target - j);
      dz += hard * (p - (is_target ? vec::Splat(1.0f) : F32{}));
    }
    vec::Store(values.raw + j, dz * at.slope);
  }
}

LOSSD_VEC void GradientChoice(const PairRow& row, const PairGradient& g) {
  if (g.topk) return GradientBody<Divergence::kForwardKl, true>(row, g);
  switch (row.divergence.kind) {
    case Divergence::kForwardKl:
      return GradientBody<Divergence::kForwardKl, false>(row, g);
    case Divergence::kReverseKl:
      return GradientBody<Divergence::kReverseKl, false>(row, g);
    case Divergence::kMixed:
      return GradientBody<Divergence::kMixed, false>(row, g);
    case Divergence::kJsd:
      return GradientBody<Divergence::kJsd, false>(row, g);
    case Divergence::kTvd:
      return GradientBody<Divergence::kTvd, false>(row, g);
    case Divergence::kCosine:
      return GradientBody<Divergence::kCosine, false>(row, g);
  }
}

// One set of entry points for each instruction set; the bodies above are inlined into them.
#define LOSSD_PAIR_SWEEPS(SET, ATTRIBUTE)                                                          \
  namespace SET {                                                                                  \
  ATTRIBUTE void PairSums(const PairRow& row, DivergenceSums<double>* sums, bool* negative) {      \
    SumsChoice(row, sums, negative);                                                               \
  }                                                                                                \
  ATTRIBUTE void PairSlopes(const PairRow& row, const PairGradient& g) { GradientChoice(row, g); } \
  constexpr PairSweeps kPairTable = {PairSums, PairSlopes};                                        \
  }

LOSSD_PAIR_SWEEPS(plain, )
#if defined(__x86_64__)
LOSSD_PAIR_SWEEPS(avx2, __attribute__((target("avx2,fma"))))
LOSSD_PAIR_SWEEPS(avx512, __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))))
#endif

}  // namespace

int AvailablePairSweeps(const PairSweeps** tables, int capacity) {
  int count = 0;
  const auto add = [&](const PairSweeps& table) {
    if (count < capacity) tables[count++] = &table;
  };
  add(plain::kPairTable);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    add(avx2::kPairTable);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      add(avx512::kPairTable);
    }
  }
#endif
  return count;
}

const PairSweeps& SelectPairSweeps() {
  const PairSweeps* tables[4];
  return *tables[AvailablePairSweeps(tables, 4) - 1];
}

}  // namespace lossd
