// The layers on a CUDA device.
#ifndef LOSSD_KERNELS_CUDA_CUDA_LAYERS_H_
#define LOSSD_KERNELS_CUDA_CUDA_LAYERS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/buffer.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/layer_launch.h"
#include "kernels/layers/layer_backend.h"

namespace lossd {

// Borrows the device, on whose stream everything is enqueued. Nothing waits for the device.
class CudaLayers final : public LayerBackend {
 public:
  // Loads all kernels.
  static absl::StatusOr<std::unique_ptr<CudaLayers>> Create(CudaDevice* device);

  absl::Status Norm(const NormForward& problem, const LayerCall& call) override;
  // A second kernel adds up the sums over rows.
  absl::Status NormGradients(const NormBackward& problem, const LayerCall& call) override;
  absl::Status Rope(const RopeProblem& problem, const LayerCall& call) override;
  absl::Status Gated(const GatedForward& problem, const LayerCall& call) override;
  absl::Status GatedGradients(const GatedBackward& problem, const LayerCall& call) override;
  absl::Status ReluSquared(const ReluSquaredForward& problem, const LayerCall& call) override;
  absl::Status ReluSquaredGradient(const ReluSquaredBackward& problem,
                                   const LayerCall& call) override;
  absl::Status Softmax(const SoftmaxForward& problem, const LayerCall& call) override;
  absl::Status SoftmaxGradient(const SoftmaxBackward& problem, const LayerCall& call) override;

 private:
  explicit CudaLayers(CudaDevice* device)
      : device_(device), limits_(device->multiprocessors(), device->has_clusters()) {}

  // The whole call where there is nothing to compute.
  absl::Status Clear(const LayerCall& call);

  CudaDevice* device_;
  LayerLimits limits_;
  DeviceBuffer rope_scratch_;  // a RopeScratch
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_CUDA_LAYERS_H_
