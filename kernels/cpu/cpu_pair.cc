// CpuHead::RunPair: student and teacher a chunk of rows at a time.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_head.h"
#include "kernels/cpu/pair_heads.h"
#include "kernels/cpu/pair_rows.h"

namespace lossd {

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
  const int64_t count = *pass.rows.count;
  PairHeads heads(pass, &device_);
  LOSSD_RETURN_IF_ERROR(heads.Allocate(device_.workspace(), device_.pool().threads(), count));
  heads.Start();
  HeadSweep& student = heads.student();
  HeadSweep* const teacher = heads.has_teacher() ? &heads.teacher() : nullptr;

  PairRows rows;
  rows.pass = &pass;
  rows.sweeps = &sweeps_;
  rows.pair_sweeps = &SelectPairSweeps();
  rows.student_bias = student.bias();
  rows.teacher_bias = teacher != nullptr ? teacher->bias() : nullptr;
  const int64_t chunk_rows = heads.plan().chunk_rows;
  for (int64_t begin = 0; begin < count; begin += chunk_rows) {
    const int64_t end = std::min(count, begin + chunk_rows);
    student.MakeLogits(begin, end);
    if (teacher != nullptr) teacher->MakeLogits(begin, end);
    student.RunRows(begin, end, [&](int64_t place, int64_t row, int worker) {
      float* other = nullptr;
      if (teacher != nullptr) other = teacher->Logits(place);
      if (pass.teacher.form == PairForm::kValues) {
        other = heads.TeacherRow(worker);
        LoadRow(pass.teacher.values, row, other);
      }
      return RunPairRow(rows, row, student.Logits(place), other);
    });
  }
  student.Finish();
  absl::StrAppend(plan_text, plan_text->empty() ? "" : "; ", heads.Describe(count, sweeps_.name));
  return absl::OkStatus();
}

absl::Status CpuHead::RunPairOfValues(const PairPass& pass, std::string* plan_text) {
  const int64_t width = pass.student.values.width;
  RowBuffers students;
  RowBuffers teachers;
  LOSSD_RETURN_IF_ERROR(
      AllocateValueRows(pass, device_.workspace(), device_.pool().threads(), &students, &teachers));
  students.Start();
  teachers.Start();
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
  absl::StrAppend(plan_text, plan_text->empty() ? "" : "; ",
                  DescribeValues(pass, *pass.rows.count, sweeps_.name));
  return absl::OkStatus();
}

}  // namespace lossd
