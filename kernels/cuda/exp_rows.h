// What is done with the rows of an ExpProduct: references before it, statistics, objective and the rows' factors behind it. Plain C++ and
// CUDA types.
//
// With e = exp(z - m) of a row, S its sum and m its reference, dz = c p - a [j = y] is a multiple of e but for the target's entry:
//   dz_j = v e'_j,  v = c / S,  e'_j = e_j,  e'_y = e_y - a S / c.
// So the products are those of e', which is stored once in bf16, with factors by row: dX_r = v_r (e' W)_r and dW = e'^T (v x). With m the
// target's logit e'_y is 1 - S for cross entropy; its rounding goes into v, since it is the largest entry by far.
//
// The tensor cores cut each of their fp32 sums off instead of rounding it, so that logits come out too small by a part that grows with H. Its
// mean over columns is given back in the slope. The target's logit, which matters most and whose terms point the same way, is summed once
// more by ordinary instructions, and takes the place of its own in the row's sums.
#ifndef LOSSD_KERNELS_CUDA_EXP_ROWS_H_
#define LOSSD_KERNELS_CUDA_EXP_ROWS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/core/result_record.h"
#include "kernels/cuda/exp_product.h"
#include "kernels/cuda/row_kernels.h"
#include "kernels/linear/head.h"
#include "kernels/objectives/objectives.h"

namespace lossd {

// Rows of a chunk. Device memory throughout.
struct ExpRows {
  HeadProblem head;
  int64_t rows = 0;
  const int32_t* index = nullptr;  // [rows]: number of the row in the call, -1: none
  const uint16_t* x = nullptr;     // [rows, H] bf16
  int64_t x_stride = 0;
  ExpSums which = ExpSums::kExp;
  int32_t tiles = 0;              // of columns
  float* slope = nullptr;         // [rows]; as in ExpProduct
  float* reference = nullptr;     // [rows]
  int32_t* target = nullptr;      // [rows]: column; -1 without one
  float* target_z = nullptr;      // [rows]: its logit, summed by itself
  float* target_d = nullptr;      // [rows]: as the product has it
  float* sums = nullptr;          // [kExpSumsCount, tiles, rows]
  float* totals = nullptr;        // [kExpSumsCount, rows]
  int32_t* largest = nullptr;     // [rows]
  int32_t* pairs = nullptr;       // [pairs of row tiles]: those with a reference that was too low
  int32_t* pair_count = nullptr;  // [1]
  int32_t* repaired = nullptr;    // [pairs of row tiles]: 1 on those
  // With gradients.
  float* factor = nullptr;    // [rows]: v; 0 of a row without gradient
  float* total = nullptr;     // [rows]: S; may be null
  uint16_t* entry = nullptr;  // [rows]: e'_y in bf16
  uint8_t* broken = nullptr;  // [rows]: no gradient, but an e that is not finite
  uint16_t* e = nullptr;      // where it is stored
  int64_t e_stride = 0;
  // [N] by the row's number in the call: what the program answered; may be null.
  StoredRow* stored = nullptr;
  const ResultRecord* record = nullptr;
};

// All functions enqueue and return the launch's error.

// Slopes and references: of a program that knows the statistics its own reference, else the target's logit, or that of column 0.
cudaError_t LaunchExpReferences(const ExpRows& rows, const RowProgram& program,
                                cudaStream_t stream);

// Totals of the sums over the tiles, always in the same order. Rows whose sums are too large get their largest logit for a reference, and
// their pair of tiles is listed for another product.
cudaError_t LaunchExpTotals(const ExpRows& rows, cudaStream_t stream);

// The program's Row for each row, with what the gradient needs of it if `factor` is given. If the record has an error, no row has a gradient.
cudaError_t LaunchExpAnswers(const ExpRows& rows, const RowProgram& program, cudaStream_t stream);

// Makes e' of e, which holds `columns` columns from `begin` on: the targets' entries; zeros in broken rows.
cudaError_t LaunchExpEntries(const ExpRows& rows, int64_t begin, int64_t columns,
                             cudaStream_t stream);

// order[0 ... *count - 1]: the rows with a factor, rising; behind them the others, rising.
cudaError_t LaunchOrderRows(const ExpRows& rows, int32_t* order, int32_t* count,
                            cudaStream_t stream);

// Row order[k] of e becomes row k for k < count, and rows count ... padded - 1 become 0.
cudaError_t LaunchMoveRows(const ExpRows& rows, const int32_t* order, int64_t count, int64_t padded,
                           cudaStream_t stream);

// Of the two functions below: row i of the packed side is row r = order[i] of the chunk, or i where there is no order.

// to[i] = bf16(factor[r] x[r]); 0 where the factor is 0. Without an order in place if to is x.
cudaError_t LaunchScaleRows(uint16_t* to, int64_t to_stride, const uint16_t* x, int64_t x_stride,
                            int64_t rows, int64_t width, const float* factor, const int32_t* order,
                            cudaStream_t stream);

// to[index[r]] = factor[r] from[i], rounded once; 0 where the factor is 0, and then `from` is not read. Nothing where index[r] is -1 or the
// record has an error. begin: of the first i.
cudaError_t LaunchScatterScaledRows(const RowsView& to, const float* from, int64_t from_stride,
                                    int64_t begin, int64_t rows, const int32_t* index,
                                    const float* factor, const int32_t* order,
                                    const ResultRecord* record, cudaStream_t stream);

// to[j] = bias_j for j < columns, 0 for columns <= j < padded.
cudaError_t LaunchExpBias(const RowsView& bias, int64_t columns, int64_t padded, float* to,
                          cudaStream_t stream);

// Load the kernels.
cudaError_t PrepareExpRows();

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_EXP_ROWS_H_
