// The row pass of a pair of distributions: statistics of both sides, the divergence, the program, and the gradient in place of the student.
#ifndef LOSSD_KERNELS_CPU_PAIR_ROWS_H_
#define LOSSD_KERNELS_CPU_PAIR_ROWS_H_

#include <cstdint>

#include "kernels/cpu/pair_sweeps.h"
#include "kernels/cpu/sweeps.h"
#include "kernels/linear/pair.h"

namespace lossd {

// What the rows of all chunks share.
struct PairRows {
  const PairPass* pass = nullptr;
  const Sweeps* sweeps = nullptr;
  const PairSweeps* pair_sweeps = nullptr;
  const float* student_bias = nullptr;  // readable to the next group of columns; may be null
  const float* teacher_bias = nullptr;
};

// Runs row number `row` of the call. `student` and `teacher` hold products or values, readable to the next group of columns; `teacher` is
// null for a top-k teacher. With gradients, `student` then holds the gradient, if the result is true; otherwise it is zero as a whole.
bool RunPairRow(const PairRows& shared, int64_t row, float* student, float* teacher);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_PAIR_ROWS_H_
