// Runs requests in this process on a GPU: as they are, or with every tensor in device memory as a client's tensors are.
#ifndef LOSSD_TESTS_GPU_CUDA_RUNNER_H_
#define LOSSD_TESTS_GPU_CUDA_RUNNER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/registry.h"
#include "kernels/cuda/cuda_backend.h"
#include "lossd/v1/service.pb.h"

namespace lossd {

// Aborts if there is no GPU.
class CudaRunner {
 public:
  explicit CudaRunner(uint64_t workspace_bytes);

  // Inline tensors go and come through the workspace.
  absl::StatusOr<v1::OpReply> Run(const v1::Op& op, const RunOptions& options = {});

  // Inline tensors are moved to device memory; outputs are poisoned first, and rows lie further apart than their width where the
  // tensor is a matrix of the model's type. Without options.host_may_wait the host waits once, at the end.
  // Errors: DATA_LOSS if an input or the memory between rows was written, or a refused call added to a destination.
  // An output that takes the memory of an input in `donated` lies there.
  absl::StatusOr<v1::OpReply> RunInMemory(const v1::Op& op, const RunOptions& options = {},
                                          const std::vector<std::string>& donated = {});

  CudaBackend& cuda() { return *backend_; }
  const Registry& registry() const { return registry_; }

 private:
  std::unique_ptr<CudaBackend> backend_;
  Backend borrowed_;
  Registry registry_;
};

}  // namespace lossd

#endif  // LOSSD_TESTS_GPU_CUDA_RUNNER_H_
