// The row pass of a chunk: statistics, the objective's program, single columns, and the gradient in place of the logits.
#ifndef LOSSD_KERNELS_CPU_HEAD_ROWS_H_
#define LOSSD_KERNELS_CPU_HEAD_ROWS_H_

#include <cstdint>

#include "kernels/cpu/sweeps.h"
#include "kernels/linear/head_backend.h"

namespace lossd {

// What the rows of all chunks share.
struct RowPass {
  const HeadPass* pass = nullptr;
  const Sweeps* sweeps = nullptr;
  const float* bias = nullptr;           // [logits_stride], may be null
  const float* column_weight = nullptr;  // [logits_stride], may be null
  bool gradients = false;
};

// Runs row number `row`, whose products are in `logits`. Returns whether logits now hold a gradient that is not zero as a whole.
bool RunRow(const RowPass& shared, int64_t row, float* logits);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_HEAD_ROWS_H_
