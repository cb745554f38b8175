#include "kernels/cuda/cublaslt.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/product_table.h"

namespace lossd {
namespace {

// How many algorithms the heuristics are asked for.
constexpr int kCandidates = 10;

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

// An attribute of an algorithm; 0 if it cannot be read, which no line of the table asks for.
template <class T>
T Read(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value = 0;
  size_t written = 0;
  if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value),
                                           &written) != CUBLAS_STATUS_SUCCESS) {
    return 0;
  }
  return value;
}

bool Holds(const ProductChoice& choice, const Product& product, int compute_capability) {
  return choice.compute_capability == compute_capability && product.inputs != DType::kF32 &&
         choice.a_transposed == product.a.transposed &&
         choice.b_transposed == product.b.transposed && product.m >= choice.min_m &&
         product.n >= choice.min_n && product.k >= choice.min_k;
}

// The best of the heuristics' list, by the table.
const cublasLtMatmulAlgo_t& Choose(const cublasLtMatmulHeuristicResult_t* found, int count,
                                   const Product& product, int compute_capability) {
  for (const ProductChoice& choice : kProductTable) {
    if (!Holds(choice, product, compute_capability)) continue;
    for (int i = 0; i < count; ++i) {
      const cublasLtMatmulAlgo_t& algorithm = found[i].algo;
      if (Read<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID) == choice.tile &&
          Read<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID) == choice.cluster &&
          Read<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) <= 1) {
        return algorithm;
      }
    }
  }
  return found[0].algo;
}

}  // namespace

struct CublasLt::Plan {
  Operation operation;
  Layout a, b, d;
  cublasLtMatmulAlgo_t algorithm;
};

CublasLt::CublasLt() = default;

absl::StatusOr<CublasLt> CublasLt::Create(uint64_t workspace_bytes, bool use_table) {
  CublasLt lt;
  LOSSD_RETURN_IF_ERROR(CublasStatus(cublasLtCreate(&lt.handle_), "start"));
  if (use_table) {
    int device = 0;
    LOSSD_RETURN_IF_CUDA_ERROR(cudaGetDevice(&device), "read the device");
    LOSSD_RETURN_IF_CUDA_ERROR(
        cudaDeviceGetAttribute(&lt.compute_capability_, cudaDevAttrComputeCapabilityMajor, device),
        "read the device's properties");
  }
  LOSSD_ASSIGN_OR_RETURN(
      lt.workspace_,
      DeviceBuffer::Create(workspace_bytes, "allocate the workspace of the products"));
  return lt;
}

CublasLt::~CublasLt() {
  plans_.clear();
  if (handle_ != nullptr && !CudaIsUnloading()) cublasLtDestroy(handle_);
}

CublasLt::CublasLt(CublasLt&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      compute_capability_(other.compute_capability_),
      workspace_(std::move(other.workspace_)),
      plans_(std::move(other.plans_)) {}

CublasLt& CublasLt::operator=(CublasLt&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(compute_capability_, other.compute_capability_);
  std::swap(workspace_, other.workspace_);
  std::swap(plans_, other.plans_);
  return *this;
}

std::string CublasLt::Describe() const {
  std::string text =
      absl::StrCat("cublaslt ", cublasLtGetVersion(), ", ", workspace_.bytes(), " bytes");
  for (const ProductChoice& choice : kProductTable) {
    absl::StrAppend(&text, "; sm ", choice.compute_capability, choice.a_transposed ? " T" : " N",
                    choice.b_transposed ? "T" : "N", " m ", choice.min_m, " n ", choice.min_n,
                    " k ", choice.min_k, " tile ", static_cast<int>(choice.tile), " cluster ",
                    static_cast<int>(choice.cluster));
  }
  return text;
}

absl::Status CublasLt::ChooseAlgorithm(const Product& product, Plan* plan) {
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
  cublasLtMatmulHeuristicResult_t results[kCandidates];
  int found = 0;
  LOSSD_RETURN_IF_ERROR(CublasStatus(
      cublasLtMatmulAlgoGetHeuristic(handle_, plan->operation.get, plan->a.get, plan->b.get,
                                     plan->d.get, plan->d.get, preference.get, kCandidates, results,
                                     &found),
      absl::StrCat("find an algorithm for m ", product.m, " n ", product.n, " k ", product.k)));
  if (found == 0) return CublasStatus(CUBLAS_STATUS_NOT_SUPPORTED, "find an algorithm");
  plan->algorithm = Choose(results, found, product, compute_capability_);
  return absl::OkStatus();
}

absl::StatusOr<const CublasLt::Plan*> CublasLt::FindPlan(const Product& product) {
  const bool device_scalars = product.device_alpha != nullptr;
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
  if (const auto it = plans_.find(key); it != plans_.end()) return it->second.get();
  auto plan = std::make_unique<Plan>();
  Operation& operation = plan->operation;
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
  LOSSD_RETURN_IF_ERROR(
      product.b.transposed
          ? plan->a.Create(product.inputs, product.n, product.k, product.b.stride)
          : plan->a.Create(product.inputs, product.k, product.n, product.b.stride));
  LOSSD_RETURN_IF_ERROR(
      product.a.transposed
          ? plan->b.Create(product.inputs, product.k, product.m, product.a.stride)
          : plan->b.Create(product.inputs, product.m, product.k, product.a.stride));
  LOSSD_RETURN_IF_ERROR(plan->d.Create(product.output, product.m, product.n, product.d_stride));
  LOSSD_RETURN_IF_ERROR(ChooseAlgorithm(product, plan.get()));
  if (plans_.size() >= kMaxPlans) plans_.clear();
  return plans_.emplace(key, std::move(plan)).first->second.get();
}

absl::Status CublasLt::Run(const Product& product, cudaStream_t stream) {
  if (product.m == 0 || product.n == 0) return absl::OkStatus();
  LOSSD_ASSIGN_OR_RETURN(const Plan* plan, FindPlan(product));
  const bool device_scalars = product.device_alpha != nullptr;
  return CublasStatus(
      cublasLtMatmul(
          handle_, plan->operation.get, device_scalars ? product.device_alpha : &product.alpha,
          product.b.data, plan->a.get, product.a.data, plan->b.get,
          device_scalars ? product.device_beta : &product.beta, product.d, plan->d.get, product.d,
          plan->d.get, &plan->algorithm, workspace_.data(), workspace_.bytes(), stream),
      absl::StrCat("multiply m ", product.m, " n ", product.n, " k ", product.k));
}

}  // namespace lossd
