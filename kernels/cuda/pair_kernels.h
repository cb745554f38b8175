// The row pass of a pair of distributions: statistics of both sides, the divergence, the program and the student's gradient.
// Plain C++ and CUDA types.
#ifndef LOSSD_KERNELS_CUDA_PAIR_KERNELS_H_
#define LOSSD_KERNELS_CUDA_PAIR_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/core/result_record.h"
#include "kernels/cuda/row_kernels.h"
#include "kernels/linear/pair.h"

namespace lossd {

inline constexpr int kMaxPairEntries = 1024;

// One side's values of a slice of rows: products in fp32, or the caller's tensor.
struct PairValues {
  ValueKind kind = ValueKind::kLogits;
  const float* tile = nullptr;  // [rows, tile_stride], without bias
  int64_t tile_stride = 0;      // elements; a multiple of 64
  RowsView values;              // [N, V] by row number, where there is no tile
  RowsView bias;                // [V], may be absent
  int32_t columns = 0;          // valid ones
  float logit_scale = 1;
  float softcap = 0;
};

// How a row is spread over blocks; depends on the columns, the types and the GPU alone, so that a row's sums have one order.
struct PairShape {
  int largest_cluster = 1;  // that the GPU takes
  int cluster = 1;
  int32_t slice = 0;    // columns of a block
  bool on_chip = true;  // both sides' slices stay in shared memory: read once
  int32_t student_bytes = 0;
  int32_t shared_bytes = 0;
};

struct PairLaunch {
  PairValues student;
  PairValues teacher;  // columns 0 with a top-k teacher
  RowsView topk_ids;   // [N, K] with a top-k teacher
  RowsView topk_logprob;
  DivergenceRows program;
  int32_t columns = 0;  // of the divergence
  int32_t written = 0;  // columns of the gradient, zeros from student.columns on
  const int32_t* index =
      nullptr;  // [rows]: number of the row in the call, -1: none, its dz is 0; null: r itself
  const uint8_t* counted = nullptr;  // [N], where index is null: other rows are left alone
  int64_t rows = 0;
  // The gradient: dz as in RowPass (over the student's tile or apart), or `grad` by row number.
  DzMode dz_mode = DzMode::kNone;
  void* dz = nullptr;
  int64_t dz_stride = 0;
  RowsView grad;                         // [N, V], may be absent
  uint8_t* live = nullptr;               // [rows], out; may be null
  const float* dz_scale = nullptr;       // [1], kF16
  uint32_t* dz_max = nullptr;            // [1], kMeasure
  const ResultRecord* record = nullptr;  // nothing but dz = 0 is written if its code is not 0
  PairShape shape;
};

// Blocks that the GPU takes as a cluster: 16, 8, or 1 where there are none. `cluster_support`: compute capability 9 and later. After
// PreparePairKernels.
int LargestPairCluster(bool cluster_support);

// Fills launch->shape. `shared_limit`: bytes that a block may have.
void ChoosePairShape(int largest_cluster, int64_t shared_limit, PairLaunch* launch);

// Enqueue. *lean: whether by the lean kernel, which takes all that it can.
cudaError_t LaunchPairRows(const PairLaunch& launch, cudaStream_t stream, bool* lean);

// overlap[row]: entries of the row that are among its K largest student logits, equal ones by rising id. Before LaunchPairRows.
cudaError_t LaunchOverlap(const PairLaunch& launch, const RowsView& overlap, cudaStream_t stream);

// Load the kernels and raise their limits of shared memory.
cudaError_t PreparePairKernels(int64_t shared_limit);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PAIR_KERNELS_H_
