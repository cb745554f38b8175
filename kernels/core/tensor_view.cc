#include "kernels/core/tensor_view.h"

namespace lossd {

RowsView MakeRowsView(const TensorView& view, int trailing) {
  RowsView rows;
  if (!view.present) return rows;
  rows.present = true;
  rows.data = view.data;
  rows.dtype = view.dtype;
  const int lead = view.rank - trailing;
  rows.width = trailing == 1 ? view.shape[view.rank - 1] : 1;
  rows.rows = 1;
  for (int d = 0; d < lead; ++d) rows.rows *= view.shape[d];
  // Merge from the inside: extents d and d + 1 are one if a step of d spans all of d + 1.
  int64_t shape[kMaxRank];
  int64_t strides[kMaxRank];
  int count = 0;  // merged extents, innermost first
  for (int d = lead - 1; d >= 0; --d) {
    if (view.shape[d] == 1 && count > 0) continue;
    if (count > 0 &&
        (shape[count - 1] == 1 || view.strides[d] == strides[count - 1] * shape[count - 1])) {
      if (shape[count - 1] == 1) strides[count - 1] = view.strides[d];
      shape[count - 1] *= view.shape[d];
      continue;
    }
    shape[count] = view.shape[d];
    strides[count] = view.strides[d];
    ++count;
  }
  if (count == 0) {  // a [1] tensor sent as a scalar of rank 0
    shape[0] = 1;
    strides[0] = 1;
    count = 1;
  }
  rows.lead_rank = count;
  for (int d = 0; d < count; ++d) {
    rows.lead_shape[d] = shape[count - 1 - d];
    rows.lead_strides[d] = strides[count - 1 - d];
  }
  return rows;
}

}  // namespace lossd
