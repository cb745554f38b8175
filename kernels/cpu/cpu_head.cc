#include "kernels/cpu/cpu_head.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/head_plan.h"
#include "kernels/cpu/head_products.h"
#include "kernels/cpu/head_rows.h"
#include "kernels/objectives/team.h"

namespace lossd {
namespace {

// Elements of a [V] tensor as fp32, and zeros up to `padded`.
void LoadVector(const RowsView& view, int64_t count, int64_t padded, float* to) {
  for (int64_t j = 0; j < count; ++j) LoadRow(view, j, to + j);
  std::fill(to + count, to + padded, 0.0f);
}

// One sweep over the head: the chunks and what lives as long as they do.
class Sweep {
 public:
  Sweep(const HeadPass& pass, const HeadPlan& plan, CpuDevice& device, const Sweeps& sweeps)
      : pass_(pass), plan_(plan), device_(device), products_(pass, plan, device) {
    rows_.pass = &pass;
    rows_.sweeps = &sweeps;
    rows_.gradients = pass.gradients.any();
  }

  absl::Status Allocate();
  void RunChunk(int64_t begin, int64_t end);
  void Finish() { products_.Finish(); }

 private:
  void LoadHidden(int64_t begin, int64_t count, int64_t padded);
  int64_t DropDeadRows(int64_t count);
  void StoreGradHidden(int64_t begin, int64_t count, int64_t live);

  const HeadPass& pass_;
  const HeadPlan& plan_;
  CpuDevice& device_;
  HeadProducts products_;
  RowPass rows_;
  float* logits_ = nullptr;       // [chunk_rows, logits_stride]
  float* hidden_ = nullptr;       // [chunk_rows, H]
  float* grad_hidden_ = nullptr;  // [chunk_rows, H]
  uint8_t* live_ = nullptr;       // [chunk_rows]: the row's gradient is not zero
};

absl::Status Sweep::Allocate() {
  Arena& arena = device_.workspace();
  const HeadProblem& head = pass_.head;
  LOSSD_RETURN_IF_ERROR(products_.Allocate());
  if (head.bias) {
    LOSSD_ASSIGN_OR_RETURN(float* bias, arena.AllocateArray<float>(plan_.logits_stride, "bias"));
    LoadVector(head.bias, head.valid_columns, plan_.logits_stride, bias);
    rows_.bias = bias;
  }
  if (pass_.column_weight != nullptr) {
    LOSSD_ASSIGN_OR_RETURN(float* weight,
                           arena.AllocateArray<float>(plan_.logits_stride, "class_weight"));
    std::copy_n(pass_.column_weight + head.vocab_start, head.valid_columns, weight);
    std::fill(weight + head.valid_columns, weight + plan_.logits_stride, 0.0f);
    rows_.column_weight = weight;
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

void Sweep::LoadHidden(int64_t begin, int64_t count, int64_t padded) {
  const int64_t width = pass_.head.hidden_size;
  device_.pool().For((count + 63) / 64, [&](int64_t block, int) {
    for (int64_t i = block * 64; i < std::min(count, block * 64 + 64); ++i) {
      LoadRow(pass_.head.hidden, pass_.rows.index[begin + i], hidden_ + i * width);
    }
  });
  std::fill(hidden_ + count * width, hidden_ + padded * width, 0.0f);
}

void Sweep::RunChunk(int64_t begin, int64_t end) {
  const int64_t count = end - begin;
  const int64_t padded = pass_.batch_invariant
                             ? (count + kInvariantRows - 1) / kInvariantRows * kInvariantRows
                             : count;
  LoadHidden(begin, count, padded);
  products_.Logits(hidden_, padded, logits_);
  device_.pool().For(count, [&](int64_t i, int) {
    live_[i] = RunRow(rows_, pass_.rows.index[begin + i], logits_ + i * plan_.logits_stride);
  });
  if (!rows_.gradients) return;
  const int64_t live = DropDeadRows(count);
  if (pass_.gradients.hidden) {
    if (live > 0) products_.GradHidden(logits_, live, grad_hidden_);
    StoreGradHidden(begin, count, live);
  }
  if (pass_.gradients.weight || pass_.gradients.bias) products_.GradWeight(logits_, hidden_, live);
}

// Moves the rows with a gradient to the front. Returns how many there are.
int64_t Sweep::DropDeadRows(int64_t count) {
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

void Sweep::StoreGradHidden(int64_t begin, int64_t count, int64_t live) {
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

}  // namespace

absl::Status CpuHead::StartRows(const HeadProblem& head, RowStart& start, RowSet* rows,
                                ResultRecord* found) {
  Arena& arena = device_.workspace();
  LOSSD_ASSIGN_OR_RETURN(rows->index, arena.AllocateArray<int32_t>(head.rows, "row numbers"));
  LOSSD_ASSIGN_OR_RETURN(rows->counted, arena.AllocateArray<uint8_t>(head.rows, "row marks"));
  *start.record = ResultRecord();
  int64_t count = 0;
  for (int64_t i = 0; i < head.rows; ++i) {
    rows->counted[i] = head.IsCounted(i) ? 1 : 0;
    if (rows->counted[i] != 0) rows->index[count++] = static_cast<int32_t>(i);
  }
  std::fill(rows->index + count, rows->index + head.rows, -1);
  rows->count = &start.record->count;
  *rows->count = rows->host_count = count;
  start.elements.counted = start.sequences.counted = start.fill.counted = rows->counted;
  start.elements.count = rows->count;
  start.elements.record = start.sequences.record = start.record;
  start.fill.record = start.record;
  LOSSD_RETURN_IF_ERROR(RunStage(start.elements, start.elements.Instances()));
  LOSSD_RETURN_IF_ERROR(RunStage(start.sequences, start.sequences.Instances()));
  *found = *start.record;
  if (found->code != 0 || count == head.rows) return absl::OkStatus();
  return RunStage(start.fill, start.fill.Instances());
}

absl::Status CpuHead::RunStage(const Stage& stage, int64_t count) {
  std::visit(
      [&](const auto& concrete) {
        device_.pool().For(count, [&](int64_t instance, int) {
          SerialTeam team;
          concrete.Run(team, instance);
        });
      },
      stage);
  return absl::OkStatus();
}

absl::Status CpuHead::RunHead(const HeadPass& pass, std::string* plan_text) {
  if (pass.record->code != 0) return absl::OkStatus();
  Arena& arena = device_.workspace();
  const uint64_t mark = arena.used();
  const int64_t count = *pass.rows.count;
  LOSSD_ASSIGN_OR_RETURN(const HeadPlan plan,
                         PlanHead(pass, count, device_.pool().threads(), arena.available()));
  Sweep sweep(pass, plan, device_, sweeps_);
  absl::Status status = sweep.Allocate();
  if (status.ok()) {
    for (int64_t begin = 0; begin < count; begin += plan.chunk_rows) {
      sweep.RunChunk(begin, std::min(count, begin + plan.chunk_rows));
    }
    sweep.Finish();
    absl::StrAppend(plan_text, plan_text->empty() ? "" : "; ", "rows=", count, "/", pass.head.rows,
                    " chunks=", plan.chunks, "x", plan.chunk_rows, " tile=", plan.column_tile,
                    pass.batch_invariant ? " batch-invariant" : "",
                    plan.weight_accumulator ? " fp32-accumulator" : "", " sweeps=", sweeps_.name);
  }
  arena.ReleaseTo(mark);
  return status;
}

}  // namespace lossd
