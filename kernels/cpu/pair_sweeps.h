// Loops over the columns of a row of student and teacher: what the divergence adds up to, and its gradient. Compiled for several
// instruction sets.
#ifndef LOSSD_KERNELS_CPU_PAIR_SWEEPS_H_
#define LOSSD_KERNELS_CPU_PAIR_SWEEPS_H_

#include <cstdint>

#include "kernels/cpu/sweeps.h"
#include "kernels/objectives/divergence_rows.h"

namespace lossd {

// One side's columns, and what makes distributions of them: log p = z - max - log_sum for logits, z itself for log-probabilities.
// Arrays as in LogitRow.
struct DistributionRow {
  LogitRow values;
  ValueKind kind = ValueKind::kLogits;
  float max = 0;
  float sum_exp = 1;
};

struct PairRow {
  DistributionRow student;  // columns: those of the divergence
  DistributionRow teacher;  // no more than those; its probability is 0 from there on
  DivergenceKind<float> divergence;
};

struct PairGradient {
  PairCoefficients coefficients;
  DivergenceValue<float> value;
  // With a top-k teacher the divergence's part is q (dense + log_factor log q); entries are the caller's.
  bool topk = false;
  float dense = 0;
  float log_factor = 0;
  // The hard term; its maximum is that of all the student's columns, not of the divergence's alone.
  float temperature = 1;
  float hard_max = 0;
  float hard_sum_exp = 1;
  int64_t target = -1;  // column, -1: none
  // Of the student, at least those of the divergence: what lies behind these has the hard term alone.
  int64_t columns = 0;
};

struct PairSweeps {
  // Sums of the divergence; *negative is set if the teacher has a probability below 0.
  void (*sums)(const PairRow& row, DivergenceSums<double>* sums, bool* negative);
  // Overwrites student.values.raw by the gradient with respect to it.
  void (*gradient)(const PairRow& row, const PairGradient& gradient);
};

// The best set that this processor has.
const PairSweeps& SelectPairSweeps();
// All that this processor has, the plainest first; for tests.
int AvailablePairSweeps(const PairSweeps** tables, int capacity);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_PAIR_SWEEPS_H_
