// Which of the library's algorithms a product takes: a table that is part of the build, so that the same build on the same GPU gives the same
// bits. Its text is part of the server's algorithm_table.
#ifndef LOSSD_KERNELS_CUDA_PRODUCT_TABLE_H_
#define LOSSD_KERNELS_CUDA_PRODUCT_TABLE_H_

#include <cublasLt.h>

#include <cstdint>

namespace lossd {

// A line holds for products of 16-bit inputs that are at least so large, row-major as in Product. The first algorithm of the heuristics' list
// with this tile and cluster is taken; where no line finds one, the first of the list.
struct ProductChoice {
  int compute_capability;  // major
  bool a_transposed;
  bool b_transposed;
  int64_t min_m;
  int64_t min_n;
  int64_t min_k;
  cublasLtMatmulTile_t tile;
  cublasLtClusterShape_t cluster;
};

// H200, cuBLASLt 13.1, bf16, V 32000 to 151936, H 1024 to 8192, 512 to 4096 rows, every candidate in turn (tests/bench/results): beside the
// first candidate the logits product takes 0.76 to 0.99 of the time, the weight's gradient 0.71 to 0.97 (and 1.04 in one of 80 cases), the
// other tiles are within 1 % of it for the hidden rows' gradient.
inline constexpr ProductChoice kProductTable[] = {
    // logits = hidden weight^T
    {9, false, true, 512, 8192, 512, CUBLASLT_MATMUL_TILE_176x128, CUBLASLT_CLUSTER_SHAPE_1x2x1},
    {9, false, true, 512, 8192, 512, CUBLASLT_MATMUL_TILE_168x128, CUBLASLT_CLUSTER_SHAPE_1x2x1},
    // grad_weight = dz^T hidden
    {9, true, false, 8192, 1024, 512, CUBLASLT_MATMUL_TILE_128x160, CUBLASLT_CLUSTER_SHAPE_2x1x1},
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PRODUCT_TABLE_H_
