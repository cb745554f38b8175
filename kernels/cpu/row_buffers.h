// Rows of a tensor as fp32, one for each thread.
#ifndef LOSSD_KERNELS_CPU_ROW_BUFFERS_H_
#define LOSSD_KERNELS_CPU_ROW_BUFFERS_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/core/arena.h"
#include "kernels/core/status_macros.h"
#include "kernels/cpu/sweeps.h"

namespace lossd {

// Each has zeros up to the next group of columns after Start.
class RowBuffers {
 public:
  absl::Status Allocate(Arena& arena, int threads, int64_t width, const char* what) {
    threads_ = threads;
    stride_ = (std::max<int64_t>(width, 1) + kColumnGroup - 1) / kColumnGroup * kColumnGroup;
    LOSSD_ASSIGN_OR_RETURN(data_, arena.AllocateArray<float>(threads * stride_, what));
    return absl::OkStatus();
  }
  void Start() { std::fill(data_, data_ + threads_ * stride_, 0.0f); }
  float* Of(int worker) const { return data_ + worker * stride_; }

 private:
  float* data_ = nullptr;
  int threads_ = 0;
  int64_t stride_ = 0;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_ROW_BUFFERS_H_
