// The sweeps of a pair whose student has a head: the student's, the teacher's if it has one, and rows of a teacher that is a tensor.
#ifndef LOSSD_KERNELS_CPU_PAIR_HEADS_H_
#define LOSSD_KERNELS_CPU_PAIR_HEADS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/cpu/head_plan.h"
#include "kernels/cpu/head_sweep.h"
#include "kernels/cpu/row_buffers.h"
#include "kernels/linear/head_backend.h"

namespace lossd {

// The rows of a pair of tensors.
absl::Status AllocateValueRows(const PairPass& pass, Arena& arena, int threads,
                               RowBuffers* students, RowBuffers* teachers);
std::string DescribeValues(const PairPass& pass, int64_t count, const char* sweeps);

// Used in this order: Allocate, Start. Borrows the pass and the device; without a device only Allocate may be called.
class PairHeads {
 public:
  PairHeads(const PairPass& pass, CpuDevice* device);
  PairHeads(const PairHeads&) = delete;
  PairHeads& operator=(const PairHeads&) = delete;

  // Plans `count` rows and takes the memory.
  absl::Status Allocate(Arena& arena, int threads, int64_t count);
  void Start();

  const HeadPlan& plan() const { return plan_; }
  const HeadPlan& teacher_plan() const { return teacher_plan_; }
  const HeadPass& student_pass() const { return student_pass_; }
  const HeadPass& teacher_pass() const { return teacher_pass_; }
  bool has_teacher() const { return pass_.teacher.form == PairForm::kHead; }
  HeadSweep& student() { return student_; }
  HeadSweep& teacher() { return teacher_; }  // with has_teacher
  float* TeacherRow(int worker) const { return teacher_rows_.Of(worker); }
  std::string Describe(int64_t count, const char* sweeps) const;

 private:
  const PairPass& pass_;
  HeadPass student_pass_;
  HeadPass teacher_pass_;
  HeadPlan plan_;
  HeadPlan teacher_plan_;
  HeadSweep student_;
  HeadSweep teacher_;
  RowBuffers teacher_rows_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_PAIR_HEADS_H_
