#include "kernels/cuda/pair_run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_head.h"
#include "kernels/cuda/head_kernels.h"
#include "kernels/cuda/pair_lean.h"

namespace lossd {
namespace {

// As head_plan.cc has them for the student.
constexpr int64_t kExactElements = int64_t{1} << 16;
constexpr int64_t kInvariantRows = 256;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool IsEven(const RowsView& view) {
  return view.lead_rank == 1 && (view.rows <= 1 || view.lead_strides[0] >= view.width);
}

PairValues ValuesOf(const PairSide& side) {
  PairValues out;
  out.kind = side.kind;
  out.values = side.values;
  out.bias = side.head.bias;
  out.columns = static_cast<int32_t>(side.head.valid_columns);
  out.logit_scale = side.head.logit_scale;
  out.softcap = side.head.softcap;
  return out;
}

}  // namespace

PairStep::PairStep(const PairPass& pass, const CudaMachine& machine)
    : pass_(pass), teacher_(pass.teacher.head), machine_(machine), arena_(*machine.workspace) {
  if (!has_head()) return;
  product_ = teacher_.hidden.dtype == teacher_.weight.dtype &&
                     teacher_.vocab * teacher_.hidden_size > kExactElements
                 ? teacher_.hidden.dtype
                 : DType::kF32;
  convert_weight_ = teacher_.weight.dtype != product_ || !IsEven(teacher_.weight);
  stride_ = RoundUp(teacher_.vocab, 64);
  x_stride_ = RoundUp(teacher_.hidden_size, 8);
}

absl::Status PairStep::AllocateFixed() {
  if (!has_head() || !convert_weight_) return absl::OkStatus();
  const int64_t row_bytes = x_stride_ * static_cast<int64_t>(SizeOf(product_));
  const auto share = static_cast<int64_t>(arena_.available() / 8);
  weight_rows_ = std::min(stride_, std::max<int64_t>(64, share / row_bytes / 64 * 64));
  LOSSD_ASSIGN_OR_RETURN(
      weight_, arena_.Allocate(weight_rows_ * row_bytes, "a converted tile of the teacher"));
  return absl::OkStatus();
}

int64_t PairStep::RowBytes() const {
  if (!has_head()) return 0;
  // With what the arena may lose by its alignment.
  return stride_ * 4 + x_stride_ * static_cast<int64_t>(SizeOf(product_)) +
         2 * static_cast<int64_t>(Arena::kAlignment);
}

absl::Status PairStep::Allocate(int64_t largest_chunk) {
  if (!has_head()) return absl::OkStatus();
  LOSSD_ASSIGN_OR_RETURN(
      void* hidden, arena_.Allocate(largest_chunk * x_stride_ * SizeOf(product_), "teacher rows"));
  hidden_ = static_cast<std::byte*>(hidden);
  LOSSD_ASSIGN_OR_RETURN(tile_,
                         arena_.AllocateArray<float>(largest_chunk * stride_, "teacher logits"));
  return absl::OkStatus();
}

absl::Status PairStep::MakeTeacher(const RowPass& pass) {
  const cudaStream_t stream = machine_.device->stream();
  const PackedRows x = {hidden_, product_, x_stride_, pass.rows, teacher_.hidden_size};
  LOSSD_RETURN_IF_CUDA_ERROR(LaunchPackRows(x, teacher_.hidden, 0, pass.index, nullptr, stream),
                             "gather teacher rows");
  const int64_t bytes = static_cast<int64_t>(SizeOf(product_));
  const int64_t columns = teacher_.valid_columns;
  const int64_t step = pass_.batch_invariant ? kInvariantRows : pass.rows;
  for (int64_t column = 0; column < columns;) {
    int64_t tile_rows = columns;
    ProductOperand weight = {teacher_.weight.data, teacher_.weight.lead_strides[0], true};
    if (teacher_.weight.rows <= 1) weight.stride = teacher_.weight.width;
    if (convert_weight_) {
      tile_rows = std::min(weight_rows_, columns - column);
      const PackedRows to = {weight_, product_, x_stride_, tile_rows, teacher_.hidden_size};
      LOSSD_RETURN_IF_CUDA_ERROR(
          LaunchPackRows(to, teacher_.weight, column, nullptr, nullptr, stream),
          "convert the teacher's weight");
      weight = {weight_, x_stride_, true};
    }
    for (int64_t row = 0; row < pass.rows; row += step) {
      Product product;
      product.m = std::min(step, pass.rows - row);
      product.n = tile_rows;
      product.k = teacher_.hidden_size;
      product.inputs = product_;
      product.a = {hidden_ + row * x_stride_ * bytes, x_stride_, false};
      product.b = weight;
      product.output = DType::kF32;
      product.d = tile_ + row * stride_ + column;
      product.d_stride = stride_;
      product.fixed_order = pass_.batch_invariant;
      LOSSD_RETURN_IF_ERROR(machine_.products->Run(product, stream));
    }
    column += tile_rows;
  }
  return absl::OkStatus();
}

PairLaunch PairStep::MakeLaunch(const RowPass& pass) const {
  PairLaunch launch;
  launch.student = ValuesOf(pass_.student);
  launch.student.tile = pass.logits;
  launch.student.tile_stride = pass.logits_stride;
  if (pass_.teacher.form == PairForm::kTopk) {
    launch.topk_ids = pass_.teacher.topk_ids;
    launch.topk_logprob = pass_.teacher.topk_logprob;
  } else {
    launch.teacher = ValuesOf(pass_.teacher);
    launch.teacher.tile = tile_;
    launch.teacher.tile_stride = stride_;
  }
  launch.program = pass_.program;
  launch.columns = static_cast<int32_t>(pass_.columns);
  launch.written = static_cast<int32_t>(RoundUp(pass_.student.head.vocab, 64));
  launch.index = pass.index;
  launch.rows = pass.rows;
  launch.dz_mode = pass.dz_mode;
  launch.dz = pass.dz;
  launch.dz_stride = pass.dz_stride;
  launch.live = pass.live;
  launch.dz_scale = pass.dz_scale;
  launch.dz_max = pass.dz_max;
  launch.record = pass.record;
  ChoosePairShape(machine_.largest_pair_cluster, machine_.facts.shared_bytes_per_block, &launch);
  return launch;
}

absl::Status PairStep::Run(const RowPass& pass) {
  // The pass that writes fp16 follows the one that measured: the teacher's logits are still there.
  const bool again = pass.dz_mode == DzMode::kF16;
  if (has_head() && !again) LOSSD_RETURN_IF_ERROR(MakeTeacher(pass));
  const PairLaunch launch = MakeLaunch(pass);
  if (pass_.overlap && !again) {
    LOSSD_RETURN_IF_CUDA_ERROR(LaunchOverlap(launch, pass_.overlap, machine_.device->stream()),
                               "compare the largest logits");
  }
  return CudaStatus(LaunchPairRows(launch, machine_.device->stream(), &lean_),
                    "run the pair's row pass");
}

void PairStep::Plan(const RowPass& pass) { lean_ = IsLeanPair(MakeLaunch(pass)); }

std::string PairStep::Describe() const {
  const char* const rows = lean_ ? " lean" : "";
  if (pass_.teacher.form == PairForm::kTopk) return " teacher=topk";
  if (pass_.teacher.form == PairForm::kValues) return absl::StrCat(" teacher=logits", rows);
  return absl::StrCat(" teacher=", NameOf(product_), convert_weight_ ? " converted" : "", rows);
}

absl::Status RunPairOfValues(const PairPass& pass, const CudaMachine& machine, std::string* plan) {
  PairLaunch launch;
  launch.student = ValuesOf(pass.student);
  launch.teacher = ValuesOf(pass.teacher);
  launch.program = pass.program;
  launch.columns = static_cast<int32_t>(pass.columns);
  launch.written = static_cast<int32_t>(pass.student.values.width);
  launch.counted = pass.rows.counted;
  launch.rows = pass.student.head.rows;
  launch.grad = pass.grad_student;
  launch.record = pass.record;
  ChoosePairShape(machine.largest_pair_cluster, machine.facts.shared_bytes_per_block, &launch);
  bool lean = IsLeanPair(launch);
  if (machine.device != nullptr) {
    LOSSD_RETURN_IF_CUDA_ERROR(LaunchPairRows(launch, machine.device->stream(), &lean),
                               "run the pair's row pass");
  }
  absl::StrAppend(plan, plan->empty() ? "" : "; ", "pair ");
  if (lean) {
    absl::StrAppend(plan, "lean");
  } else {
    absl::StrAppend(plan, "cluster=", launch.shape.cluster, launch.shape.on_chip ? " on-chip" : "");
  }
  return absl::OkStatus();
}

absl::Status CudaHead::RunPair(const PairPass& pass, std::string* plan) {
  return RunPairOn(machine_, pass, plan);
}

absl::Status RunPairOn(const CudaMachine& machine, const PairPass& pass, std::string* plan) {
  if (pass.student.form == PairForm::kValues) return RunPairOfValues(pass, machine, plan);
  HeadPass student;
  student.head = pass.student.head;
  student.rows = pass.rows;
  student.gradients = pass.gradients;
  student.batch_invariant = pass.batch_invariant;
  student.record = pass.record;
  // Scratch of this pass.
  const uint64_t used = machine.workspace->used();
  PairStep step(pass, machine);
  absl::Status status = step.AllocateFixed();
  HeadRun run(student, machine, &step);
  if (status.ok()) status = run.Run();
  machine.workspace->ReleaseTo(used);
  if (status.ok()) {
    absl::StrAppend(plan, plan->empty() ? "" : "; ", run.Describe(), step.Describe());
  }
  return status;
}

}  // namespace lossd
