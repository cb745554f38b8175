// Loops over the columns of one row of logits: statistics, single logits, gradient. Compiled for several instruction sets.
#ifndef LOSSD_KERNELS_CPU_SWEEPS_H_
#define LOSSD_KERNELS_CPU_SWEEPS_H_

#include <cstdint>

#include "kernels/objectives/row.h"

namespace lossd {

// Columns come in groups of this many: every array below must be readable up to the next multiple.
inline constexpr int64_t kColumnGroup = 16;

// One row of products. z = transform(raw + bias), computed again by each sweep rather than stored: memory is what costs.
struct LogitRow {
  float* raw = nullptr;
  const float* bias = nullptr;  // may be null
  int64_t columns = 0;
  float logit_scale = 1;
  float softcap = 0;
  float inverse_temperature = 1;
};

struct GradientRow {
  float max = 0;
  float sum_exp = 1;
  RowCoefficients coefficients;
  int64_t target = -1;                   // column, -1: none
  const float* column_weight = nullptr;  // by column, may be null
};

// Functions of one instruction set. All are deterministic, and a row's results depend on that row alone.
struct Sweeps {
  const char* name;
  // max, the sums, argmax (a column) and degenerate; the rest of *stats is left as it is.
  void (*statistics)(const LogitRow& row, RowStatistics* stats);
  // sum w_j (z_j - max), where w_j = 0 removes the term.
  float (*weighted_d)(const LogitRow& row, float max, const float* column_weight);
  // z of columns begin ... begin + count - 1.
  void (*logits)(const LogitRow& row, int64_t begin, int64_t count, float* z);
  // dz / draw of one column.
  float (*slope)(const LogitRow& row, int64_t column);
  // Overwrites row.raw by the gradient with respect to it.
  void (*gradient)(const LogitRow& row, const GradientRow& gradient);
};

// The best set that this processor has.
const Sweeps& SelectSweeps();
// All that this processor has, the plainest first; for tests.
int AvailableSweeps(const Sweeps** tables, int capacity);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_SWEEPS_H_
