// Times the library's algorithms for the products of some heads, and makes a table of the fastest.
#ifndef LOSSD_KERNELS_CUDA_TUNE_H_
#define LOSSD_KERNELS_CUDA_TUNE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/dtype.h"
#include "kernels/cuda/algorithm_table.h"

namespace lossd {

struct TuneShape {
  int64_t rows = 0;  // of one product: a chunk's
  int64_t hidden = 0;
  int64_t vocab = 0;
  DType model = DType::kBF16;
};

struct TuneOptions {
  int device = 0;
  std::vector<TuneShape> shapes;
  int rounds = 7;
  // Told of each product when it has been measured.
  std::function<void(const std::string& line)> progress;
};

// The products of such heads, each once: logits to fp32, those of batch_invariant too; both gradients to every type that they are made in.
std::vector<ProductShape> TunedProducts(const std::vector<TuneShape>& shapes);

// Hot: the GPU works for seconds before the first measurement, and every product's candidates are measured in turn, round by round; the
// median counts. Takes the GPU for itself, and device memory for the largest operands.
// Errors: NOT_FOUND without a GPU, RESOURCE_EXHAUSTED (GPU_MEMORY), UNAVAILABLE (GPU_LOST), INTERNAL.
absl::StatusOr<AlgorithmTable> Tune(const TuneOptions& options);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_TUNE_H_
