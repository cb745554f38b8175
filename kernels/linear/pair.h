// A sweep over two distributions of the same rows, student and teacher, in plain numbers and pointers. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_LINEAR_PAIR_H_
#define LOSSD_KERNELS_LINEAR_PAIR_H_

#include <cstdint>

#include "kernels/core/result_record.h"
#include "kernels/core/tensor_view.h"
#include "kernels/linear/head.h"
#include "kernels/objectives/divergence_rows.h"

namespace lossd {

// Where a side's values come from. `head` has rows, temperature, logit_scale, softcap and valid_columns in every form.
enum class PairForm : int32_t {
  kHead,    // head.hidden times head.weight, plus head.bias: logits in fp32
  kValues,  // `values`: logits, log-probabilities or probabilities
  kTopk,    // teacher only: `topk_ids`, `topk_logprob`
};

struct PairSide {
  PairForm form = PairForm::kHead;
  HeadProblem head;
  ValueKind kind = ValueKind::kLogits;
  RowsView values;        // [N, V] model dtype
  RowsView topk_ids;      // [N, K] i32 or i64, -1 is padding
  RowsView topk_logprob;  // [N, K] f32
};

// For each row that counts: the divergence of the first `columns` columns of both sides, where the teacher has probability 0 from
// `teacher.head.valid_columns` on; program.Row(row, statistics) -> PairCoefficients and the program's own outputs; the gradient to the
// student. A side with a head, or a teacher with a list, makes a student with a head. Logits exist for a chunk of rows only. As with
// HeadPass, rows that do not count have been filled, a row whose coefficients are 0 does not reach the products, and nothing is written
// if record->code is not 0.
struct PairPass {
  PairSide student;
  PairSide teacher;
  int64_t columns = 0;
  RowSet rows;
  DivergenceRows program;
  HeadGradients gradients;  // student.form kHead
  RowsView
      grad_student;  // student.form kValues: [N, V] model dtype; columns from student.head.valid_columns on become 0
  RowsView overlap;  // [N] i32, with a top-k teacher; may be absent
  bool batch_invariant = false;
  ResultRecord* record = nullptr;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_LINEAR_PAIR_H_
