#include "kernels/cpu/head_sweep.h"

#include <algorithm>

#include "kernels/core/status_macros.h"
#include "kernels/cpu/convert.h"

namespace lossd {
namespace {

// Elements of a [V] tensor as fp32, and zeros up to `padded`.
void LoadVector(const RowsView& view, int64_t count, int64_t padded, float* to) {
  for (int64_t j = 0; j < count; ++j) LoadRow(view, j, to + j);
  std::fill(to + count, to + padded, 0.0f);
}

}  // namespace

absl::Status HeadSweep::Allocate(Arena& arena, int threads) {
  const HeadProblem& head = pass_.head;
  LOSSD_RETURN_IF_ERROR(products_.Allocate(arena, threads));
  if (head.bias) {
    LOSSD_ASSIGN_OR_RETURN(bias_, arena.AllocateArray<float>(plan_.logits_stride, "bias"));
  }
  if (pass_.column_weight != nullptr) {
    LOSSD_ASSIGN_OR_RETURN(column_weight_,
                           arena.AllocateArray<float>(plan_.logits_stride, "class_weight"));
  }
  const int64_t rows = plan_.chunk_rows;
  LOSSD_ASSIGN_OR_RETURN(logits_, arena.AllocateArray<float>(rows * plan_.logits_stride, "logits"));
  LOSSD_ASSIGN_OR_RETURN(hidden_, arena.AllocateArray<float>(rows * head.hidden_size, "hidden"));
  if (pass_.gradients.hidden) {
    LOSSD_ASSIGN_OR_RETURN(grad_hidden_,
                           arena.AllocateArray<float>(rows * head.hidden_size, "grad_hidden"));
  }
  LOSSD_ASSIGN_OR_RETURN(live_, arena.AllocateArray<uint8_t>(rows, "row marks"));
  return absl::OkStatus();
}

void HeadSweep::Start() {
  const HeadProblem& head = pass_.head;
  products_.Start();
  if (head.bias) LoadVector(head.bias, head.valid_columns, plan_.logits_stride, bias_);
  if (pass_.column_weight != nullptr) {
    std::copy_n(pass_.column_weight + head.vocab_start, head.valid_columns, column_weight_);
    std::fill(column_weight_ + head.valid_columns, column_weight_ + plan_.logits_stride, 0.0f);
  }
}

void HeadSweep::LoadHidden(int64_t begin, int64_t count, int64_t padded) {
  const int64_t width = pass_.head.hidden_size;
  device_->pool().For((count + 63) / 64, [&](int64_t block, int) {
    for (int64_t i = block * 64; i < std::min(count, block * 64 + 64); ++i) {
      LoadRow(pass_.head.hidden, pass_.rows.index[begin + i], hidden_ + i * width);
    }
  });
  std::fill(hidden_ + count * width, hidden_ + padded * width, 0.0f);
}

void HeadSweep::MakeLogits(int64_t begin, int64_t end) {
  const int64_t count = end - begin;
  const int64_t padded = pass_.batch_invariant
                             ? (count + kInvariantRows - 1) / kInvariantRows * kInvariantRows
                             : count;
  LoadHidden(begin, count, padded);
  products_.Logits(hidden_, padded, logits_);
}

void HeadSweep::RunRows(int64_t begin, int64_t end, const RowFunction& row) {
  const int64_t count = end - begin;
  device_->pool().For(count, [&](int64_t i, int worker) {
    live_[i] = row(i, pass_.rows.index[begin + i], worker) ? 1 : 0;
  });
  if (!pass_.gradients.any()) return;
  const int64_t live = DropDeadRows(count);
  if (pass_.gradients.hidden) {
    if (live > 0) products_.GradHidden(logits_, live, grad_hidden_);
    StoreGradHidden(begin, count, live);
  }
  if (pass_.gradients.weight || pass_.gradients.bias) products_.GradWeight(logits_, hidden_, live);
}

// Moves the rows with a gradient to the front. Returns how many there are.
int64_t HeadSweep::DropDeadRows(int64_t count) {
  int64_t live = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (live_[i] == 0) continue;
    if (live != i) {
      std::copy_n(logits_ + i * plan_.logits_stride, pass_.head.valid_columns,
                  logits_ + live * plan_.logits_stride);
      std::copy_n(hidden_ + i * pass_.head.hidden_size, pass_.head.hidden_size,
                  hidden_ + live * pass_.head.hidden_size);
    }
    ++live;
  }
  return live;
}

void HeadSweep::StoreGradHidden(int64_t begin, int64_t count, int64_t live) {
  const int64_t width = pass_.head.hidden_size;
  // One row of the buffer is free as soon as a row is dead: it becomes the zeros of all dead ones.
  float* zeros = grad_hidden_ + live * width;
  if (live < count) std::fill(zeros, zeros + width, 0.0f);
  int64_t next = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float* from = live_[i] != 0 ? grad_hidden_ + next++ * width : zeros;
    StoreRow(from, false, pass_.gradients.hidden, pass_.rows.index[begin + i]);
  }
}

}  // namespace lossd
