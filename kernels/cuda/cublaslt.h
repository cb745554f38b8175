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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/dtype.h"
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

// Thread-compatible. The algorithm is chosen among the library's heuristics by product_table.h and kept for the shape; nothing is timed.
class CublasLt {
 public:
  static constexpr uint64_t kWorkspaceBytes = uint64_t{32} << 20;

  // `workspace_bytes` of device memory are allocated for split products. Without `use_table` the library's own first choice is taken: what
  // others measure against.
  static absl::StatusOr<CublasLt> Create(uint64_t workspace_bytes, bool use_table = true);
  CublasLt();
  ~CublasLt();
  CublasLt(CublasLt&& other) noexcept;
  CublasLt& operator=(CublasLt&& other) noexcept;

  // Enqueues. Errors: UNIMPLEMENTED if the library has no algorithm, INTERNAL, UNAVAILABLE (GPU_LOST).
  absl::Status Run(const Product& product, cudaStream_t stream);

  // Names what decides about algorithms: library version and our rule.
  std::string Describe() const;

 private:
  using Key = std::array<int64_t, 16>;
  // What the library is told of a product, and its algorithm.
  struct Plan;
  // More shapes than a run of a trainer has; beyond it all are forgotten.
  static constexpr size_t kMaxPlans = 4096;

  absl::StatusOr<const Plan*> FindPlan(const Product& product);
  absl::Status ChooseAlgorithm(const Product& product, Plan* plan);

  cublasLtHandle_t handle_ = nullptr;
  int compute_capability_ = 0;  // major; 0 without the table
  DeviceBuffer workspace_;
  std::map<Key, std::unique_ptr<const Plan>> plans_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_CUBLASLT_H_
