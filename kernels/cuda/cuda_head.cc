#include "kernels/cuda/cuda_head.h"

#include <chrono>
#include <new>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/block_lists.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/exp_product.h"
#include "kernels/cuda/exp_rows.h"
#include "kernels/cuda/head_kernels.h"
#include "kernels/cuda/head_run.h"
#include "kernels/cuda/listed_product.h"
#include "kernels/cuda/logits_lean.h"
#include "kernels/cuda/logits_run.h"
#include "kernels/cuda/loss_kernels.h"
#include "kernels/cuda/pair_kernels.h"
#include "kernels/cuda/row_kernels.h"

namespace lossd {
namespace {

// How long a start is watched before its stream is waited for.
constexpr std::chrono::microseconds kSpin(300);

}  // namespace

absl::StatusOr<std::unique_ptr<CudaHead>> CudaHead::Create(CudaDevice* device,
                                                           uint64_t product_bytes,
                                                           AlgorithmTable algorithms) {
  auto head = std::unique_ptr<CudaHead>(new CudaHead(device));
  LOSSD_ASSIGN_OR_RETURN(
      head->products_, algorithms.empty() ? CublasLt::Create(product_bytes)
                                          : CublasLt::Create(product_bytes, std::move(algorithms)));
  device->SetAlgorithmTable(head->products_.Describe());
  // The runtime would load them at first use, in the middle of a request.
  LOSSD_RETURN_IF_CUDA_ERROR(PrepareStageKernels(), "load the stages");
  LOSSD_RETURN_IF_CUDA_ERROR(PrepareHeadKernels(), "load the kernels");
  LOSSD_RETURN_IF_CUDA_ERROR(PrepareTopKKernel(), "load the kernels");
  const CudaFacts facts = device->facts();
  LOSSD_RETURN_IF_CUDA_ERROR(PrepareRowKernels(facts.shared_bytes_per_block),
                             "load the row kernels");
  if (facts.has_exp_product()) {
    LOSSD_RETURN_IF_CUDA_ERROR(PrepareExpProduct(), "load the product with exponentials");
    LOSSD_RETURN_IF_CUDA_ERROR(PrepareExpRows(), "load the product with exponentials");
    LOSSD_RETURN_IF_CUDA_ERROR(PrepareListedProduct(), "load the listed products");
    LOSSD_RETURN_IF_CUDA_ERROR(PrepareBlockLists(), "load the listed products");
  }
  LOSSD_RETURN_IF_CUDA_ERROR(PreparePairKernels(facts.shared_bytes_per_block),
                             "load the pair's row kernels");
  LOSSD_RETURN_IF_CUDA_ERROR(
      PrepareLossKernels(facts.has_clusters(), device->processors(), &head->loss_limits_),
      "load the kernels of losses");
  LOSSD_RETURN_IF_CUDA_ERROR(PrepareLeanLogitsKernels(facts.shared_bytes_per_block),
                             "load the row kernels of logits");
  LOSSD_ASSIGN_OR_RETURN(head->note_,
                         PinnedBuffer::Create(sizeof(StartNote), "allocate pinned memory"));
  new (head->note_.data()) StartNote();
  head->machine_ = {facts, &device->workspace(), LargestPairCluster(facts.has_clusters()), device,
                    &head->products_};
  return head;
}

absl::Status CudaHead::StartRows(const HeadProblem& head, RowStart& start, RowSet* rows,
                                 ResultRecord* found) {
  const bool all = rows->host_count == head.rows;
  const bool waits = start.host_may_wait && (start.checks() || !all);
  const bool small = !waits && IsSmallFill(start.fill);
  LOSSD_RETURN_IF_CUDA_ERROR(
      LaunchStart(head, start, *rows, !waits, small && !all,
                  waits ? reinterpret_cast<StartNote*>(note_.data()) : nullptr, ++starts_,
                  device_->stream()),
      "select rows");
  if (waits) {
    LOSSD_ASSIGN_OR_RETURN(const StartNote note, AwaitStart());
    found->code = note.code;
    found->field = note.field;
    found->row = note.row;
    found->count = rows->host_count = note.count;
    if (found->code != 0) return absl::OkStatus();
  }
  if (small || rows->host_count == head.rows) return absl::OkStatus();
  return RunStage(start.fill, start.fill.Instances());
}

// The GPU writes the note itself: a copy and a wait of the runtime cost 10 us more. What takes long is left to them.
absl::StatusOr<StartNote> CudaHead::AwaitStart() {
  const auto* note = reinterpret_cast<const StartNote*>(note_.data());
  const auto arrived = [&] { return __atomic_load_n(&note->number, __ATOMIC_ACQUIRE) == starts_; };
  const auto end = std::chrono::steady_clock::now() + kSpin;
  while (!arrived()) {
    if (std::chrono::steady_clock::now() < end) continue;
    LOSSD_RETURN_IF_ERROR(device_->Synchronize());
    if (!arrived()) return absl::InternalError("the device has not told which rows count");
  }
  return *note;
}

absl::Status CudaHead::RunStage(const Stage& stage, int64_t count) {
  return CudaStatus(LaunchStage(stage, count, device_->stream()), "run a stage");
}

absl::Status CudaHead::RunLoss(LossRun& run) {
  const int64_t groups = std::visit([](const auto& call) { return call.Groups(); }, run.loss);
  const LossPlan plan = PlanLoss(run.head.rows, groups, loss_limits_);
  LOSSD_ASSIGN_OR_RETURN(void* const scratch, device_->workspace().Allocate(
                                                  LossScratchBytes(run, plan), "partial sums"));
  return CudaStatus(LaunchLoss(run, plan, scratch, device_->stream()), "run a loss");
}

absl::Status CudaHead::RunHead(const HeadPass& pass, std::string* plan) {
  return RunHeadOn(machine_, pass, plan);
}

absl::Status CudaHead::RunHeadTwice(const HeadPass& first, const std::vector<StageRun>& between,
                                    const HeadPass& second, std::string* plan) {
  return RunHeadTwiceOn(machine_, *this, first, between, second, plan);
}

absl::Status RunHeadOn(const CudaMachine& machine, const HeadPass& pass, std::string* plan) {
  if (pass.head.logits) return RunLogitsOn(machine, pass, plan);
  // The arrays of a pass are scratch of that pass: the next one may have them.
  Arena& arena = *machine.workspace;
  const uint64_t used = arena.used();
  HeadRun run(pass, machine);
  if (run.TakesStatistics()) {
    LOSSD_ASSIGN_OR_RETURN(StoredRow * stored, arena.AllocateArray<StoredRow>(
                                                   pass.head.rows, "the rows' coefficients"));
    const HeadPass first = HeadRun::StatisticsOnly(pass);
    const uint64_t kept = arena.used();
    HeadRun statistics(first, machine);
    statistics.Keep(stored);
    const absl::Status status = statistics.Run();
    arena.ReleaseTo(kept);
    LOSSD_RETURN_IF_ERROR(status);
    absl::StrAppend(plan, plan->empty() ? "" : "; ", statistics.Describe());
    run.Take(stored);
  }
  const absl::Status status = run.Run();
  arena.ReleaseTo(used);
  if (status.ok()) absl::StrAppend(plan, plan->empty() ? "" : "; ", run.Describe());
  return status;
}

absl::Status RunHeadTwiceOn(const CudaMachine& machine, HeadBackend& backend, const HeadPass& first,
                            const std::vector<StageRun>& between, const HeadPass& second,
                            std::string* plan) {
  // With batch_invariant the first sweep goes its own way where the second cannot follow.
  const HeadRun second_run(second, machine);
  const HeadRun first_run(first, machine);
  const bool apart = second.batch_invariant && first_run.UsesExp() && !second_run.UsesExp();
  if (second.gradients.any() && !apart) {
    const uint64_t used = machine.workspace->used();
    HeadRun run(second, machine);
    const absl::StatusOr<bool> done = run.RunAfter(first, [&] {
      for (const StageRun& stage : between) {
        LOSSD_RETURN_IF_ERROR(backend.RunStage(stage.stage, stage.instances));
      }
      return absl::OkStatus();
    });
    machine.workspace->ReleaseTo(used);
    LOSSD_RETURN_IF_ERROR(done.status());
    if (*done) {
      absl::StrAppend(plan, plan->empty() ? "" : "; ", run.Describe());
      return absl::OkStatus();
    }
  }
  if (machine.plans != nullptr && second.gradients.any()) {
    machine.plans->AddRepeat(
        apart ? "batch_invariant: the statistics come from the product with exponentials: the "
                "logits are multiplied again"
              : "workspace: does not hold the logits of all rows while the objective is computed: "
                "they are multiplied again");
  }
  return backend.HeadBackend::RunHeadTwice(first, between, second, plan);
}

}  // namespace lossd
