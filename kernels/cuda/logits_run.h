// One RunHead on the GPU of logits that the caller has.
#ifndef LOSSD_KERNELS_CUDA_LOGITS_RUN_H_
#define LOSSD_KERNELS_CUDA_LOGITS_RUN_H_

#include <string>

#include "absl/status/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/linear/head_backend.h"

namespace lossd {

// Enqueues everything: no products, no workspace. `largest_cluster`: blocks, 1 where there are no clusters. Appends to `plan`.
// With batch_invariant the row pass is that of the head, on the same logits with the same bits.
absl::Status RunLogits(const HeadPass& pass, CudaDevice& device, int largest_cluster,
                       std::string* plan);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_LOGITS_RUN_H_
