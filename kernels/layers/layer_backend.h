// What a backend must be able to do for the layers. kernels/cpu and kernels/cuda implement it; kernels/ops calls it.
#ifndef LOSSD_KERNELS_LAYERS_LAYER_BACKEND_H_
#define LOSSD_KERNELS_LAYERS_LAYER_BACKEND_H_

#include <string>

#include "absl/status/status.h"
#include "kernels/core/result_record.h"
#include "kernels/layers/activation.h"
#include "kernels/layers/norm.h"
#include "kernels/layers/rope.h"
#include "kernels/layers/softmax.h"

namespace lossd {

// Of every call.
struct LayerCall {
  ResultRecord* record = nullptr;       // cleared by the call
  ResultRecord* record_copy = nullptr;  // gets the record at the end; may be null
  std::string* plan = nullptr;          // how it was done may be appended
};

// All enqueue, on a GPU one kernel where it can be. A row's results do not depend on the other rows; sums over rows have one order for a
// shape and a device. Errors: RESOURCE_EXHAUSTED if the workspace is too small for the sums over rows.
class LayerBackend {
 public:
  virtual ~LayerBackend() = default;

  virtual absl::Status Norm(const NormForward& problem, const LayerCall& call) = 0;
  virtual absl::Status NormGradients(const NormBackward& problem, const LayerCall& call) = 0;
  // A position outside the tables is in the record; y is undefined then.
  virtual absl::Status Rope(const RopeProblem& problem, const LayerCall& call) = 0;
  virtual absl::Status Gated(const GatedForward& problem, const LayerCall& call) = 0;
  virtual absl::Status GatedGradients(const GatedBackward& problem, const LayerCall& call) = 0;
  virtual absl::Status ReluSquared(const ReluSquaredForward& problem, const LayerCall& call) = 0;
  virtual absl::Status ReluSquaredGradient(const ReluSquaredBackward& problem,
                                           const LayerCall& call) = 0;
  virtual absl::Status Softmax(const SoftmaxForward& problem, const LayerCall& call) = 0;
  virtual absl::Status SoftmaxGradient(const SoftmaxBackward& problem, const LayerCall& call) = 0;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_LAYERS_LAYER_BACKEND_H_
