// A backend that plans calls and runs nothing: which way a call of some shapes takes on some device, and what it costs. The decisions are
// those of the backend's own plans (kernels/cpu/cpu_planner.h, kernels/cuda/cuda_planner.h).
#ifndef LOSSD_KERNELS_LINEAR_PLANNER_H_
#define LOSSD_KERNELS_LINEAR_PLANNER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/planned_device.h"
#include "kernels/core/registry.h"
#include "kernels/linear/head_backend.h"

namespace lossd {

struct WorkspacePart {
  std::string what;
  uint64_t bytes = 0;
};

// Multiplications and additions of products, two for each of rows times width times columns.
struct ProductCost {
  double logits = 0;
  double grad_hidden = 0;
  double grad_weight = 0;

  double sum() const { return logits + grad_hidden + grad_weight; }
};

// One sweep over the rows.
struct PlannedPass {
  std::string plan;  // as in the reply
  ProductCost cost;
  // How it is done: "grad_weight: the products add to the destination".
  std::vector<std::string> ways;
  // Why a faster way is not taken: "label_smoothing: needs the logits again".
  std::vector<std::string> reasons;
  std::vector<WorkspacePart> workspace;
};

struct Explanation {
  std::vector<PlannedPass> passes;  // none for an operation without a head
  // What is kept from the start to the end of the call, for example losses of rows.
  std::vector<WorkspacePart> workspace;
  uint64_t peak_bytes = 0;
};

// The reason of a sweep that repeats the products of the one before.
inline constexpr char kLogitsAgain[] =
    "the gradient of a row needs statistics of all rows: the logits are multiplied again";

// How a sweep over the caller's logits is done.
inline constexpr char kOnePassOverLogits[] = "one pass over the rows of logits: no products";

// Every row counts. Used for one call.
class Planner : public HeadBackend {
 public:
  absl::Status StartRows(const HeadProblem& head, RowStart& start, RowSet* rows,
                         ResultRecord* found) final;
  absl::Status RunStage(const Stage&, int64_t) final { return absl::OkStatus(); }

  PlannedDevice& device() { return device_; }
  // After the call.
  Explanation Finish();

 protected:
  Planner(DeviceDescription description, uint64_t workspace_bytes);

  Arena& arena() { return device_.workspace(); }
  // A pass whose memory is what has been allocated since used() was `mark`.
  void Add(PlannedPass pass, uint64_t mark);
  std::vector<PlannedPass>& passes() { return explanation_.passes; }

 private:
  PlannedDevice device_;
  std::vector<ArenaPart> parts_;
  Explanation explanation_;
};

// Plans one operation. Its tensors need dtype, shape and, where they are not row-major without gaps, strides; where they lie is not looked
// at: each is taken to start at an aligned address of its own.
// Errors: those of a call of these shapes, RESOURCE_EXHAUSTED for a workspace that is too small included; INVALID_ARGUMENT for an extent
// above 2^24.
absl::StatusOr<Explanation> Explain(const Registry& registry, const v1::Op& op,
                                    const RunOptions& options, Planner& planner);

}  // namespace lossd

#endif  // LOSSD_KERNELS_LINEAR_PLANNER_H_
