// The course of a call that every linear operation has in common: rows that count, data checks, stages, sweeps of the head.
#ifndef LOSSD_KERNELS_LINEAR_ENGINE_H_
#define LOSSD_KERNELS_LINEAR_ENGINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/op.h"
#include "kernels/linear/head.h"
#include "kernels/linear/head_backend.h"
#include "kernels/objectives/objectives.h"

namespace lossd {

// What a sweep computes beside what its row program writes.
struct HeadOutputs {
  RowColumns columns;
  HeadGradients gradients;
  const float* column_weight = nullptr;  // as in HeadPass
};

// One call. Used in this order: Start; the operation's own start stages; RunHead, once or several times; its end stages; Finish.
// Without a head: Create; RunLoss; Finish.
class HeadEngine {
 public:
  // Allocates the record and the row set. Nothing is enqueued.
  static absl::StatusOr<HeadEngine> Create(const OpCall& call, Backend& backend,
                                           const HeadProblem& head);
  // The same, then finds the rows that count, looks for wrong data and fills the outputs of the other rows.
  // The checks and the fills follow from the schema: target within [0, valid_vocab), temperature_rows above 0, ids and teacher_topk_ids -1 or valid,
  // cu_seqlens rising from 0 to N, inputs marked finite or min_element; outputs of N rows become 0, ids among them -1.
  // If the host may wait, wrong data are an error here and nothing has been written. Otherwise the record keeps them, and later
  // stages and sweeps do nothing.
  static absl::StatusOr<HeadEngine> Start(const OpCall& call, Backend& backend,
                                          const HeadProblem& head);

  const HeadProblem& head() const { return head_; }
  const RowSet& rows() const { return rows_; }
  ResultRecord* record() const { return record_; }

  // Workspace memory until the end of the call, contents undefined.
  template <class T>
  absl::StatusOr<T*> Allocate(int64_t count, const char* what) {
    return backend_->device->workspace().AllocateArray<T>(count, what);
  }

  absl::Status RunStage(const Stage& stage, int64_t instances) {
    return backend_->head->RunStage(stage, instances);
  }
  absl::Status RunHead(const RowProgram& program, const HeadOutputs& outputs);
  // The same rows of another head (a reference, a teacher): statistics only.
  absl::Status RunOtherHead(const HeadProblem& head, const RowProgram& program);
  // `statistics` over all rows, the stages, then `gradient` with the outputs if these have gradients: see HeadBackend::RunHeadTwice.
  absl::Status RunHeadTwice(const RowProgram& statistics, const std::vector<StageRun>& between,
                            const RowProgram& gradient, const HeadOutputs& outputs);

  // A whole call whose log-probabilities are given, with the checks and fills of Start and the record's copy. Errors in the data are left in
  // the record.
  absl::Status RunLoss(const LossCall& loss, std::vector<StageRun> stages);

  // The divergence of two distributions, with rows, record and batch_invariant of the call: see pair.h.
  absl::Status RunPair(PairPass pass);

  absl::StatusOr<PendingResult> Finish();

 private:
  HeadEngine(const OpCall& call, Backend& backend, const HeadProblem& head)
      : call_(&call), backend_(&backend), head_(head) {}

  absl::StatusOr<RowStart> MakeStart() const;
  absl::Status AddChecks(RowStart* start) const;
  absl::Status AddFills(RowStart* start) const;
  HeadPass MakePass(const HeadProblem& head, const RowProgram& program,
                    const HeadOutputs& outputs) const;

  const OpCall* call_;
  Backend* backend_;
  HeadProblem head_;
  RowSet rows_;
  ResultRecord* record_ = nullptr;
  bool copied_ = false;  // the record is where the caller wants it
  std::string plan_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_LINEAR_ENGINE_H_
