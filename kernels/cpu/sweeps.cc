#include "kernels/cpu/sweeps.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/logit_transform.h"
#include "kernels/cpu/vector_math.h"

namespace lossd {
namespace {

using vec::F32;
using vec::I32;
using vec::kLanes;

static_assert(kColumnGroup == kLanes);

// Partial sums of this many groups are added up before they go to the row's sums: 128k columns then cost about as much accuracy as 512.
constexpr int64_t kGroupsPerBlock = 32;

// Lanes of the group at j that are columns.
LOSSD_VEC I32 IsColumn(const LogitRow& row, int64_t j) {
  const int32_t left = static_cast<int32_t>(std::min<int64_t>(row.columns - j, kLanes));
  return vec::Lanes() < left;
}

struct Largest {
  F32 value;
  I32 column;
  I32 not_numbers;
};

LOSSD_VEC void Raise(Largest* largest, F32 z, I32 column) {
  const I32 above = z > largest->value;
  largest->value = above ? z : largest->value;
  largest->column = above ? column : largest->column;
  largest->not_numbers |= z != z;
}

template <bool kCap>
LOSSD_VEC void FindMax(const LogitRow& row, RowStatistics* stats) {
  const float infinity = std::numeric_limits<float>::infinity();
  Largest largest = {vec::Splat(-infinity), I32{} - 1, I32{}};
  int64_t j = 0;
  for (; j + kLanes <= row.columns; j += kLanes) {
    Raise(&largest, LogitsAt<kCap>(row, j), vec::Lanes() + static_cast<int32_t>(j));
  }
  if (j < row.columns) {
    const F32 z = LogitsAt<kCap>(row, j);
    Raise(&largest, IsColumn(row, j) ? z : vec::Splat(-infinity),
          vec::Lanes() + static_cast<int32_t>(j));
  }
  stats->max = -infinity;
  stats->argmax = -1;
  bool is_number = true;
  for (int lane = 0; lane < kLanes; ++lane) {
    is_number = is_number && largest.not_numbers[lane] == 0;
    const float value = largest.value[lane];
    const int32_t column = largest.column[lane];
    if (value > stats->max || (value == stats->max && column >= 0 && column < stats->argmax)) {
      stats->max = value;
      stats->argmax = column;
    }
  }
  stats->degenerate = !is_number || std::isinf(stats->max);
  if (!is_number || stats->max > 0) {
    if (stats->degenerate) stats->max = std::numeric_limits<float>::quiet_NaN();
  }
}

struct Sums {
  F32 exp = {};
  F32 exp_d = {};
  F32 exp_2 = {};
  F32 d = {};
};

LOSSD_VEC void AddGroup(Sums* sums, F32 d) {
  const F32 e = vec::Exp(d);
  // Below this e is 0, and so is the product, for -infinity too.
  const F32 bounded = d < -200.0f ? vec::Splat(-200.0f) : d;
  sums->exp += e;
  sums->exp_d += e * bounded;
  sums->exp_2 += e * e;
  sums->d += d;
}

LOSSD_VEC void AddSums(Sums* to, const Sums& from) {
  to->exp += from.exp;
  to->exp_d += from.exp_d;
  to->exp_2 += from.exp_2;
  to->d += from.d;
}

template <bool kCap>
LOSSD_VEC void StatisticsBody(const LogitRow& row, RowStatistics* stats) {
  FindMax<kCap>(row, stats);
  if (stats->degenerate) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    stats->sum_exp = stats->sum_exp_d = stats->sum_exp_2 = stats->sum_d = nan;
    stats->argmax = -1;
    return;
  }
  const float max = stats->max;
  Sums total;
  int64_t j = 0;
  while (j + kLanes <= row.columns) {
    Sums block;
    const int64_t end = std::min(row.columns, j + kGroupsPerBlock * kLanes);
    for (; j + kLanes <= end; j += kLanes) AddGroup(&block, LogitsAt<kCap>(row, j) - max);
    AddSums(&total, block);
  }
  if (j < row.columns) {
    const F32 d = LogitsAt<kCap>(row, j) - max;
    const I32 column = IsColumn(row, j);
    Sums tail;
    AddGroup(&tail, column ? d : vec::Splat(-1000.0f));
    tail.d = column ? d : F32{};
    AddSums(&total, tail);
  }
  stats->sum_exp = static_cast<float>(vec::SumLanes(total.exp));
  stats->sum_exp_d = static_cast<float>(vec::SumLanes(total.exp_d));
  stats->sum_exp_2 = static_cast<float>(vec::SumLanes(total.exp_2));
  stats->sum_d = static_cast<float>(vec::SumLanes(total.d));
}

template <bool kCap>
LOSSD_VEC float WeightedDBody(const LogitRow& row, float max, const float* column_weight) {
  F32 total = {};
  F32 block = {};
  int64_t groups = 0;
  for (int64_t j = 0; j < row.columns; j += kLanes) {
    const F32 weight = vec::Load(column_weight + j);
    const F32 term = weight * (LogitsAt<kCap>(row, j) - max);
    const I32 counts = (weight != 0.0f) & IsColumn(row, j);
    block += counts ? term : F32{};
    if (++groups % kGroupsPerBlock == 0) {
      total += block;
      block = F32{};
    }
  }
  return static_cast<float>(vec::SumLanes(total + block));
}

template <bool kCap>
LOSSD_VEC void LogitsBody(const LogitRow& row, int64_t begin, int64_t count, float* z) {
  int64_t j = 0;
  for (; j + kLanes <= count && begin + j + kLanes <= row.columns; j += kLanes) {
    vec::Store(z + j, LogitsAt<kCap>(row, begin + j));
  }
  for (; j < count; ++j) {
    const int64_t group = (begin + j) / kLanes * kLanes;
    z[j] = LogitsAt<kCap>(row, group)[begin + j - group];
  }
}

template <bool kCap>
LOSSD_VEC float SlopeBody(const LogitRow& row, int64_t column) {
  const int64_t group = column / kLanes * kLanes;
  return Transform<kCap>(row, group, vec::Load(row.raw + group)).slope[column - group];
}

template <bool kCap, bool kEntropy, bool kWeights>
LOSSD_VEC F32 GradientGroup(const LogitRow& row, const GradientRow& g, float inverse_sum,
                            float log_sum, int64_t j, F32 raw, F32 at_target) {
  const Transformed logit = Transform<kCap>(row, j, raw);
  const F32 d = logit.z - g.max;
  const F32 p = vec::Exp(d) * inverse_sum;
  F32 dz = g.coefficients.c * p;
  if (kWeights) {
    dz -= g.coefficients.u * vec::Load(g.column_weight + j);
  } else {
    dz -= g.coefficients.u;
  }
  if (kEntropy) {
    const F32 log_p = d - log_sum;
    const F32 bounded = log_p < -1000.0f ? vec::Splat(-1000.0f) : log_p;  // p is 0 there
    dz -= g.coefficients.h * p * (bounded + g.coefficients.entropy);
  }
  return (dz - at_target) * logit.slope;
}

template <bool kCap, bool kEntropy, bool kWeights>
LOSSD_VEC void GradientBody(const LogitRow& row, const GradientRow& g) {
  const float inverse_sum = 1.0f / g.sum_exp;
  const float log_sum = std::log(g.sum_exp);
  const bool has_target = g.target >= 0 && g.coefficients.a != 0;
  const int64_t target_group = has_target ? g.target / kLanes * kLanes : 0;
  const F32 target_raw = has_target ? vec::Load(row.raw + target_group) : F32{};
  for (int64_t j = 0; j < row.columns; j += kLanes) {
    vec::Store(row.raw + j, GradientGroup<kCap, kEntropy, kWeights>(row, g, inverse_sum, log_sum, j,
                                                                    vec::Load(row.raw + j), F32{}));
  }
  if (has_target) {
    const I32 is_target = vec::Lanes() == static_cast<int32_t>(g.target - target_group);
    const F32 a = is_target ? vec::Splat(g.coefficients.a) : F32{};
    vec::Store(row.raw + target_group,
               GradientGroup<kCap, kEntropy, kWeights>(row, g, inverse_sum, log_sum, target_group,
                                                       target_raw, a));
  }
}

template <bool kCap>
LOSSD_VEC void GradientChoice(const LogitRow& row, const GradientRow& g) {
  const bool entropy = g.coefficients.h != 0;
  if (g.column_weight != nullptr) {
    if (entropy) return GradientBody<kCap, true, true>(row, g);
    return GradientBody<kCap, false, true>(row, g);
  }
  if (entropy) return GradientBody<kCap, true, false>(row, g);
  return GradientBody<kCap, false, false>(row, g);
}

// One set of entry points for each instruction set; the bodies above are inlined into them.
#define LOSSD_SWEEPS(SET, NAME, ATTRIBUTE)                                                  \
  namespace SET {                                                                           \
  ATTRIBUTE void Statistics(const LogitRow& row, RowStatistics* stats) {                    \
    row.softcap > 0 ? StatisticsBody<true>(row, stats) : StatisticsBody<false>(row, stats); \
  }                                                                                         \
  ATTRIBUTE float WeightedD(const LogitRow& row, float max, const float* weight) {          \
    return row.softcap > 0 ? WeightedDBody<true>(row, max, weight)                          \
                           : WeightedDBody<false>(row, max, weight);                        \
  }                                                                                         \
  ATTRIBUTE void Logits(const LogitRow& row, int64_t begin, int64_t count, float* z) {      \
    row.softcap > 0 ? LogitsBody<true>(row, begin, count, z)                                \
                    : LogitsBody<false>(row, begin, count, z);                              \
  }                                                                                         \
  ATTRIBUTE float Slope(const LogitRow& row, int64_t column) {                              \
    return row.softcap > 0 ? SlopeBody<true>(row, column) : SlopeBody<false>(row, column);  \
  }                                                                                         \
  ATTRIBUTE void Gradient(const LogitRow& row, const GradientRow& g) {                      \
    row.softcap > 0 ? GradientChoice<true>(row, g) : GradientChoice<false>(row, g);         \
  }                                                                                         \
  constexpr Sweeps kTable = {NAME, Statistics, WeightedD, Logits, Slope, Gradient};         \
  }

LOSSD_SWEEPS(plain, "plain", )
#if defined(__x86_64__)
LOSSD_SWEEPS(avx2, "avx2", __attribute__((target("avx2,fma"))))
LOSSD_SWEEPS(avx512, "avx512",
             __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))))
#endif

}  // namespace

int AvailableSweeps(const Sweeps** tables, int capacity) {
  int count = 0;
  const auto add = [&](const Sweeps& table) {
    if (count < capacity) tables[count++] = &table;
  };
  add(plain::kTable);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    add(avx2::kTable);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      add(avx512::kTable);
    }
  }
#endif
  return count;
}

const Sweeps& SelectSweeps() {
  const Sweeps* tables[4];
  return *tables[AvailableSweeps(tables, 4) - 1];
}

}  // namespace lossd
