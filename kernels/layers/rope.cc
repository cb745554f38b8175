#include "kernels/layers/rope.h"

namespace lossd {

HeadsView MakeHeadsView(const TensorView& view) {
  HeadsView heads;
  if (!view.present) return heads;
  // The same tensor without its heads.
  const int head = view.rank - 2;
  TensorView tokens = view;
  heads.head_stride = view.strides[head];
  tokens.shape[head] = view.shape[head + 1];
  tokens.strides[head] = view.strides[head + 1];
  tokens.rank = view.rank - 1;
  heads.tokens = MakeRowsView(tokens, 1);
  return heads;
}

}  // namespace lossd
