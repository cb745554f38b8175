// CpuLayers: rotary embedding.
#include <algorithm>

#include "kernels/core/status_macros.h"
#include "kernels/cpu/cpu_layers.h"
#include "kernels/cpu/layer_pieces.h"
#include "kernels/cpu/sweeps.h"

namespace lossd {
namespace {

// The first token whose position is outside the tables, or -1.
int64_t FindBadPosition(const RopeProblem& problem) {
  if (!problem.position) return -1;
  for (int64_t n = 0; n < problem.rows; ++n) {
    const int64_t position = problem.Position(n);
    if (position < 0 || position >= problem.cosine.rows) return n;
  }
  return -1;
}

}  // namespace

absl::Status CpuLayers::Rope(const RopeProblem& problem, const LayerCall& call) {
  const int64_t bad = FindBadPosition(problem);
  if (bad >= 0) {
    LOSSD_RETURN_IF_ERROR(Finish(call));
    call.record->code = static_cast<int32_t>(absl::StatusCode::kInvalidArgument);
    call.record->field = problem.position_field;
    call.record->row = bad;
    if (call.record_copy != nullptr) *call.record_copy = *call.record;
    return absl::OkStatus();
  }
  if (!problem.y) return Finish(call);
  Arena& arena = device_.workspace();
  const uint64_t mark = arena.used();
  const int64_t padded = (problem.dim + kColumnGroup - 1) / kColumnGroup * kColumnGroup;
  LOSSD_ASSIGN_OR_RETURN(float* heads,
                         arena.AllocateArray<float>(padded * device_.pool().threads(), "a head"));
  const auto size_of = [](const HeadsView& view) {
    return static_cast<int64_t>(SizeOf(view.tokens.dtype));
  };
  const int64_t block =
      std::max<int64_t>((1 << 14) / std::max<int64_t>(problem.heads * problem.dim, 1), 1);
  device_.pool().For((problem.rows + block - 1) / block, [&](int64_t i, int worker) {
    float* head = heads + worker * padded;
    for (int64_t n = i * block; n < std::min(problem.rows, (i + 1) * block); ++n) {
      const int64_t position = problem.Position(n);
      for (int64_t a = 0; a < problem.heads; ++a) {
        LoadAsF32(static_cast<const char*>(problem.x.tokens.data) +
                      problem.x.Offset(n, a) * size_of(problem.x),
                  problem.x.tokens.dtype, problem.dim, head);
        sweeps_.rope(problem.cosine.Row<const float>(position),
                     problem.sine.Row<const float>(position), problem.backward ? -1.0f : 1.0f,
                     problem.interleaved, problem.rotary / 2, head);
        StoreFromF32(head, problem.dim, false, problem.y.tokens.dtype,
                     static_cast<char*>(problem.y.tokens.data) +
                         problem.y.Offset(n, a) * size_of(problem.y));
      }
    }
  });
  arena.ReleaseTo(mark);
  return Finish(call);
}

}  // namespace lossd
