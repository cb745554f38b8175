// The head's first product with the exponential in its epilogue, for GPUs of compute capability 9.0: what the statistics of a row need
// is added up from the unrounded fp32 sums, and no logit is ever stored. Plain C++ and CUDA types.
#ifndef LOSSD_KERNELS_CUDA_EXP_PRODUCT_H_
#define LOSSD_KERNELS_CUDA_EXP_PRODUCT_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace lossd {

inline constexpr int kExpTileRows = 128;
inline constexpr int kExpTileColumns = 192;
// Rows that one copy fetches.
inline constexpr int kExpHiddenBox = kExpTileRows;
inline constexpr int kExpWeightBox = kExpTileColumns / 2;

// Which sums over a tile's columns are made of d = log2 of exp(z - reference).
enum class ExpSums : int32_t {
  kExp,      // 2^d
  kEntropy,  // and 2^d d
  kAll,      // and 2^2d, d; the largest d and its column
};
inline constexpr int kExpSumsCount[] = {1, 2, 6};
// Order of the sums in `sums`.
enum ExpSum : int32_t { kSumExp, kSumExpD, kSumExp2, kSumD, kLargestD, kLargestColumn };

// Columns of a mass code c: their sum is below 2^(c - 127), and at least half of that; 0: it is 0; 255: perhaps not finite.
inline constexpr int kMassColumns = 64;

// Where a sum of 2^d is larger than this, the row's reference is too far below its largest logit.
inline constexpr float kExpSumLimit = 0x1p60f;

// d = slope_r (x_r w_j + bias_j) - reference_r, in units of log 2; e = 2^d.
struct ExpProduct {
  CUtensorMap hidden;  // [rows, H] bf16
  CUtensorMap weight;  // [columns, H] bf16
  int32_t rows = 0;
  int32_t columns = 0;
  int32_t hidden_size = 0;
  const float* slope = nullptr;      // [rows]
  const float* reference = nullptr;  // [rows]
  const int32_t* target = nullptr;   // [rows]: a column, or -1
  float* target_d = nullptr;         // [rows], out: d of that column
  const float* bias = nullptr;       // [columns up to a multiple of 192], may be null
  uint16_t* e =
      nullptr;  // [rows, stride] bf16, may be null; columns up to a multiple of 8 are written, 0 where there is none
  int64_t e_stride = 0;     // a multiple of 8
  float* sums = nullptr;    // [kExpSumsCount, column tiles, sums_stride]
  int64_t sums_stride = 0;  // at least rows
  int32_t* largest =
      nullptr;  // [rows], only of rows with a sum above the limit: bits of the largest d (d >= 0), by atomicMax
  // [rows, mass_stride], out with e; may be null: of each 64 columns the exponent of their sum of e, as MassCode has it.
  uint8_t* mass = nullptr;
  int64_t mass_stride = 0;
  // Pairs of row tiles to compute, by device memory; null: all.
  const int32_t* pairs = nullptr;
  const int32_t* pair_count = nullptr;
};

// Whether this GPU runs the kernel.
bool HasExpProduct(int compute_capability_major, int compute_capability_minor);

// The map of a row-major matrix of bf16. `data` is aligned to 16 bytes, `stride` (elements) a multiple of 8.
CUresult MakeExpMap(const void* data, int64_t rows, int64_t columns, int64_t stride, int box_rows,
                    CUtensorMap* map);

cudaError_t LaunchExpProduct(const ExpProduct& product, ExpSums sums, cudaStream_t stream);

cudaError_t PrepareExpProduct();

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_EXP_PRODUCT_H_
