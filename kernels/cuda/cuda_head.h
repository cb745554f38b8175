// The head on a CUDA device: cuBLASLt for the products, own kernels for rows.
#ifndef LOSSD_KERNELS_CUDA_CUDA_HEAD_H_
#define LOSSD_KERNELS_CUDA_CUDA_HEAD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/buffer.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_machine.h"
#include "kernels/cuda/head_kernels.h"
#include "kernels/cuda/loss_plan.h"
#include "kernels/linear/head_backend.h"

namespace lossd {

// The calls of a CudaHead, on a GPU or as plans.
absl::Status RunHeadOn(const CudaMachine& machine, const HeadPass& pass, std::string* plan);
// `backend` runs the stages, and the sweeps where they are made one by one.
absl::Status RunHeadTwiceOn(const CudaMachine& machine, HeadBackend& backend, const HeadPass& first,
                            const std::vector<StageRun>& between, const HeadPass& second,
                            std::string* plan);

// Borrows the device, on whose stream everything is enqueued.
class CudaHead final : public HeadBackend {
 public:
  // Loads all kernels. `product_bytes` of device memory are for products that the library splits. An empty table is none.
  static absl::StatusOr<std::unique_ptr<CudaHead>> Create(CudaDevice* device,
                                                          uint64_t product_bytes,
                                                          AlgorithmTable algorithms);

  absl::Status StartRows(const HeadProblem& head, RowStart& start, RowSet* rows,
                         ResultRecord* found) override;
  absl::Status RunStage(const Stage& stage, int64_t count) override;
  // One launch.
  absl::Status RunLoss(LossRun& run) override;
  // See head_run.h and logits_run.h. Waits only where rows without gradient are left out of its products.
  absl::Status RunHead(const HeadPass& pass, std::string* plan) override;
  // One product where the workspace holds all logits.
  absl::Status RunHeadTwice(const HeadPass& first, const std::vector<StageRun>& between,
                            const HeadPass& second, std::string* plan) override;

  // See pair_run.h. Does not wait.
  absl::Status RunPair(const PairPass& pass, std::string* plan) override;

  CublasLt& products() { return products_; }
  // See CudaMachine.
  void set_worth_waiting(double multiplications) { machine_.worth_waiting = multiplications; }

 private:
  explicit CudaHead(CudaDevice* device) : device_(device) {}
  // What the latest start has found.
  absl::StatusOr<StartNote> AwaitStart();

  CudaDevice* device_;
  CublasLt products_;
  CudaMachine machine_;
  LossLimits loss_limits_;
  PinnedBuffer note_;  // a StartNote
  uint32_t starts_ = 0;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_CUDA_HEAD_H_
