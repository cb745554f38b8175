#include "kernels/cpu/layer_sweeps.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/layer_math.h"
#include "kernels/cpu/sweeps.h"
#include "kernels/layers/norm.h"

namespace lossd {
namespace {

using vec::F32;
using vec::I32;
using vec::kLanes;

// The lambdas below must be inlined as the functions are, or they would not have their instruction set.
#define LOSSD_VEC_LAMBDA __attribute__((always_inline))

// Partial sums of this many groups are added up before they go to a sum in double.
constexpr int64_t kGroupsPerBlock = 32;

// Lanes of the group at j that are columns.
LOSSD_VEC I32 Inside(int64_t columns, int64_t j) {
  return vec::Lanes() < static_cast<int32_t>(std::min<int64_t>(columns - j, kLanes));
}

// The sum of value(j) over the columns, the lanes of each group at once.
template <class Value>
LOSSD_VEC double SumOf(int64_t columns, const Value& value) {
  double sum = 0;
  F32 lanes = {};
  int64_t groups = 0;
  int64_t j = 0;
  for (; j + kLanes <= columns; j += kLanes) {
    lanes += value(j);
    if (++groups % kGroupsPerBlock != 0) continue;
    sum += vec::SumLanes(lanes);
    lanes = F32{};
  }
  if (j < columns) lanes += Inside(columns, j) ? value(j) : F32{};
  return sum + vec::SumLanes(lanes);
}

// f with the rounding known to the compiler.
template <class F>
LOSSD_VEC void WithRounding(Rounding rounding, const F& f) {
  switch (rounding) {
    case Rounding::kBF16:
      return f(std::integral_constant<Rounding, Rounding::kBF16>());
    case Rounding::kF16:
      return f(std::integral_constant<Rounding, Rounding::kF16>());
    case Rounding::kNone:
      return f(std::integral_constant<Rounding, Rounding::kNone>());
  }
}

LOSSD_VEC void AddBody(float* x, const float* residual, int64_t columns, Rounding rounding) {
  WithRounding(rounding, [&](auto known) LOSSD_VEC_LAMBDA {
    for (int64_t j = 0; j < columns; j += kLanes) {
      vec::Store(x + j, VectorMath::Round<decltype(known)::value>(vec::Load(x + j) +
                                                                  vec::Load(residual + j)));
    }
  });
}

LOSSD_VEC double SquaresBody(const float* x, float center, int64_t columns) {
  return SumOf(columns, [&](int64_t j) LOSSD_VEC_LAMBDA {
    const F32 d = vec::Load(x + j) - center;
    return d * d;
  });
}

LOSSD_VEC F32 WeightAt(const NormPiece& piece, int64_t j) {
  return piece.weight == nullptr ? vec::Splat(1) : vec::Load(piece.weight + j);
}

LOSSD_VEC void NormBody(const NormPiece& piece, float* y) {
  WithRounding(piece.rounding, [&](auto known) LOSSD_VEC_LAMBDA {
    for (int64_t j = 0; j < piece.columns; j += kLanes) {
      F32 value = Normalized<VectorMath, decltype(known)::value>(
          vec::Load(piece.x + j), vec::Splat(piece.mean), vec::Splat(piece.rstd));
      value *= WeightAt(piece, j);
      if (piece.bias != nullptr) value += vec::Load(piece.bias + j);
      vec::Store(y + j, value);
    }
  });
}

LOSSD_VEC F32 UpstreamAt(const NormPiece& piece, int64_t j) {
  return vec::Load(piece.d_y + j) * WeightAt(piece, j);
}

LOSSD_VEC void NormSumsBody(const NormPiece& piece, NormSums* sums) {
  sums->m += SumOf(piece.columns, [&](int64_t j) LOSSD_VEC_LAMBDA { return UpstreamAt(piece, j); });
  sums->m_n += SumOf(piece.columns, [&](int64_t j) LOSSD_VEC_LAMBDA {
    return UpstreamAt(piece, j) * Normalized<VectorMath, Rounding::kNone>(vec::Load(piece.x + j),
                                                                          vec::Splat(piece.mean),
                                                                          vec::Splat(piece.rstd));
  });
}

LOSSD_VEC void NormGradientBody(const NormPiece& piece, float by_mean, float by_dot,
                                const float* more, float* grad_x) {
  for (int64_t j = 0; j < piece.columns; j += kLanes) {
    F32 value = NormGradient<VectorMath>(UpstreamAt(piece, j), vec::Load(piece.x + j),
                                         vec::Splat(piece.mean), vec::Splat(piece.rstd),
                                         vec::Splat(by_mean), vec::Splat(by_dot));
    if (more != nullptr) value += vec::Load(more + j);
    vec::Store(grad_x + j, value);
  }
}

LOSSD_VEC void NormColumnsBody(const NormPiece& piece, float* weight_sums, float* bias_sums) {
  WithRounding(piece.rounding, [&](auto known) LOSSD_VEC_LAMBDA {
    for (int64_t j = 0; j < piece.columns; j += kLanes) {
      const F32 d_y = vec::Load(piece.d_y + j);
      if (weight_sums != nullptr) {
        const F32 n = Normalized<VectorMath, decltype(known)::value>(
            vec::Load(piece.x + j), vec::Splat(piece.mean), vec::Splat(piece.rstd));
        vec::Store(weight_sums + j, vec::Load(weight_sums + j) + d_y * n);
      }
      if (bias_sums != nullptr) vec::Store(bias_sums + j, vec::Load(bias_sums + j) + d_y);
    }
  });
}

// One set of entry points for each instruction set; the bodies above are inlined into them.
#define LOSSD_LAYER_SWEEPS(SET, ATTRIBUTE)                                                        \
  namespace SET {                                                                                 \
  ATTRIBUTE void Add(float* x, const float* residual, int64_t columns, Rounding rounding) {       \
    AddBody(x, residual, columns, rounding);                                                      \
  }                                                                                               \
  ATTRIBUTE double Sum(const float* x, int64_t columns) {                                         \
    return SumOf(columns, [&](int64_t j) LOSSD_VEC_LAMBDA { return vec::Load(x + j); });          \
  }                                                                                               \
  ATTRIBUTE double SumSquares(const float* x, float center, int64_t columns) {                    \
    return SquaresBody(x, center, columns);                                                       \
  }                                                                                               \
  ATTRIBUTE void Norm(const NormPiece& piece, float* y) { NormBody(piece, y); }                   \
  ATTRIBUTE void Sums(const NormPiece& piece, NormSums* sums) { NormSumsBody(piece, sums); }      \
  ATTRIBUTE void Gradient(const NormPiece& piece, float by_mean, float by_dot, const float* more, \
                          float* grad_x) {                                                        \
    NormGradientBody(piece, by_mean, by_dot, more, grad_x);                                       \
  }                                                                                               \
  ATTRIBUTE void Columns(const NormPiece& piece, float* weight_sums, float* bias_sums) {          \
    NormColumnsBody(piece, weight_sums, bias_sums);                                               \
  }                                                                                               \
  constexpr LayerSweeps kLayerTable = {Add, Sum, SumSquares, Norm, Sums, Gradient, Columns};      \
  }

LOSSD_LAYER_SWEEPS(plain, )
#if defined(__x86_64__)
LOSSD_LAYER_SWEEPS(avx2, __attribute__((target("avx2,fma"))))
LOSSD_LAYER_SWEEPS(avx512, __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))))
#endif

}  // namespace

int AvailableLayerSweeps(const LayerSweeps** tables, int capacity) {
  int count = 0;
  const auto add = [&](const LayerSweeps& table) {
    if (count < capacity) tables[count++] = &table;
  };
  add(plain::kLayerTable);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    add(avx2::kLayerTable);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      add(avx512::kLayerTable);
    }
  }
#endif
  return count;
}

const LayerSweeps& SelectLayerSweeps() {
  const LayerSweeps* tables[4];
  return *tables[AvailableLayerSweeps(tables, 4) - 1];
}

}  // namespace lossd
