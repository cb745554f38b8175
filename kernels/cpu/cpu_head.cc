#include "kernels/cpu/cpu_head.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cpu/head_plan.h"
#include "kernels/cpu/head_rows.h"
#include "kernels/cpu/head_sweep.h"
#include "kernels/objectives/team.h"

namespace lossd {

absl::Status CpuHead::StartRows(const HeadProblem& head, RowStart& start, RowSet* rows,
                                ResultRecord* found) {
  *start.record = ResultRecord();
  int64_t count = 0;
  for (int64_t i = 0; i < head.rows; ++i) {
    rows->counted[i] = head.IsCounted(i) ? 1 : 0;
    if (rows->counted[i] != 0) rows->index[count++] = static_cast<int32_t>(i);
  }
  std::fill(rows->index + count, rows->index + head.rows, -1);
  *rows->count = rows->host_count = count;
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
  if (pass.head.logits) {
    const absl::Status status = RunLogits(pass, plan_text);
    arena.ReleaseTo(mark);
    return status;
  }
  const int64_t count = *pass.rows.count;
  LOSSD_ASSIGN_OR_RETURN(const HeadPlan plan,
                         PlanHead(pass, count, device_.pool().threads(), arena.available()));
  HeadSweep sweep(pass, plan, &device_);
  absl::Status status = sweep.Allocate(arena, device_.pool().threads());
  if (status.ok()) {
    sweep.Start();
    RowPass rows;
    rows.pass = &pass;
    rows.sweeps = &sweeps_;
    rows.bias = sweep.bias();
    rows.column_weight = sweep.column_weight();
    rows.gradients = pass.gradients.any();
    for (int64_t begin = 0; begin < count; begin += plan.chunk_rows) {
      const int64_t end = std::min(count, begin + plan.chunk_rows);
      sweep.MakeLogits(begin, end);
      sweep.RunRows(begin, end, [&](int64_t i, int64_t row, int) {
        return RunRow(rows, row, sweep.Logits(i));
      });
    }
    sweep.Finish();
    absl::StrAppend(plan_text, plan_text->empty() ? "" : "; ",
                    DescribePlan(plan, pass, count, sweeps_.name));
  }
  arena.ReleaseTo(mark);
  return status;
}

}  // namespace lossd
