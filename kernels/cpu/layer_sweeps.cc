#include "kernels/cpu/layer_sweeps.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/layer_math.h"
#include "kernels/cpu/sweeps.h"
#include "kernels/layers/activation.h"
#include "kernels/layers/norm.h"
#include "kernels/layers/rope.h"
#include "kernels/layers/softmax.h"

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

// f with the kind and the rounding known to the compiler.
template <class F>
LOSSD_VEC void WithGated(const GatedOptions& options, Rounding rounding, const F& f) {
  WithRounding(rounding, [&](auto known) LOSSD_VEC_LAMBDA {
    switch (options.kind) {
      case GatedKind::kSilu:
        return f(std::integral_constant<GatedKind, GatedKind::kSilu>(), known);
      case GatedKind::kGeluTanh:
        return f(std::integral_constant<GatedKind, GatedKind::kGeluTanh>(), known);
      case GatedKind::kGeluErf:
        return f(std::integral_constant<GatedKind, GatedKind::kGeluErf>(), known);
    }
  });
}

LOSSD_VEC void GatedBody(const GatedOptions& options, Rounding rounding, const float* gate,
                         const float* up, int64_t columns, float* y) {
  WithGated(options, rounding, [&](auto kind, auto known) LOSSD_VEC_LAMBDA {
    for (int64_t j = 0; j < columns; j += kLanes) {
      vec::Store(y + j, GatedValue<VectorMath, decltype(kind)::value, decltype(known)::value>(
                            options, vec::Load(gate + j), vec::Load(up + j)));
    }
  });
}

LOSSD_VEC void GatedGradientBody(const GatedOptions& options, Rounding rounding, const float* d_y,
                                 int64_t columns, float* gate, float* up) {
  WithGated(options, rounding, [&](auto kind, auto known) LOSSD_VEC_LAMBDA {
    for (int64_t j = 0; j < columns; j += kLanes) {
      const GatedSlopes<VectorMath> slopes =
          GatedGradient<VectorMath, decltype(kind)::value, decltype(known)::value>(
              options, vec::Load(gate + j), vec::Load(up + j), vec::Load(d_y + j));
      vec::Store(gate + j, slopes.gate);
      vec::Store(up + j, slopes.up);
    }
  });
}

LOSSD_VEC void ReluSquaredBody(int64_t columns, float* x) {
  for (int64_t j = 0; j < columns; j += kLanes) {
    vec::Store(x + j, ReluSquaredValue<VectorMath>(vec::Load(x + j)));
  }
}

LOSSD_VEC void ReluSquaredGradientBody(const float* d_y, int64_t columns, float* x) {
  for (int64_t j = 0; j < columns; j += kLanes) {
    vec::Store(x + j, ReluSquaredGradient<VectorMath>(vec::Load(x + j), vec::Load(d_y + j)));
  }
}

LOSSD_VEC void SoftmaxSumsBody(const float* x, int64_t columns, SoftmaxSums* sums) {
  const F32 lowest = vec::Splat(-INFINITY);
  F32 lanes = lowest;
  for (int64_t j = 0; j < columns; j += kLanes) {
    const F32 z = Inside(columns, j) ? vec::Load(x + j) : lowest;
    lanes = z > lanes ? z : lanes;
  }
  float max = sums->max;
  for (int lane = 0; lane < kLanes; ++lane) max = lanes[lane] > max ? lanes[lane] : max;
  if (max > sums->max) {
    sums->sum *= std::exp(static_cast<double>(sums->max) - static_cast<double>(max));
    sums->max = max;
  }
  // Without a number above -infinity the sum is 0, or NaN where there is one.
  const float about = max == -INFINITY ? 0.0f : max;
  sums->sum += SumOf(
      columns, [&](int64_t j) LOSSD_VEC_LAMBDA { return vec::Exp(vec::Load(x + j) - about); });
}

LOSSD_VEC void SoftmaxBody(float max, float inverse_sum, int64_t columns, float* x) {
  for (int64_t j = 0; j < columns; j += kLanes) {
    vec::Store(x + j, SoftmaxValue<VectorMath>(vec::Load(x + j), vec::Splat(max),
                                               vec::Splat(inverse_sum)));
  }
}

