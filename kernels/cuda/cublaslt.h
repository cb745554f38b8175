// Owner of a cuBLASLt handle: products with algorithms that depend on the shape alone.
#ifndef LOSSD_KERNELS_CUDA_CUBLASLT_H_
#define LOSSD_KERNELS_CUDA_CUBLASLT_H_

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/dtype.h"
#include "kernels/cuda/algorithm_table.h"
#include "kernels/cuda/buffer.h"

namespace lossd {

// One operand: row-major, rows `stride` elements apart.
struct ProductOperand {
  const void* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};

// d [m, n] = alpha op(a) [m, k] op(b) [k, n] + beta d. a and b have one type; fp32 accumulators; d is rounded once.
struct Product {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  DType inputs = DType::kUnspecified;
  ProductOperand a;
  ProductOperand b;
  DType output = DType::kUnspecified;
  void* d = nullptr;
  int64_t d_stride = 0;
  float alpha = 1;
  float beta = 0;
  // Where given, alpha and beta are read from device memory when the product runs.
  const float* device_alpha = nullptr;
  const float* device_beta = nullptr;
  // No split of k: a row's bits must not depend on the other rows.
  bool fixed_order = false;
};

// The product as a table's line speaks of it, and one of that shape with the engine's strides and no memory yet.
ProductShape ShapeOf(const Product& product);
Product ProductOf(const ProductShape& shape);

// Thread-compatible. The algorithm is chosen among the library's heuristics by a table that was measured on this GPU, where one is given and
// has a line for the product, else by product_table.h, and kept for the shape; nothing is timed.
class CublasLt {
 public:
  static constexpr uint64_t kWorkspaceBytes = uint64_t{32} << 20;

  // `workspace_bytes` of device memory are allocated for split products. Without `use_table` the library's own first choice is taken: what
  // others measure against.
  static absl::StatusOr<CublasLt> Create(uint64_t workspace_bytes, bool use_table = true);
  // With a table of lossctl tune. Errors: FAILED_PRECONDITION for another GPU's or library's, INVALID_ARGUMENT for a line whose algorithm the
  // library does not propose for the line's product in this workspace; each names file and line.
  static absl::StatusOr<CublasLt> Create(uint64_t workspace_bytes, AlgorithmTable table);
  CublasLt();
  ~CublasLt();
  CublasLt(CublasLt&& other) noexcept;
  CublasLt& operator=(CublasLt&& other) noexcept;

  // Enqueues. Errors: UNIMPLEMENTED if the library has no algorithm, INTERNAL, UNAVAILABLE (GPU_LOST).
  absl::Status Run(const Product& product, cudaStream_t stream);

  // What the library proposes for the product, best first as it believes, and the one of them that Run takes.
  absl::StatusOr<std::vector<Algorithm>> ListAlgorithms(const Product& product);
  absl::StatusOr<Algorithm> ChosenAlgorithm(const Product& product);
  // Run takes this one from now on for products like this one. NOT_FOUND if it is not among those of ListAlgorithms.
  absl::Status SetAlgorithm(const Product& product, const Algorithm& algorithm);

  // Names what decides about algorithms: library version and our rule.
  std::string Describe() const;

 private:
  using Key = std::array<int64_t, 16>;
  // What the library is told of a product, and its algorithm.
  struct Plan;
  // More shapes than a run of a trainer has; beyond it all are forgotten.
  static constexpr size_t kMaxPlans = 4096;

  static Key KeyOf(const Product& product);
  absl::StatusOr<const Plan*> FindPlan(const Product& product);
  // All but the algorithm.
  absl::StatusOr<std::unique_ptr<Plan>> MakePlan(const Product& product);
  absl::Status ChooseAlgorithm(const Product& product, Plan* plan);
  // At most `count` of the library's proposals.
  absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> Propose(const Product& product,
                                                            const Plan& plan, int count);
  absl::Status CheckTable();

  cublasLtHandle_t handle_ = nullptr;
  int compute_capability_ = 0;  // major; 0 without the table
  AlgorithmTable table_;
  DeviceBuffer workspace_;
  std::map<Key, std::unique_ptr<const Plan>> plans_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_CUBLASLT_H_
