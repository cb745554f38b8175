#include "kernels/cpu/head_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/arena.h"
#include "kernels/core/error.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/sweeps.h"

namespace lossd {
namespace {

constexpr int64_t kTileElements = int64_t{1} << 22;

int64_t RoundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Of `count` arrays, with what the arena rounds up.
uint64_t ArrayBytes(int64_t elements, uint64_t size) {
  return static_cast<uint64_t>(elements) * size + Arena::kAlignment;
}

}  // namespace

absl::StatusOr<HeadPlan> PlanHead(const HeadPass& pass, int64_t rows, int threads, uint64_t free,
                                  int64_t max_rows) {
  const HeadProblem& head = pass.head;
  const HeadGradients& gradients = pass.gradients;
  HeadPlan plan;
  // A multiple of the vectors' width that makes long products and still fits a few tiles into the workspace.
  plan.column_tile = std::clamp<int64_t>(kTileElements / head.hidden_size / 64 * 64, 128, 1024);
  plan.logits_stride = RoundUp(std::max<int64_t>(head.valid_columns, 1), kColumnGroup);
  plan.convert_weight = !IsPlainF32(head.weight);
  const bool round_weight = gradients.weight && !IsPlainF32(gradients.weight);
  plan.tiles = plan.convert_weight || round_weight;

  uint64_t fixed = ArrayBytes(threads * kColumnGroup, sizeof(float));
  if (head.bias) fixed += ArrayBytes(plan.logits_stride, sizeof(float));
  if (pass.column_weight != nullptr) fixed += ArrayBytes(plan.logits_stride, sizeof(float));
  if (gradients.bias) fixed += ArrayBytes(plan.logits_stride, sizeof(double));
  if (plan.tiles) fixed += ArrayBytes(threads * plan.column_tile * head.hidden_size, sizeof(float));

  const int64_t step = pass.batch_invariant ? kInvariantRows : 1;
  const uint64_t row_bytes =
      (plan.logits_stride + head.hidden_size * (gradients.hidden ? 2 : 1)) * sizeof(float) + 64;
  const auto rows_in = [&](uint64_t used) {
    const uint64_t slack = 8 * Arena::kAlignment;
    if (free < used + slack) return int64_t{0};
    const auto fit = static_cast<int64_t>((free - used - slack) / row_bytes);
    return (max_rows > 0 ? std::min(fit, max_rows) : fit) / step * step;
  };
  const int64_t wanted = RoundUp(rows, step);
  int64_t most = rows_in(fixed);
  if (most < wanted && round_weight) {
    // Several chunks: their sums stay in fp32 until the last one.
    plan.weight_accumulator = true;
    fixed += ArrayBytes(head.valid_columns * head.hidden_size, sizeof(float));
    most = rows_in(fixed);
  }
  if (most < step) {
    return ReasonError(
        absl::StatusCode::kResourceExhausted, "WORKSPACE",
        absl::StrCat("workspace: the head needs at least ", fixed + row_bytes * step, " bytes, ",
                     free, " are free; start the server with a larger workspace"));
  }
  if (rows == 0) return plan;
  plan.chunks = (wanted + most - 1) / most;
  plan.chunk_rows = RoundUp((rows + plan.chunks - 1) / plan.chunks, step);
  return plan;
}

std::string DescribePlan(const HeadPlan& plan, const HeadPass& pass, int64_t rows,
                         const char* sweeps) {
  return absl::StrCat("rows=", rows, "/", pass.head.rows, " chunks=", plan.chunks, "x",
                      plan.chunk_rows, " tile=", plan.column_tile,
                      pass.batch_invariant ? " batch-invariant" : "",
                      plan.weight_accumulator ? " fp32-accumulator" : "", " sweeps=", sweeps);
}

}  // namespace lossd
