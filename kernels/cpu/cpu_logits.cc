// CpuHead::RunHead of the caller's logits: each row as fp32 in a buffer of its thread, and its gradient from there.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_head.h"
#include "kernels/cpu/head_rows.h"
#include "kernels/cpu/logits_rows.h"

namespace lossd {

absl::Status AllocateLogitsRows(const HeadPass& pass, Arena& arena, int threads, LogitsRows* rows) {
  LOSSD_RETURN_IF_ERROR(rows->logits.Allocate(arena, threads, pass.head.vocab, "rows of logits"));
  if (pass.column_weight == nullptr) return absl::OkStatus();
  return rows->column_weight.Allocate(arena, 1, pass.head.valid_columns, "class_weight");
}

std::string DescribeLogits(const HeadPass& pass, int64_t count, const char* sweeps) {
  return absl::StrCat("logits rows=", count, "/", pass.head.rows, " sweeps=", sweeps);
}

absl::Status CpuHead::RunLogits(const HeadPass& pass, std::string* plan_text) {
  const HeadProblem& head = pass.head;
  const RowsView& gradient = pass.gradients.logits;
  LogitsRows buffers;
  LOSSD_RETURN_IF_ERROR(
      AllocateLogitsRows(pass, device_.workspace(), device_.pool().threads(), &buffers));
  buffers.logits.Start();
  RowPass rows;
  rows.pass = &pass;
  rows.sweeps = &sweeps_;
  rows.gradients = gradient.present;
  if (pass.column_weight != nullptr) {
    buffers.column_weight.Start();
    rows.column_weight = buffers.column_weight.Of(0);
    std::copy_n(pass.column_weight + head.vocab_start, head.valid_columns,
                buffers.column_weight.Of(0));
  }
  device_.pool().For(head.rows, [&](int64_t row, int worker) {
    float* values = buffers.logits.Of(worker);
    bool live = false;
    if (pass.rows.counted[row] != 0) {
      LoadRow(head.logits, row, values);
      live = RunRow(rows, row, values);
    }
    if (!gradient) return;
    std::fill(values + (live ? head.valid_columns : 0), values + head.vocab, 0.0f);
    StoreRow(values, false, gradient, row);
  });
  absl::StrAppend(plan_text, plan_text->empty() ? "" : "; ",
                  DescribeLogits(pass, *pass.rows.count, sweeps_.name));
  return absl::OkStatus();
}

}  // namespace lossd
