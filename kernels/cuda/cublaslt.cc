#include "kernels/cuda/cublaslt.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/check.h"

namespace lossd {
namespace {

#define LOSSD_RETURN_IF_CUBLAS_ERROR(expr, what)                                         \
  do {                                                                                   \
    if (cublasStatus_t lossd_cublas_ = (expr); lossd_cublas_ != CUBLAS_STATUS_SUCCESS) { \
      return CublasStatus(lossd_cublas_, what);                                          \
    }                                                                                    \
  } while (false)

cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

// What the library may assume of a pointer. More than 16 bytes change no kernel, but would make more entries of the table.
uint32_t AlignmentOf(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<uint32_t>(std::min<uintptr_t>(address & (~address + 1), 16));
}

struct Layout {
  cublasLtMatrixLayout_t get = nullptr;
  ~Layout() {
    if (get != nullptr) cublasLtMatrixLayoutDestroy(get);
  }
  // A row-major [rows, cols] matrix is a column-major [cols, rows] one.
  absl::Status Create(DType dtype, int64_t rows, int64_t cols, int64_t stride) {
    return CublasStatus(cublasLtMatrixLayoutCreate(&get, TypeOf(dtype), static_cast<uint64_t>(cols),
                                                   static_cast<uint64_t>(rows), stride),
                        "describe a matrix");
  }
};

struct Operation {
  cublasLtMatmulDesc_t get = nullptr;
  ~Operation() {
    if (get != nullptr) cublasLtMatmulDescDestroy(get);
  }
  template <class T>
  absl::Status Set(cublasLtMatmulDescAttributes_t attribute, T value) {
    return CublasStatus(cublasLtMatmulDescSetAttribute(get, attribute, &value, sizeof(value)),
                        "describe a product");
  }
};

struct Preference {
  cublasLtMatmulPreference_t get = nullptr;
  ~Preference() {
    if (get != nullptr) cublasLtMatmulPreferenceDestroy(get);
  }
  template <class T>
  absl::Status Set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    return CublasStatus(cublasLtMatmulPreferenceSetAttribute(get, attribute, &value, sizeof(value)),
                        "describe a preference");
  }
};

}  // namespace

absl::StatusOr<CublasLt> CublasLt::Create(uint64_t workspace_bytes) {
  CublasLt lt;
  LOSSD_RETURN_IF_ERROR(CublasStatus(cublasLtCreate(&lt.handle_), "start"));
  LOSSD_ASSIGN_OR_RETURN(
      lt.workspace_,
      DeviceBuffer::Create(workspace_bytes, "allocate the workspace of the products"));
  return lt;
}

CublasLt::~CublasLt() {
  if (handle_ != nullptr && !CudaIsUnloading()) cublasLtDestroy(handle_);
}

CublasLt::CublasLt(CublasLt&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      workspace_(std::move(other.workspace_)),
      algorithms_(std::move(other.algorithms_)) {}

CublasLt& CublasLt::operator=(CublasLt&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(workspace_, other.workspace_);
  std::swap(algorithms_, other.algorithms_);
  return *this;
}

std::string CublasLt::Describe() const {
  return absl::StrCat("cublaslt ", cublasLtGetVersion(), " first heuristic, ", workspace_.bytes(),
                      " bytes");
}

absl::StatusOr<const cublasLtMatmulAlgo_t*> CublasLt::FindAlgorithm(
    const Key& key, const Product& product, cublasLtMatmulDesc_t operation,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t d) {
  if (auto it = algorithms_.find(key); it != algorithms_.end()) return &it->second;
  Preference preference;
  LOSSD_RETURN_IF_ERROR(
      CublasStatus(cublasLtMatmulPreferenceCreate(&preference.get), "describe a preference"));
  LOSSD_RETURN_IF_ERROR(
      preference.Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_.bytes()));
  // Parts of a split product are added in fp32 and in a fixed order: never in the output's type, never in place.
  LOSSD_RETURN_IF_ERROR(preference.Set(
      CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(product.fixed_order ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
  LOSSD_RETURN_IF_ERROR(
      preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(product.b.data)));
  LOSSD_RETURN_IF_ERROR(
      preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(product.a.data)));
  LOSSD_RETURN_IF_ERROR(
      preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(product.d)));
  LOSSD_RETURN_IF_ERROR(
      preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(product.d)));
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  LOSSD_RETURN_IF_ERROR(CublasStatus(
      cublasLtMatmulAlgoGetHeuristic(handle_, operation, a, b, d, d, preference.get, 1, &result,
                                     &found),
      absl::StrCat("find an algorithm for m ", product.m, " n ", product.n, " k ", product.k)));
  if (found == 0) return CublasStatus(CUBLAS_STATUS_NOT_SUPPORTED, "find an algorithm");
  return &algorithms_.emplace(key, result.algo).first->second;
}

absl::Status CublasLt::Run(const Product& product, cudaStream_t stream) {
  if (product.m == 0 || product.n == 0) return absl::OkStatus();
  const bool device_scalars = product.device_alpha != nullptr;
  Operation operation;
  LOSSD_RETURN_IF_ERROR(
      CublasStatus(cublasLtMatmulDescCreate(&operation.get, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                   "describe a product"));
  // The library is column-major: it is asked for the transposed product, with the operands' places exchanged.
  LOSSD_RETURN_IF_ERROR(
      operation.Set(CUBLASLT_MATMUL_DESC_TRANSA, product.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
  LOSSD_RETURN_IF_ERROR(
      operation.Set(CUBLASLT_MATMUL_DESC_TRANSB, product.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
  LOSSD_RETURN_IF_ERROR(
      operation.Set(CUBLASLT_MATMUL_DESC_POINTER_MODE,
                    device_scalars ? CUBLASLT_POINTER_MODE_DEVICE : CUBLASLT_POINTER_MODE_HOST));
  Layout a, b, d;
  LOSSD_RETURN_IF_ERROR(product.b.transposed
                            ? a.Create(product.inputs, product.n, product.k, product.b.stride)
                            : a.Create(product.inputs, product.k, product.n, product.b.stride));
  LOSSD_RETURN_IF_ERROR(product.a.transposed
                            ? b.Create(product.inputs, product.k, product.m, product.a.stride)
                            : b.Create(product.inputs, product.m, product.k, product.a.stride));
  LOSSD_RETURN_IF_ERROR(d.Create(product.output, product.m, product.n, product.d_stride));

  const Key key = {product.m,
                   product.n,
                   product.k,
                   static_cast<int64_t>(product.inputs),
                   static_cast<int64_t>(product.output),
                   product.a.stride,
                   product.b.stride,
                   product.d_stride,
                   product.a.transposed,
                   product.b.transposed,
                   product.fixed_order,
                   device_scalars,
                   AlignmentOf(product.a.data),
                   AlignmentOf(product.b.data),
                   AlignmentOf(product.d),
                   product.beta != 0};
  LOSSD_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t* algorithm,
                         FindAlgorithm(key, product, operation.get, a.get, b.get, d.get));
  return CublasStatus(
      cublasLtMatmul(handle_, operation.get, device_scalars ? product.device_alpha : &product.alpha,
                     product.b.data, a.get, product.a.data, b.get,
                     device_scalars ? product.device_beta : &product.beta, product.d, d.get,
                     product.d, d.get, algorithm, workspace_.data(), workspace_.bytes(), stream),
      absl::StrCat("multiply m ", product.m, " n ", product.n, " k ", product.k));
}

}  // namespace lossd
