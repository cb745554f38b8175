#include "kernels/cpu/cpu_planner.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/head_plan.h"
#include "kernels/cpu/head_sweep.h"
#include "kernels/cpu/logits_rows.h"
#include "kernels/cpu/pair_heads.h"

namespace lossd {
namespace {

int64_t CountOf(const RowSet& rows, const HeadProblem& head) {
  return rows.host_count >= 0 ? rows.host_count : head.rows;
}

// With the padding of the last tile of each chunk.
int64_t MultipliedRows(const HeadPass& pass, const HeadPlan& plan, int64_t rows) {
  if (!pass.batch_invariant || rows == 0) return rows;
  const int64_t last = rows - (plan.chunks - 1) * plan.chunk_rows;
  return (plan.chunks - 1) * plan.chunk_rows +
         (last + kInvariantRows - 1) / kInvariantRows * kInvariantRows;
}

ProductCost CostOf(const HeadPass& pass, const HeadPlan& plan, int64_t rows) {
  const double each = 2.0 * static_cast<double>(pass.head.valid_columns) *
                      static_cast<double>(pass.head.hidden_size);
  ProductCost cost;
  cost.logits = each * static_cast<double>(MultipliedRows(pass, plan, rows));
  if (pass.gradients.hidden) cost.grad_hidden = each * static_cast<double>(rows);
  if (pass.gradients.weight) cost.grad_weight = each * static_cast<double>(rows);
  return cost;
}

std::string ConvertReason(const char* weight) {
  return absl::StrCat(weight,
                      ": is not fp32 with even rows: converted tile by tile in every chunk");
}

void Explain(const HeadPass& pass, const HeadPlan& plan, int64_t rows, PlannedPass* out) {
  if (pass.batch_invariant) {
    out->reasons.push_back(absl::StrCat("batch_invariant: products of ", kInvariantRows, " rows, ",
                                        MultipliedRows(pass, plan, rows), " in all"));
  }
  if (plan.chunks > 1) {
    out->reasons.push_back(absl::StrCat("workspace: holds the logits of ", plan.chunk_rows, " of ",
                                        rows, " rows, the weight is read ", plan.chunks, " times"));
  }
  if (pass.gradient_filter > 0 && pass.gradients.any()) {
    out->reasons.push_back("gradient_filter: no block is left out on the cpu");
  }
  if (plan.convert_weight) out->reasons.push_back(ConvertReason("weight"));
  const RowsView& grad_weight = pass.gradients.weight;
  if (!grad_weight) return;
  if (plan.weight_accumulator) {
    out->ways.push_back("grad_weight: added up over the chunks in fp32 in the workspace");
    out->reasons.push_back(
        absl::StrCat("grad_weight: ", NameOf(grad_weight.dtype), " does not add up over chunks"));
  } else if (!IsPlainF32(grad_weight)) {
    out->ways.push_back("grad_weight: tile by tile in fp32, rounded once");
  } else {
    out->ways.push_back("grad_weight: the products add to the destination");
  }
}

}  // namespace

CpuPlanner::CpuPlanner(const DeviceDescription& device)
    : Planner(device, device.workspace_bytes), sweeps_(SelectSweeps()) {}

absl::Status CpuPlanner::RunHead(const HeadPass& pass, std::string*) {
  if (pass.head.logits) return RunLogits(pass);
  const uint64_t mark = arena().used();
  const int64_t rows = CountOf(pass.rows, pass.head);
  LOSSD_ASSIGN_OR_RETURN(const HeadPlan plan, PlanHead(pass, rows, threads(), arena().available()));
  HeadSweep sweep(pass, plan, nullptr);
  LOSSD_RETURN_IF_ERROR(sweep.Allocate(arena(), threads()));
  PlannedPass planned;
  planned.plan = DescribePlan(plan, pass, rows, sweeps_.name);
  planned.cost = CostOf(pass, plan, rows);
  if (again_) planned.reasons.push_back(kLogitsAgain);
  Explain(pass, plan, rows, &planned);
  Add(std::move(planned), mark);
  arena().ReleaseTo(mark);
  return absl::OkStatus();
}

absl::Status CpuPlanner::RunLogits(const HeadPass& pass) {
  const uint64_t mark = arena().used();
  LogitsRows rows;
  LOSSD_RETURN_IF_ERROR(AllocateLogitsRows(pass, arena(), threads(), &rows));
  PlannedPass planned;
  planned.plan = DescribeLogits(pass, CountOf(pass.rows, pass.head), sweeps_.name);
  planned.ways.push_back(kOnePassOverLogits);
  Add(std::move(planned), mark);
  arena().ReleaseTo(mark);
  return absl::OkStatus();
}

absl::Status CpuPlanner::RunHeadTwice(const HeadPass& first, const std::vector<StageRun>&,
                                      const HeadPass& second, std::string* plan) {
  LOSSD_RETURN_IF_ERROR(RunHead(first, plan));
  if (!second.gradients.any()) return absl::OkStatus();
  again_ = true;
  const absl::Status status = RunHead(second, plan);
  again_ = false;
  return status;
}

absl::Status CpuPlanner::RunPair(const PairPass& pass, std::string*) {
  return pass.student.form == PairForm::kHead ? RunPairOfHead(pass) : RunPairOfValues(pass);
}

absl::Status CpuPlanner::RunPairOfHead(const PairPass& pass) {
  const uint64_t mark = arena().used();
  const int64_t rows = CountOf(pass.rows, pass.student.head);
  PairHeads heads(pass, nullptr);
  LOSSD_RETURN_IF_ERROR(heads.Allocate(arena(), threads(), rows));
  PlannedPass planned;
  planned.plan = heads.Describe(rows, sweeps_.name);
  planned.cost = CostOf(heads.student_pass(), heads.plan(), rows);
  Explain(heads.student_pass(), heads.plan(), rows, &planned);
  if (heads.has_teacher()) {
    planned.cost.logits += CostOf(heads.teacher_pass(), heads.plan(), rows).logits;
    if (heads.teacher_plan().convert_weight) {
      planned.reasons.push_back(ConvertReason("teacher_weight"));
    }
  }
  Add(std::move(planned), mark);
  arena().ReleaseTo(mark);
  return absl::OkStatus();
}

absl::Status CpuPlanner::RunPairOfValues(const PairPass& pass) {
  const uint64_t mark = arena().used();
  RowBuffers students;
  RowBuffers teachers;
  LOSSD_RETURN_IF_ERROR(AllocateValueRows(pass, arena(), threads(), &students, &teachers));
  PlannedPass planned;
  planned.plan = DescribeValues(pass, CountOf(pass.rows, pass.student.head), sweeps_.name);
  planned.ways.push_back("one pass over the rows of both tensors: no products");
  Add(std::move(planned), mark);
  arena().ReleaseTo(mark);
  return absl::OkStatus();
}

}  // namespace lossd
