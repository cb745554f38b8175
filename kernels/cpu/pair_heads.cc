#include "kernels/cpu/pair_heads.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

HeadPass MakePass(const PairPass& pass, const PairSide& side) {
  HeadPass out;
  out.head = side.head;
  out.rows = pass.rows;
  out.batch_invariant = pass.batch_invariant;
  out.record = pass.record;
  return out;
}

}  // namespace

absl::Status AllocateValueRows(const PairPass& pass, Arena& arena, int threads,
                               RowBuffers* students, RowBuffers* teachers) {
  const int64_t width = pass.student.values.width;
  LOSSD_RETURN_IF_ERROR(students->Allocate(arena, threads, width, "rows of the student"));
  return teachers->Allocate(arena, threads, width, "rows of the teacher");
}

std::string DescribeValues(const PairPass& pass, int64_t count, const char* sweeps) {
  return absl::StrCat("pair rows=", count, "/", pass.student.head.rows, " values sweeps=", sweeps);
}

PairHeads::PairHeads(const PairPass& pass, CpuDevice* device)
    : pass_(pass),
      student_pass_(MakePass(pass, pass.student)),
      teacher_pass_(MakePass(pass, pass.teacher)),
      student_(student_pass_, plan_, device),
      teacher_(teacher_pass_, teacher_plan_, device) {
  student_pass_.gradients = pass.gradients;
}

absl::Status PairHeads::Allocate(Arena& arena, int threads, int64_t count) {
  if (pass_.teacher.form == PairForm::kValues) {
    LOSSD_RETURN_IF_ERROR(
        teacher_rows_.Allocate(arena, threads, pass_.teacher.values.width, "rows of the teacher"));
  }
  if (has_teacher()) {
    // Half of the memory; what its chunks leave of it goes to the student.
    LOSSD_ASSIGN_OR_RETURN(teacher_plan_,
                           PlanHead(teacher_pass_, count, threads, arena.available() / 2));
    LOSSD_RETURN_IF_ERROR(teacher_.Allocate(arena, threads));
  }
  LOSSD_ASSIGN_OR_RETURN(
      plan_, PlanHead(student_pass_, count, threads, arena.available(), teacher_plan_.chunk_rows));
  return student_.Allocate(arena, threads);
}

void PairHeads::Start() {
  if (pass_.teacher.form == PairForm::kValues) teacher_rows_.Start();
  if (has_teacher()) teacher_.Start();
  student_.Start();
}

std::string PairHeads::Describe(int64_t count, const char* sweeps) const {
  const char* const teacher = has_teacher()                             ? "head"
                              : pass_.teacher.form == PairForm::kValues ? "logits"
                                                                        : "topk";
  return absl::StrCat("pair rows=", count, "/", pass_.student.head.rows, " chunks=", plan_.chunks,
                      "x", plan_.chunk_rows, " teacher=", teacher,
                      pass_.batch_invariant ? " batch-invariant" : "", " sweeps=", sweeps);
}

}  // namespace lossd
