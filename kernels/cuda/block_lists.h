// Which blocks of a chunk's gradient matter: rows with a gradient, columns with the target or with mass. Plain C++ and CUDA types.
#ifndef LOSSD_KERNELS_CUDA_BLOCK_LISTS_H_
#define LOSSD_KERNELS_CUDA_BLOCK_LISTS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/listed_product.h"

namespace lossd {

// Blocks are of 64 rows and 64 columns. A block is left out if no row has its target there and each row's sum of e over it is less than
// `bound` times the row's sum of all: the mass that its softmax has there. Device memory throughout.
struct BlockLists {
  int64_t rows = 0;
  int64_t columns = 0;
  float bound = 0;
  const uint8_t* mass = nullptr;  // [rows, mass_stride]
  int64_t mass_stride = 0;
  const float* total = nullptr;     // [rows]
  const float* factor = nullptr;    // [rows]: 0 of a row without gradient
  const int32_t* target = nullptr;  // [rows]
  uint8_t* flags = nullptr;         // [row blocks, column blocks]
  // For each 256 rows the blocks of columns, and for each 256 columns the blocks of rows.
  uint16_t* columns_of = nullptr;  // [row groups, column blocks]
  int32_t* column_counts = nullptr;
  uint16_t* rows_of = nullptr;  // [column groups, row blocks]
  int32_t* row_counts = nullptr;

  int64_t RowBlocks() const { return (rows + kListedTerms - 1) / kListedTerms; }
  int64_t ColumnBlocks() const { return (columns + kListedTerms - 1) / kListedTerms; }
  int64_t RowGroups() const { return (rows + kListedRows - 1) / kListedRows; }
  int64_t ColumnGroups() const { return (columns + kListedRows - 1) / kListedRows; }
};

// Enqueues.
cudaError_t LaunchBlockLists(const BlockLists& lists, cudaStream_t stream);

cudaError_t PrepareBlockLists();

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_BLOCK_LISTS_H_
