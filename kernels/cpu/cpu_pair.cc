// CpuHead::RunPair: student and teacher a chunk of rows at a time.
#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_head.h"
#include "kernels/cpu/head_plan.h"
#include "kernels/cpu/head_sweep.h"
#include "kernels/cpu/pair_rows.h"

namespace lossd {
namespace {

int64_t RoundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

HeadPass MakePass(const PairPass& pass, const PairSide& side) {
  HeadPass out;
  out.head = side.head;
  out.rows = pass.rows;
  out.batch_invariant = pass.batch_invariant;
  out.record = pass.record;
  return out;
}

// A row of a tensor as fp32 for each thread, with zeros up to the next group of columns.
class RowBuffers {
 public:
  absl::Status Allocate(Arena& arena, int threads, int64_t width, const char* what) {
    stride_ = RoundUp(std::max<int64_t>(width, 1), kColumnGroup);
    LOSSD_ASSIGN_OR_RETURN(data_, arena.AllocateArray<float>(threads * stride_, what));
    std::fill(data_, data_ + threads * stride_, 0.0f);
    return absl::OkStatus();
  }
  float* Of(int worker) const { return data_ + worker * stride_; }

 private:
  float* data_ = nullptr;
  int64_t stride_ = 0;
};

}  // namespace

absl::Status CpuHead::RunPair(const PairPass& pass, std::string* plan) {
  if (pass.record->code != 0) return absl::OkStatus();
  Arena& arena = device_.workspace();
  const uint64_t mark = arena.used();
  const absl::Status status = pass.student.form == PairForm::kHead ? RunPairOfHead(pass, plan)
                                                                   : RunPairOfValues(pass, plan);
  arena.ReleaseTo(mark);
  return status;
}

absl::Status CpuHead::RunPairOfHead(const PairPass& pass, std::string* plan_text) {
  Arena& arena = device_.workspace();
  const int threads = device_.pool().threads();
  const int64_t count = *pass.rows.count;
  HeadPass student_pass = MakePass(pass, pass.student);
  student_pass.gradients = pass.gradients;
  const HeadPass teacher_pass = MakePass(pass, pass.teacher);
  const bool two_heads = pass.teacher.form == PairForm::kHead;

  RowBuffers teacher_rows;
  if (pass.teacher.form == PairForm::kValues) {
    LOSSD_RETURN_IF_ERROR(
        teacher_rows.Allocate(arena, threads, pass.teacher.values.width, "rows of the teacher"));
  }
  HeadPlan teacher_plan;
  if (two_heads) {
    // Half of the memory; what its chunks leave of it goes to the student.
    LOSSD_ASSIGN_OR_RETURN(teacher_plan,
                           PlanHead(teacher_pass, count, threads, arena.available() / 2));
  }
  HeadSweep teacher(teacher_pass, teacher_plan, device_);
  if (two_heads) LOSSD_RETURN_IF_ERROR(teacher.Allocate());
  LOSSD_ASSIGN_OR_RETURN(const HeadPlan plan, PlanHead(student_pass, count, threads,
                                                       arena.available(), teacher_plan.chunk_rows));
  HeadSweep student(student_pass, plan, device_);
  LOSSD_RETURN_IF_ERROR(student.Allocate());

  PairRows rows;
  rows.pass = &pass;
  rows.sweeps = &sweeps_;
  rows.pair_sweeps = &SelectPairSweeps();
  rows.student_bias = student.bias();
  rows.teacher_bias = two_heads ? teacher.bias() : nullptr;
  for (int64_t begin = 0; begin < count; begin += plan.chunk_rows) {
    const int64_t end = std::min(count, begin + plan.chunk_rows);
    student.MakeLogits(begin, end);
    if (two_heads) teacher.MakeLogits(begin, end);
    student.RunRows(begin, end, [&](int64_t place, int64_t row, int worker) {
      float* other = nullptr;
      if (two_heads) other = teacher.Logits(place);
      if (pass.teacher.form == PairForm::kValues) {
        other = teacher_rows.Of(worker);
        LoadRow(pass.teacher.values, row, other);
      }
      return RunPairRow(rows, row, student.Logits(place), other);
    });
  }
  student.Finish();
  absl::StrAppend(plan_text, plan_text->empty() ? "" : "; ", "pair rows=", count, "/",
                  pass.student.head.rows, " chunks=", plan.chunks, "x", plan.chunk_rows,
                  " teacher=",
                  two_heads                       ? "head"
                  : teacher_rows.Of(0) != nullptr ? "logits"
                                                  : "topk",
                  pass.batch_invariant ? " batch-invariant" : "", " sweeps=", sweeps_.name);
  return absl::OkStatus();
}

absl::Status CpuHead::RunPairOfValues(const PairPass& pass, std::string* plan_text) {
  Arena& arena = device_.workspace();
  const int threads = device_.pool().threads();
  const int64_t width = pass.student.values.width;
  RowBuffers students;
  RowBuffers teachers;
  LOSSD_RETURN_IF_ERROR(students.Allocate(arena, threads, width, "rows of the student"));
  LOSSD_RETURN_IF_ERROR(teachers.Allocate(arena, threads, width, "rows of the teacher"));
  PairRows rows;
  rows.pass = &pass;
  rows.sweeps = &sweeps_;
  rows.pair_sweeps = &SelectPairSweeps();
  device_.pool().For(*pass.rows.count, [&](int64_t i, int worker) {
    const int64_t row = pass.rows.index[i];
    float* student = students.Of(worker);
    LoadRow(pass.student.values, row, student);
    LoadRow(pass.teacher.values, row, teachers.Of(worker));
    const bool live = RunPairRow(rows, row, student, teachers.Of(worker));
    if (!pass.grad_student) return;
    std::fill(student + (live ? pass.student.head.valid_columns : 0), student + width, 0.0f);
    StoreRow(student, false, pass.grad_student, row);
  });
  absl::StrAppend(plan_text, plan_text->empty() ? "" : "; ", "pair rows=", *pass.rows.count, "/",
                  pass.student.head.rows, " values sweeps=", sweeps_.name);
  return absl::OkStatus();
}

}  // namespace lossd