LOSSD_VEC double SoftmaxDotBody(const float* y, const float* d_y, int64_t columns) {
  return SumOf(columns, [&](int64_t j) LOSSD_VEC_LAMBDA {
    return SoftmaxTerm<VectorMath>(vec::Load(y + j), vec::Load(d_y + j));
  });
}

LOSSD_VEC void SoftmaxGradientBody(const float* y, float sum, int64_t columns, float* d_y) {
  for (int64_t j = 0; j < columns; j += kLanes) {
    vec::Store(d_y + j,
               SoftmaxGradient<VectorMath>(vec::Load(y + j), vec::Load(d_y + j), vec::Splat(sum)));
  }
}

LOSSD_VEC void RopeBody(const float* cosine, const float* sine, float sign, bool interleaved,
                        int64_t pairs, float* x) {
  const auto turn = [&](int64_t k, float* first, float* second) LOSSD_VEC_LAMBDA {
    const RopePair<FloatMath> turned =
        Rotate<FloatMath>({*first, *second}, cosine[k], sign * sine[k]);
    *first = turned.first;
    *second = turned.second;
  };
  if (interleaved) {
    for (int64_t k = 0; k < pairs; ++k) turn(k, x + 2 * k, x + 2 * k + 1);
    return;
  }
  int64_t k = 0;
  for (; k + kLanes <= pairs; k += kLanes) {
    const RopePair<VectorMath> turned =
        Rotate<VectorMath>({vec::Load(x + k), vec::Load(x + pairs + k)}, vec::Load(cosine + k),
                           sign * vec::Load(sine + k));
    vec::Store(x + k, turned.first);
    vec::Store(x + pairs + k, turned.second);
  }
  for (; k < pairs; ++k) turn(k, x + k, x + pairs + k);
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
  ATTRIBUTE void Gated(const GatedOptions& options, Rounding rounding, const float* gate,         \
                       const float* up, int64_t columns, float* y) {                              \
    GatedBody(options, rounding, gate, up, columns, y);                                           \
  }                                                                                               \
  ATTRIBUTE void GatedSlope(const GatedOptions& options, Rounding rounding, const float* d_y,     \
                            int64_t columns, float* gate, float* up) {                            \
    GatedGradientBody(options, rounding, d_y, columns, gate, up);                                 \
  }                                                                                               \
  ATTRIBUTE void Squared(int64_t columns, float* x) { ReluSquaredBody(columns, x); }              \
  ATTRIBUTE void SquaredSlope(const float* d_y, int64_t columns, float* x) {                      \
    ReluSquaredGradientBody(d_y, columns, x);                                                     \
  }                                                                                               \
  ATTRIBUTE void ExpSums(const float* x, int64_t columns, SoftmaxSums* sums) {                    \
    SoftmaxSumsBody(x, columns, sums);                                                            \
  }                                                                                               \
  ATTRIBUTE void Softmax(float max, float inverse_sum, int64_t columns, float* x) {               \
    SoftmaxBody(max, inverse_sum, columns, x);                                                    \
  }                                                                                               \
  ATTRIBUTE double Dot(const float* y, const float* d_y, int64_t columns) {                       \
    return SoftmaxDotBody(y, d_y, columns);                                                       \
  }                                                                                               \
  ATTRIBUTE void SoftmaxSlope(const float* y, float sum, int64_t columns, float* d_y) {           \
    SoftmaxGradientBody(y, sum, columns, d_y);                                                    \
  }                                                                                               \
  ATTRIBUTE void Rope(const float* cosine, const float* sine, float sign, bool interleaved,       \
                      int64_t pairs, float* x) {                                                  \
    RopeBody(cosine, sine, sign, interleaved, pairs, x);                                          \
  }                                                                                               \
  constexpr LayerSweeps kLayerTable = {                                                           \
      Add,        Sum,     SumSquares,   Norm,    Sums,    Gradient, Columns,      Gated,         \
      GatedSlope, Squared, SquaredSlope, ExpSums, Softmax, Dot,      SoftmaxSlope, Rope};         \
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
