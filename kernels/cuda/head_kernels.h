// Launchers of everything on the GPU but the row pass: row selection, stages, copies of rows, last steps of gradients.
#ifndef LOSSD_KERNELS_CUDA_HEAD_KERNELS_H_
#define LOSSD_KERNELS_CUDA_HEAD_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/core/result_record.h"
#include "kernels/linear/head.h"
#include "kernels/linear/row_start.h"
#include "kernels/objectives/objectives.h"

namespace lossd {

// All functions enqueue and return the launch's error.

// What a start tells a host that waits for it, in page-locked memory.
struct StartNote {
  int32_t code = 0;  // of the record, as all but the number
  int32_t field = 0;
  int64_t row = -1;
  int64_t count = 0;
  uint32_t number = 0;  // of the start, written last
};

// An empty record, then rows.index, counted and count, then the checks; with `fills` the outputs of rows that do not count, unless a check
// has failed. `in_place`: index[i] is i or -1, instead of the rows that count one after the other. One block. The note may be null.
cudaError_t LaunchStart(const HeadProblem& head, const RowStart& start, const RowSet& rows,
                        bool in_place, bool fills, StartNote* note, uint32_t number,
                        cudaStream_t stream);
// Whether the fill is little enough work for that block.
bool IsSmallFill(const FillStage& fill);

// One block for each instance.
cudaError_t LaunchStage(const Stage& stage, int64_t count, cudaStream_t stream);

// index[i] for i < padded: `rows.index` where the host knows the count; otherwise i itself on rows that count. -1 elsewhere.
cudaError_t LaunchMakeIndex(const RowSet& rows, int64_t row_count, int64_t padded, int32_t* index,
                            cudaStream_t stream);

// Packed rows, `stride` elements apart.
struct PackedRows {
  void* data = nullptr;
  DType dtype = DType::kUnspecified;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t width = 0;
};

// to[r] = from[index[r]]; 0 where index[r] is -1 or live[r] is 0. Null index: r + first. Null live: all.
cudaError_t LaunchPackRows(const PackedRows& to, const RowsView& from, int64_t first,
                           const int32_t* index, const uint8_t* live, cudaStream_t stream);

// rows[r] = 0 where live[r] is 0.
cudaError_t LaunchClearDeadRows(const PackedRows& rows, const uint8_t* live, cudaStream_t stream);

// to[index[r]] = from[r], rounded once; 0 where live[r] is 0. Nothing where index[r] is -1 or the record has an error.
cudaError_t LaunchScatterRows(const RowsView& to, const PackedRows& from, const int32_t* index,
                              const uint8_t* live, const ResultRecord* record, cudaStream_t stream);

// to[first + r] = round(from[r]) or round(to[first + r] + from[r]). Nothing if the record has an error.
cudaError_t LaunchFinishRows(const RowsView& to, int64_t first, const PackedRows& from,
                             bool accumulate, const ResultRecord* record, cudaStream_t stream);

// to[first ... last - 1] = 0.
cudaError_t LaunchZeroRows(const RowsView& to, int64_t first, int64_t last,
                           const ResultRecord* record, cudaStream_t stream);

// sums[j] (+)= alpha * sum of factor[r] dz over rows, in a fixed order. `partials`: [kBiasParts, columns]. Null alpha: 1, null factor: 1; a
// factor of 0 takes no part.
inline constexpr int kBiasParts = 16;
cudaError_t LaunchSumColumns(const PackedRows& dz, float* partials, float* sums, bool accumulate,
                             const float* alpha, const float* factor, cudaStream_t stream);

// From the largest |dz|: the power of two that brings it to 2^13 ... 2^14, and its inverse; dz_max becomes 0 again.
struct DzScalars {
  float scale;
  float alpha;  // 1 / scale
  float zero;
  float one;
  uint32_t dz_max;
};
cudaError_t LaunchInitScalars(DzScalars* scalars, cudaStream_t stream);
cudaError_t LaunchScaleFromMax(DzScalars* scalars, cudaStream_t stream);

// Load all kernels of this file.
cudaError_t PrepareStageKernels();
cudaError_t PrepareHeadKernels();

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_HEAD_KERNELS_H_
