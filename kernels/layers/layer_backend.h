// What a backend must be able to do for the layers. kernels/cpu and kernels/cuda implement it; kernels/ops calls it.
#ifndef LOSSD_KERNELS_LAYERS_LAYER_BACKEND_H_
#define LOSSD_KERNELS_LAYERS_LAYER_BACKEND_H_

#include <string>

#include "absl/status/status.h"
#include "kernels/core/result_record.h"
#include "kernels/layers/norm.h"

namespace lossd {

// Of every call.
struct LayerCall {
  ResultRecord* record = nullptr;       // cleared by the call
  ResultRecord* record_copy = nullptr;  // gets the record at the end; may be null
  std::string* plan = nullptr;          // how it was done is appended
};

// All enqueue, on a GPU one kernel where it can be. A row's results do not depend on the other rows; sums over rows have one order for a
// shape and a device. Errors: RESOURCE_EXHAUSTED if the workspace is too small for the sums over rows.
class LayerBackend {
 public:
  virtual ~LayerBackend() = default;

  virtual absl::Status Norm(const NormForward& problem, const LayerCall& call) = 0;
  virtual absl::Status NormGradients(const NormBackward& problem, const LayerCall& call) = 0;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_LAYERS_LAYER_BACKEND_H_
