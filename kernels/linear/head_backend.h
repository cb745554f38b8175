// What a backend must be able to do for the linear operations. kernels/cpu and kernels/cuda implement it; engine.cc calls it.
#ifndef LOSSD_KERNELS_LINEAR_HEAD_BACKEND_H_
#define LOSSD_KERNELS_LINEAR_HEAD_BACKEND_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/core/result_record.h"
#include "kernels/linear/head.h"
#include "kernels/linear/loss_run.h"
#include "kernels/linear/pair.h"
#include "kernels/linear/row_start.h"
#include "kernels/objectives/objectives.h"

namespace lossd {

// One sweep over the logits of the rows that count, a chunk at a time.
// For each row: the program's KnownStatistics, or a sweep for RowStatistics; program.Row(row, statistics) -> RowCoefficients and the
// program's own outputs; `columns`; and with gradients: dz, then the three products, added up over chunks in fp32.
// Rows that do not count have been filled: no output of theirs is touched, gradients.hidden included. Weight and bias gradients are
// written for all rows of weight, also if no row counts. A row whose coefficients and d_ids_logprob are all 0 must not reach the
// products (0 times a NaN is not 0); neither must columns from valid_columns on.
// Of a problem with logits each row is read once, in its own type, and gradients.logits is written: dz, and zeros from valid_columns on and
// for rows that do not count, which nobody else has filled.
struct HeadPass {
  HeadProblem head;
  RowSet rows;
  RowProgram program;
  RowColumns columns;
  HeadGradients gradients;
  // [vocab_total] by global id: factor of u and of weighted_d; null without class weights.
  const float* column_weight = nullptr;
  // Same bits for a row whatever else is in the call: fixed-size row tiles.
  bool batch_invariant = false;
  // Blocks of the gradient in which every row has less softmax mass, and none its target, may be left out; 0: none is.
  float gradient_filter = 0;
  // The host may wait for what the device finds.
  bool host_may_wait = false;
  // Nothing is written if record->code is not 0.
  ResultRecord* record = nullptr;
};

class HeadBackend {
 public:
  virtual ~HeadBackend() = default;

  // Clears start.record and finds the rows that count, for which `rows` has memory; its count is start.record->count.
  // Then the checks of `start`, and the fill of outputs of the other rows. If the host may wait, host_count is set on return, wrong data
  // are in *found (an empty record if there are none), and then nothing was filled.
  virtual absl::Status StartRows(const HeadProblem& head, RowStart& start, RowSet* rows,
                                 ResultRecord* found) = 0;

  // Runs instances 0 ... count - 1 of a stage, each by one team, in no order.
  virtual absl::Status RunStage(const Stage& stage, int64_t count) = 0;

  // All of it. Wrong data are left in the record, and then nothing else is written; nobody waits for them. This one runs stage by stage.
  virtual absl::Status RunLoss(LossRun& run);

  // Errors: RESOURCE_EXHAUSTED if the workspace does not hold a chunk of the smallest size.
  // Appends to `plan` how it was done: "chunks=2x4096 ...", "logits ...".
  virtual absl::Status RunHead(const HeadPass& pass, std::string* plan) = 0;

  // For objectives that need the statistics of all rows before the gradient of any: the sweep `first` (without gradients), the stages,
  // and, if it has gradients, the sweep `second`, whose program knows the statistics. Both are of one head and the same rows, so that a
  // backend may keep the logits between them where its workspace holds those of every row. This one multiplies twice.
  virtual absl::Status RunHeadTwice(const HeadPass& first, const std::vector<StageRun>& between,
                                    const HeadPass& second, std::string* plan);

  // The divergence of two distributions of the same rows, with the gradient to one of them: pair.h. Errors and plan as RunHead.
  virtual absl::Status RunPair(const PairPass& pass, std::string* plan);
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_LINEAR_HEAD_BACKEND_H_
