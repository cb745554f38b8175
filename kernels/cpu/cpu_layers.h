// The layers on the CPU: rows by vector sweeps over pieces that stay in cache, all threads.
#ifndef LOSSD_KERNELS_CPU_CPU_LAYERS_H_
#define LOSSD_KERNELS_CPU_CPU_LAYERS_H_

#include <cstdint>
#include <functional>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/layer_sweeps.h"
#include "kernels/layers/layer_backend.h"

namespace lossd {

// Rows of any length: what does not fit into a piece is read again for each pass. Equal calls give equal bits, whatever the number of
// threads.
class CpuLayers final : public LayerBackend {
 public:
  explicit CpuLayers(CpuDevice& device) : device_(device), sweeps_(SelectLayerSweeps()) {}

  absl::Status Norm(const NormForward& problem, const LayerCall& call) override;
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
  // Calls body(begin, end) for rows begin ... end - 1 until all have been, several at a time where they are short.
  void ForRows(int64_t rows, int64_t width,
               const std::function<void(int64_t begin, int64_t end)>& body);
  // Calls body(row, piece, columns) for every piece of every row, in any order.
  void ForPieces(int64_t rows, int64_t width,
                 const std::function<void(int64_t row, int64_t piece, int64_t columns)>& body);
  // What every call does at the end: no data error.
  absl::Status Finish(const LayerCall& call);

  CpuDevice& device_;
  const LayerSweeps& sweeps_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_CPU_LAYERS_H_
