// Softmax of rows: formulas of an element, and what a call is made of. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_LAYERS_SOFTMAX_H_
#define LOSSD_KERNELS_LAYERS_SOFTMAX_H_

#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/core/tensor_view.h"
#include "kernels/layers/real_math.h"

namespace lossd {

// A probability, given the row's largest x and the sum of e^(x - max). NaN where the row is degenerate.
template <class M>
LOSSD_HD typename M::Real SoftmaxValue(typename M::Real x, typename M::Real max,
                                       typename M::Real inverse_sum) {
  return M::Exp(x - max) * inverse_sum;
}

// A term of the sum of d_y y, and the gradient with that sum. A probability of 0 removes whatever lies in d_y.
template <class M>
LOSSD_HD typename M::Real SoftmaxTerm(typename M::Real y, typename M::Real d_y) {
  return y == 0.0f ? M::Splat(0) : y * d_y;
}
template <class M>
LOSSD_HD typename M::Real SoftmaxGradient(typename M::Real y, typename M::Real d_y,
                                          typename M::Real sum) {
  return y == 0.0f ? M::Splat(0) : y * (d_y - sum);
}

struct SoftmaxForward {
  int64_t rows = 0;
  int64_t width = 0;  // C, at least 1
  RowsView x;         // [N, C]
  RowsView mask;      // [N] u8; rows that are false become 0
  RowsView y;         // [N, C]
};

struct SoftmaxBackward {
  int64_t rows = 0;
  int64_t width = 0;
  RowsView y;       // [N, C]
  RowsView d_y;     // [N, C]
  RowsView mask;    // [N] u8
  RowsView grad_x;  // [N, C]
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_LAYERS_SOFTMAX_H_
