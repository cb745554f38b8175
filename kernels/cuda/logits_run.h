// One RunHead on the GPU of logits that the caller has.
#ifndef LOSSD_KERNELS_CUDA_LOGITS_RUN_H_
#define LOSSD_KERNELS_CUDA_LOGITS_RUN_H_

#include <string>

#include "absl/status/status.h"
#include "kernels/cuda/cuda_machine.h"
#include "kernels/linear/head_backend.h"

namespace lossd {

// Enqueues everything: no products, no workspace. Appends to `plan`.
absl::Status RunLogitsOn(const CudaMachine& machine, const HeadPass& pass, std::string* plan);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_LOGITS_RUN_H_
