// Rotary position embedding: the formula of a pair, and what a call is made of. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_LAYERS_ROPE_H_
#define LOSSD_KERNELS_LAYERS_ROPE_H_

#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/core/tensor_view.h"
#include "kernels/layers/real_math.h"

namespace lossd {

template <class M>
struct RopePair {
  typename M::Real first;
  typename M::Real second;
};

// The pair turned by an angle; backward is by the angle's negative: the caller turns the sign of the sine.
template <class M>
LOSSD_HD RopePair<M> Rotate(RopePair<M> x, typename M::Real cosine, typename M::Real sine) {
  return {x.first * cosine - x.second * sine, x.second * cosine + x.first * sine};
}

// [N, A, D]: rows of D elements, by token and head.
struct HeadsView {
  RowsView tokens;  // the first head's rows
  int64_t head_stride = 0;

  LOSSD_HD explicit operator bool() const { return tokens.present; }
  LOSSD_HD int64_t Offset(int64_t token, int64_t head) const {
    return tokens.Offset(token) + head * head_stride;
  }
};
HeadsView MakeHeadsView(const TensorView& view);

struct RopeProblem {
  int64_t rows = 0;    // tokens
  int64_t heads = 0;   // may be 0
  int64_t dim = 0;     // D, at least 2
  int64_t rotary = 0;  // R, even, 2 ... D; elements from here on are copied
  bool interleaved = false;
  bool backward = false;
  HeadsView x;
  HeadsView y;                 // absent: not wanted
  RowsView cosine;             // [P, R / 2] f32
  RowsView sine;               // [P, R / 2] f32
  RowsView position;           // [N] i32 or i64 in [0, P); absent: token n has row n
  int32_t position_field = 0;  // what the record names where one is outside

  // Row of cosine and sine, not checked.
  LOSSD_HD int64_t Position(int64_t token) const {
    return position ? position.Index(token) : token;
  }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_LAYERS_ROPE_H_
