// RmsNorm and LayerNorm: formulas of an element, and what a call is made of. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_LAYERS_NORM_H_
#define LOSSD_KERNELS_LAYERS_NORM_H_

#include <cmath>
#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/core/result_record.h"
#include "kernels/core/tensor_view.h"
#include "kernels/layers/real_math.h"

namespace lossd {

enum class NormKind : int32_t { kRms, kLayer };

struct NormOptions {
  NormKind kind = NormKind::kRms;
  float eps = 1e-6f;
  // What is added to the weight (kRms).
  float weight_offset = 0;
  // Whether x rstd, and rstd itself, go through the type of x (kRms): GEMMA neither, LLAMA the first, INPUT both.
  bool rounds_normalized = false;
  bool rounds_rstd = false;
};

// 1 / sqrt(mean_square + eps), in the type of x if the options say so.
LOSSD_HD float InverseRoot(const NormOptions& options, float mean_square, DType x_type) {
  const float rstd = 1.0f / sqrtf(mean_square + options.eps);
  if (!options.rounds_rstd) return rstd;
  switch (RoundingOf(x_type)) {
    case Rounding::kBF16:
      return FloatMath::Round<Rounding::kBF16>(rstd);
    case Rounding::kF16:
      return FloatMath::Round<Rounding::kF16>(rstd);
    case Rounding::kNone:
      break;
  }
  return rstd;
}

// (x - mean) rstd; mean is 0 for RmsNorm.
template <class M, Rounding kRounding>
LOSSD_HD typename M::Real Normalized(typename M::Real x, typename M::Real mean,
                                     typename M::Real rstd) {
  return M::template Round<kRounding>((x - mean) * rstd);
}

// Of the upstream gradient m = d_y weight: its part of grad_x, where `by_mean` is the mean of m (LayerNorm; 0 for RmsNorm) and `by_dot`
// the mean of m n, n = (x - mean) rstd unrounded.
template <class M>
LOSSD_HD typename M::Real NormGradient(typename M::Real m, typename M::Real x,
                                       typename M::Real mean, typename M::Real rstd,
                                       typename M::Real by_mean, typename M::Real by_dot) {
  return rstd * ((m - by_mean) - ((x - mean) * rstd) * by_dot);
}

// A forward call. Absent views are not wanted, or not given.
struct NormForward {
  NormOptions options;
  int64_t rows = 0;
  int64_t width = 0;      // H, at least 1
  RowsView x;             // [N, H]
  RowsView residual;      // [N, H], type of x (kRms)
  RowsView weight;        // [H]
  RowsView bias;          // [H] (kLayer)
  RowsView y;             // [N, H]
  RowsView residual_out;  // [N, H], with residual
  RowsView mean;          // [N] f32 (kLayer)
  RowsView rstd;          // [N] f32
};

struct NormBackward {
  NormOptions options;
  int64_t rows = 0;
  int64_t width = 0;
  RowsView d_y;                    // [N, H]
  RowsView x;                      // [N, H]
  RowsView weight;                 // [H]
  RowsView mean;                   // [N] f32, given with rstd (kLayer)
  RowsView rstd;                   // [N] f32; absent: computed again
  RowsView d_residual_out;         // [N, H] (kRms)
  RowsView grad_x;                 // [N, H]
  RowsView grad_weight;            // [H]
  RowsView grad_bias;              // [H] (kLayer)
  bool accumulate_weight = false;  // added to what the destination holds
  bool accumulate_bias = false;

  bool sums_columns() const { return grad_weight || grad_bias; }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_LAYERS_NORM_H_
