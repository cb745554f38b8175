// Loops over columns of a row, or of a piece of it, for the layers. Compiled for several instruction sets.
#ifndef LOSSD_KERNELS_CPU_LAYER_SWEEPS_H_
#define LOSSD_KERNELS_CPU_LAYER_SWEEPS_H_

#include <cmath>
#include <cstdint>

#include "kernels/layers/activation.h"
#include "kernels/layers/real_math.h"

namespace lossd {

// Rows are worked on in pieces of so many columns: a few of them in fp32 fit into a core's cache.
inline constexpr int64_t kPieceColumns = 4096;

// Columns of a piece in fp32. Every array is readable and writable up to the next multiple of kColumnGroup.
struct NormPiece {
  const float* x = nullptr;
  const float* d_y = nullptr;     // backward
  const float* weight = nullptr;  // offset included; null: 1
  const float* bias = nullptr;    // null: 0
  int64_t columns = 0;
  float mean = 0;  // 0 for RmsNorm
  float rstd = 1;
  Rounding rounding = Rounding::kNone;  // of the normalised x
};

// Sums of m = d_y weight, and of m n with n = (x - mean) rstd unrounded.
struct NormSums {
  double m = 0;
  double m_n = 0;
};

// The largest x, and the sum of e^(x - max), of the columns so far. The sum of a degenerate row is NaN, or 0 where all x are -infinity.
struct SoftmaxSums {
  float max = -INFINITY;
  double sum = 0;
};

// Functions of one instruction set. All are deterministic.
struct LayerSweeps {
  // x += residual, rounded.
  void (*add)(float* x, const float* residual, int64_t columns, Rounding rounding);
  double (*sum)(const float* x, int64_t columns);
  double (*sum_squares)(const float* x, float center, int64_t columns);
  // y = normalised x times weight plus bias; y may be x.
  void (*norm)(const NormPiece& piece, float* y);
  // Adds to *sums.
  void (*norm_sums)(const NormPiece& piece, NormSums* sums);
  // grad_x = rstd (m - by_mean - n by_dot) + more; may be x. `more` may be null.
  void (*norm_gradient)(const NormPiece& piece, float by_mean, float by_dot, const float* more,
                        float* grad_x);
  // weight_sums += d_y n, n rounded; bias_sums += d_y. Each may be null.
  void (*norm_columns)(const NormPiece& piece, float* weight_sums, float* bias_sums);
  // y may be gate or up.
  void (*gated)(const GatedOptions& options, Rounding rounding, const float* gate, const float* up,
                int64_t columns, float* y);
  // gate becomes its gradient, up likewise.
  void (*gated_gradient)(const GatedOptions& options, Rounding rounding, const float* d_y,
                         int64_t columns, float* gate, float* up);
  // x becomes y; x becomes grad_x.
  void (*relu_squared)(int64_t columns, float* x);
  void (*relu_squared_gradient)(const float* d_y, int64_t columns, float* x);
  // Adds to *sums.
  void (*softmax_sums)(const float* x, int64_t columns, SoftmaxSums* sums);
  // x becomes y.
  void (*softmax)(float max, float inverse_sum, int64_t columns, float* x);
  double (*softmax_dot)(const float* y, const float* d_y, int64_t columns);
  // d_y becomes grad_x.
  void (*softmax_gradient)(const float* y, float sum, int64_t columns, float* d_y);
  // `pairs` of the head's first elements are turned in place, the sine's sign with them.
  void (*rope)(const float* cosine, const float* sine, float sign, bool interleaved, int64_t pairs,
               float* x);
};

// The best set that this processor has.
const LayerSweeps& SelectLayerSweeps();
// All that this processor has, the plainest first; for tests.
int AvailableLayerSweeps(const LayerSweeps** tables, int capacity);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_LAYER_SWEEPS_H_
