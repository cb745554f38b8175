// Plans of the CUDA backend, for a GPU that need not be there.
#ifndef LOSSD_KERNELS_CUDA_CUDA_PLANNER_H_
#define LOSSD_KERNELS_CUDA_CUDA_PLANNER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_machine.h"
#include "kernels/linear/planner.h"

namespace lossd {

class CudaPlanner final : public Planner, private PlanSink {
 public:
  // `device` has a workspace. Errors: INVALID_ARGUMENT (compute_capability, workspace_bytes).
  static absl::StatusOr<std::unique_ptr<CudaPlanner>> Create(const DeviceDescription& device);

  absl::Status RunHead(const HeadPass& pass, std::string* plan) override;
  absl::Status RunHeadTwice(const HeadPass& first, const std::vector<StageRun>& between,
                            const HeadPass& second, std::string* plan) override;
  absl::Status RunPair(const PairPass& pass, std::string* plan) override;

 private:
  CudaPlanner(const DeviceDescription& device, uint64_t workspace_bytes, const CudaFacts& facts);
  void Add(const HeadRun& run) override;
  void AddRepeat(const char* reason) override { repeat_ = reason; }

  CudaMachine machine_;
  uint64_t mark_ = 0;  // where the memory of the present pass begins
  const char* repeat_ = nullptr;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_CUDA_PLANNER_H_
