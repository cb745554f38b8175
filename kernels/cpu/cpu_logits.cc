// CpuHead::RunHead of the caller's logits: each row as fp32 in a buffer of its thread, and its gradient from there.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_head.h"
#include "kernels/cpu/head_rows.h"
#include "kernels/cpu/row_buffers.h"

namespace lossd {
namespace {

// class_weight of the columns held here, with zeros up to the next group.
absl::StatusOr<float*> CopyColumnWeight(const HeadPass& pass, Arena& arena) {
  const HeadProblem& head = pass.head;
  RowBuffers buffer;
  LOSSD_RETURN_IF_ERROR(buffer.Allocate(arena, 1, head.valid_columns, "class_weight"));
  std::copy_n(pass.column_weight + head.vocab_start, head.valid_columns, buffer.Of(0));
  return buffer.Of(0);
}

}  // namespace

absl::Status CpuHead::RunLogits(const HeadPass& pass, std::string* plan_text) {
  Arena& arena = device_.workspace();
  const HeadProblem& head = pass.head;
  const RowsView& gradient = pass.gradients.logits;
  RowBuffers buffers;
  LOSSD_RETURN_IF_ERROR(
      buffers.Allocate(arena, device_.pool().threads(), head.vocab, "rows of logits"));
  RowPass rows;
  rows.pass = &pass;
  rows.sweeps = &sweeps_;
  rows.gradients = gradient.present;
  if (pass.column_weight != nullptr) {
    LOSSD_ASSIGN_OR_RETURN(rows.column_weight, CopyColumnWeight(pass, arena));
  }
  device_.pool().For(head.rows, [&](int64_t row, int worker) {
    float* values = buffers.Of(worker);
    bool live = false;
    if (pass.rows.counted[row] != 0) {
      LoadRow(head.logits, row, values);
      live = RunRow(rows, row, values);
    }
    if (!gradient) return;
    std::fill(values + (live ? head.valid_columns : 0), values + head.vocab, 0.0f);
    StoreRow(values, false, gradient, row);
  });
  absl::StrAppend(plan_text, plan_text->empty() ? "" : "; ", "logits rows=", *pass.rows.count, "/",
                  head.rows, " sweeps=", sweeps_.name);
  return absl::OkStatus();
}

}  // namespace lossd
