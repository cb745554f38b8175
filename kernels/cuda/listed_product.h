// Products of which only some blocks are computed, by lists in device memory: the gradients where rows without one, or blocks without mass,
// are left out and the host need not know which. For GPUs of compute capability 9.0. Plain C++ and CUDA types.
#ifndef LOSSD_KERNELS_CUDA_LISTED_PRODUCT_H_
#define LOSSD_KERNELS_CUDA_LISTED_PRODUCT_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/result_record.h"

namespace lossd {

// Rows of d that share a list, and terms of a block of the list.
inline constexpr int kListedRows = 256;
inline constexpr int kListedTerms = 64;

// Where the terms of row group g come from: blocks list[g * list_stride ...], count[g * count_stride] of them, increasing.
struct BlockList {
  const uint16_t* blocks = nullptr;
  int64_t stride = 0;
  const int32_t* count = nullptr;
  int64_t count_stride = 0;
};

// d [m, n] = a b over the listed terms, bf16 with fp32 sums. a is e [m, terms], or with `transposed` e is [terms, m]; b is [terms, n].
struct ListedProduct {
  CUtensorMap a;  // box: 64 columns of kListedRows / 2 rows; transposed: of 64 rows
  CUtensorMap b;  // box: 64 columns of 64 rows
  bool transposed = false;
  int32_t m = 0;
  int32_t n = 0;
  BlockList list;
  void* d = nullptr;
  DType dtype = DType::kUnspecified;  // kBF16 or kF32
  int64_t d_stride = 0;
  bool adds = false;                     // d += the product
  const int32_t* index = nullptr;        // [m]: the row of d, -1: none; null: the same
  const float* factor = nullptr;         // [m]: of a row; null: 1
  const ResultRecord* record = nullptr;  // nothing is written if its code is not 0
};

cudaError_t LaunchListedProduct(const ListedProduct& product, cudaStream_t stream);

cudaError_t PrepareListedProduct();

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_LISTED_PRODUCT_H_
