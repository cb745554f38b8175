// The three products of a chunk of rows: logits, gradient of the hidden states, gradient of the matrix and its bias.
#ifndef LOSSD_KERNELS_CPU_HEAD_PRODUCTS_H_
#define LOSSD_KERNELS_CPU_HEAD_PRODUCTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/head_plan.h"
#include "kernels/linear/head_backend.h"

namespace lossd {

// Borrows the device and the pass for one sweep. Without a device only Allocate may be called.
class HeadProducts {
 public:
  HeadProducts(const HeadPass& pass, const HeadPlan& plan, CpuDevice* device)
      : pass_(pass), plan_(plan), device_(device) {}

  // Takes what it needs from the workspace.
  absl::Status Allocate(Arena& arena, int threads);
  // Clears it. Once, before the first product.
  void Start();

  // logits [rows, columns] = hidden [rows, H] weight^T. With batch_invariant, rows must be a multiple of kInvariantRows.
  void Logits(const float* hidden, int64_t rows, float* logits);
  // grad_hidden [rows, H] = draw [rows, columns] weight.
  void GradHidden(const float* draw, int64_t rows, float* grad_hidden);
  // Adds draw^T hidden to grad_weight, and the column sums of draw to grad_bias.
  void GradWeight(const float* draw, const float* hidden, int64_t rows);
  // Rounds accumulators, fills what no chunk has written. Once, at the end.
  void Finish();

 private:
  int64_t columns() const { return pass_.head.valid_columns; }
  int64_t tiles() const { return (columns() + plan_.column_tile - 1) / plan_.column_tile; }
  int64_t TileBegin(int64_t tile) const { return tile * plan_.column_tile; }
  int64_t TileWidth(int64_t tile) const;
  float* TileBuffer(int64_t slot) const {
    return tile_buffers_ + slot * plan_.column_tile * pass_.head.hidden_size;
  }
  // Rows of weight as fp32: in place, or copied to `buffer`.
  const float* WeightRows(int64_t begin, int64_t count, float* buffer, int64_t* stride) const;
  void GradHiddenBlocks(const float* draw, int64_t k, const float* weight, int64_t weight_stride,
                        int64_t rows, bool accumulate, float* grad_hidden);
  void GradWeightTile(const float* draw, const float* hidden, int64_t rows, int64_t tile,
                      int worker);
  void GradBiasTile(const float* draw, int64_t rows, int64_t tile);

  const HeadPass& pass_;
  const HeadPlan& plan_;
  CpuDevice* const device_;
  float* tile_buffers_ = nullptr;        // [threads, column_tile, H]
  float* weight_accumulator_ = nullptr;  // [columns, H]
  double* bias_accumulator_ = nullptr;   // [columns]
  bool started_ = false;                 // grad_weight holds a chunk already
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_HEAD_PRODUCTS_H_
