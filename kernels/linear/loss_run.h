// A call without a head: a loss on log-probabilities that the caller has. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_LINEAR_LOSS_RUN_H_
#define LOSSD_KERNELS_LINEAR_LOSS_RUN_H_

#include <vector>

#include "kernels/core/result_record.h"
#include "kernels/linear/head.h"
#include "kernels/linear/row_start.h"
#include "kernels/objectives/losses.h"
#include "kernels/objectives/objectives.h"

namespace lossd {

// `loss` and `stages` are the same: as one thing, and as what is done one after the other once the rows are known.
struct LossRun {
  HeadProblem head;  // rows and mask
  RowStart start;
  RowSet rows;
  LossCall loss;
  std::vector<StageRun> stages;
  ResultRecord* record_copy = nullptr;  // where the record goes at the end; null: nowhere
  bool flat = false;                    // RowsView::IsFlat of all views
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_LINEAR_LOSS_RUN_H_
