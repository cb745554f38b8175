// One sweep over the head, a chunk of rows at a time: logits, rows, and the products with their gradients.
#ifndef LOSSD_KERNELS_CPU_HEAD_SWEEP_H_
#define LOSSD_KERNELS_CPU_HEAD_SWEEP_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/head_plan.h"
#include "kernels/cpu/head_products.h"
#include "kernels/linear/head_backend.h"

namespace lossd {

// Used in this order: Allocate; Start; for each chunk MakeLogits and RunRows; Finish. Borrows all that it is given. Without a
// device only Allocate may be called.
class HeadSweep {
 public:
  // A row of a chunk: its place in the chunk, its number in the call, and a number of the thread. Overwrites Logits(place) by the row's
  // gradient and returns whether that is other than zero as a whole; the answer says nothing without gradients.
  using RowFunction = std::function<bool(int64_t place, int64_t row, int worker)>;

  HeadSweep(const HeadPass& pass, const HeadPlan& plan, CpuDevice* device)
      : pass_(pass), plan_(plan), device_(device), products_(pass, plan, device) {}

  // Takes what it needs from the workspace.
  absl::Status Allocate(Arena& arena, int threads);
  // Fills what all chunks read.
  void Start();

  // Products of the rows begin ... end - 1 of those that count.
  void MakeLogits(int64_t begin, int64_t end);
  float* Logits(int64_t place) const { return logits_ + place * plan_.logits_stride; }
  // Calls `row` for each of them, on all threads, and adds the products with what it left.
  void RunRows(int64_t begin, int64_t end, const RowFunction& row);
  void Finish() { products_.Finish(); }

  // As fp32 with zeros behind; null where there is none.
  const float* bias() const { return bias_; }
  const float* column_weight() const { return column_weight_; }

 private:
  void LoadHidden(int64_t begin, int64_t count, int64_t padded);
  int64_t DropDeadRows(int64_t count);
  void StoreGradHidden(int64_t begin, int64_t count, int64_t live);

  const HeadPass& pass_;
  const HeadPlan& plan_;
  CpuDevice* const device_;
  HeadProducts products_;
  float* bias_ = nullptr;           // [logits_stride]
  float* column_weight_ = nullptr;  // [logits_stride]
  float* logits_ = nullptr;         // [chunk_rows, logits_stride]
  float* hidden_ = nullptr;         // [chunk_rows, H]
  float* grad_hidden_ = nullptr;    // [chunk_rows, H]
  uint8_t* live_ = nullptr;         // [chunk_rows]: the row's gradient is not zero
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_HEAD_SWEEP_H_
