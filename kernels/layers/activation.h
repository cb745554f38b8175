// Gated activations and squared ReLU: formulas of an element, and what a call is made of. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_LAYERS_ACTIVATION_H_
#define LOSSD_KERNELS_LAYERS_ACTIVATION_H_

#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/core/tensor_view.h"
#include "kernels/layers/real_math.h"

namespace lossd {

enum class GatedKind : int32_t { kSilu, kGeluTanh, kGeluErf };

struct GatedOptions {
  GatedKind kind = GatedKind::kSilu;
  float gate_scale = 1;  // kSilu
  float down_scale = 1;
  // The activation goes through the type of gate before the product.
  bool rounds_activation = false;
};

// a(gate) and its derivative.
template <class M>
struct Activation {
  typename M::Real value;
  typename M::Real slope;
};

// 1 / (1 + e^-x): 0 and 1 far out.
template <class M>
LOSSD_HD typename M::Real GateSigmoid(typename M::Real x) {
  return M::Reciprocal(1.0f + M::Exp(-x));
}

template <class M, GatedKind kKind>
LOSSD_HD Activation<M> Activate(const GatedOptions& options, typename M::Real gate) {
  using Real = typename M::Real;
  if (kKind == GatedKind::kSilu) {
    const Real v = options.gate_scale * gate;
    const Real sig = GateSigmoid<M>(v);
    const Real value = v * sig;
    return {value, options.gate_scale * (sig + value * (1.0f - sig))};
  }
  if (kKind == GatedKind::kGeluTanh) {
    // (1 + tanh(u)) / 2 = sig(2u), without cancellation. Beyond 30 it is 0 or 1, and the cube cannot overflow.
    const Real far = M::Splat(30);
    const Real g = gate > far ? far : (gate < -far ? -far : gate);
    const Real square = g * g;
    const Real sig = GateSigmoid<M>(1.5957691216057308f * g * (1.0f + 0.044715f * square));
    const Real value = gate * sig;
    const Real inner = 1.5957691216057308f * (1.0f + 0.134145f * square);
    return {value, sig + g * sig * (1.0f - sig) * inner};
  }
  const Real cumulative = 0.5f * M::Erfc(-0.7071067811865476f * gate);
  const Real density = 0.3989422804014327f * M::Exp(-0.5f * (gate * gate));
  // Far out the density is 0 and gate may be infinite.
  const Real outer = density == 0.0f ? M::Splat(0) : gate * density;
  return {gate * cumulative, cumulative + outer};
}

template <class M, GatedKind kKind, Rounding kRounding>
LOSSD_HD typename M::Real GatedValue(const GatedOptions& options, typename M::Real gate,
                                     typename M::Real up) {
  const typename M::Real a = M::template Round<kRounding>(Activate<M, kKind>(options, gate).value);
  return options.down_scale * a * up;
}

template <class M>
struct GatedSlopes {
  typename M::Real gate;
  typename M::Real up;
};

// Gradients with respect to gate and up. The activation is as it was used, its derivative that of the unrounded one.
template <class M, GatedKind kKind, Rounding kRounding>
LOSSD_HD GatedSlopes<M> GatedGradient(const GatedOptions& options, typename M::Real gate,
                                      typename M::Real up, typename M::Real d_y) {
  const Activation<M> a = Activate<M, kKind>(options, gate);
  const typename M::Real d = options.down_scale * d_y;
  return {d * up * a.slope, d * M::template Round<kRounding>(a.value)};
}

// max(x, 0)^2. NaN stays NaN.
template <class M>
LOSSD_HD typename M::Real ReluSquaredValue(typename M::Real x) {
  const typename M::Real positive = x < 0.0f ? M::Splat(0) : x;
  return positive * positive;
}

template <class M>
LOSSD_HD typename M::Real ReluSquaredGradient(typename M::Real x, typename M::Real d_y) {
  return x <= 0.0f ? M::Splat(0) : 2.0f * x * d_y;
}

// Calls. Where gate and up are halves of one tensor, the views are of these. Absent outputs are not wanted.
struct GatedForward {
  GatedOptions options;
  int64_t rows = 0;
  int64_t width = 0;  // F, at least 1
  RowsView gate;      // [N, F]
  RowsView up;        // [N, F], type of gate
  RowsView y;         // [N, F]
};

struct GatedBackward {
  GatedOptions options;
  int64_t rows = 0;
  int64_t width = 0;
  RowsView gate;
  RowsView up;
  RowsView d_y;        // [N, F]
  RowsView grad_gate;  // [N, F]
  RowsView grad_up;    // [N, F]
};

struct ReluSquaredForward {
  int64_t rows = 0;
  int64_t width = 0;  // C, at least 1
  RowsView x;         // [N, C]
  RowsView y;         // [N, C]
};

struct ReluSquaredBackward {
  int64_t rows = 0;
  int64_t width = 0;
  RowsView x;
  RowsView d_y;     // [N, C]
  RowsView grad_x;  // [N, C]
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_LAYERS_ACTIVATION_H_
