// The row pass: statistics, objective and logits gradient of a slice of logits. Plain C++ and CUDA types.
#ifndef LOSSD_KERNELS_CUDA_ROW_KERNELS_H_
#define LOSSD_KERNELS_CUDA_ROW_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/core/result_record.h"
#include "kernels/linear/head.h"
#include "kernels/objectives/objectives.h"

namespace lossd {

// What the row pass does with dz. kMeasure writes none and finds the largest |dz|; kF16 then multiplies by a power of two that makes
// it fit fp16's range.
enum class DzMode : int32_t { kNone, kF32, kBF16, kF16, kMeasure };

// What a measuring pass leaves for the pass that writes.
struct StoredRow {
  RowCoefficients coefficients;
  float max = 0;
  float sum_exp = 1;
};

// Row program of the second of two passes.
struct StoredRows {
  static constexpr bool kKnowsStatistics = true;
  const StoredRow* stored = nullptr;  // [N]

  LOSSD_HD RowStatistics KnownStatistics(int64_t row) const {
    RowStatistics stats;
    stats.max = stored[row].max;
    stats.sum_exp = stored[row].sum_exp;
    stats.degenerate = !(stats.sum_exp > 0);
    return stats;
  }
  LOSSD_HD RowCoefficients Row(int64_t row, const RowStatistics&) const {
    return stored[row].coefficients;
  }
};

// Of a head with logits a row is the caller's own: row r is number r of the call, `counted` says whether it counts, and the gradient goes
// to `grad`, zeros from valid_columns on and for rows that do not count; dz_mode says its type. There is no tile, index, live or scale.
struct RowPass {
  HeadProblem head;
  RowColumns columns;
  const float* column_weight = nullptr;  // [vocab_total], may be null
  const int32_t* index = nullptr;  // [rows]: number of the row in the call, -1: none, its dz is 0
  int64_t rows = 0;
  const float* logits = nullptr;  // [rows, V], without bias
  int64_t logits_stride = 0;      // elements; a multiple of 64
  DzMode dz_mode = DzMode::kNone;
  void* dz =
      nullptr;  // [rows, V]; may overlap the logits of the same row and of rows outside this pass that were read
  int64_t dz_stride = 0;                 // elements; rows are written up to V rounded up to 64
  uint8_t* live = nullptr;               // [rows], out: whether the row has a gradient; may be null
  float* dz_scale = nullptr;             // [1], kF16: factor before the rounding
  uint32_t* dz_max = nullptr;            // [1], kMeasure: bits of the largest |dz|
  StoredRow* stored = nullptr;           // [N], kMeasure
  const ResultRecord* record = nullptr;  // dz is 0 and nothing else is written if its code is not 0
  const uint8_t* counted = nullptr;      // [rows]
  RowsView grad;  // [rows, V] model dtype, may be absent; perhaps the logits' own memory
};

// How a row is spread over blocks; depends on V and the GPU alone, so that a row's sums have one order.
struct RowShape {
  int cluster = 1;      // blocks for each row
  int64_t slice = 0;    // columns of a block
  bool on_chip = true;  // the logits stay in shared memory: read once
  int64_t shared_bytes = 0;
};

// `cluster_support`: compute capability 9 and later. `shared_limit`: bytes that a block may have.
RowShape ChooseRowShape(int64_t vocab, bool cluster_support, int64_t shared_limit);

// Enqueue. The program is RowProgram's alternative, or StoredRows for the second pass.
cudaError_t LaunchRowPass(const RowPass& pass, const RowProgram& program, const RowShape& shape,
                          cudaStream_t stream);
// Of a head with logits.
cudaError_t LaunchCallersRowPass(const RowPass& pass, const RowProgram& program,
                                 const RowShape& shape, cudaStream_t stream);
cudaError_t LaunchStoredRowPass(const RowPass& pass, const StoredRows& program,
                                const RowShape& shape, cudaStream_t stream);

// topk_ids, and z in topk_logprob: the row pass subtracts the row's log-sum-exp. Before the row pass.
cudaError_t LaunchTopK(const RowPass& pass, cudaStream_t stream);

// Load the kernels and raise their limits of shared memory.
cudaError_t PrepareRowKernels(int64_t shared_limit);
cudaError_t PrepareTopKKernel();

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_ROW_KERNELS_H_
