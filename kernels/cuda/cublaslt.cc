#include "kernels/cuda/cublaslt.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cublaslt_library.h"
#include "kernels/cuda/product_table.h"

namespace lossd {
namespace {

// How many algorithms the heuristics are asked for: where the build's rule chooses, and where any may be meant.
constexpr int kCandidates = 10;
constexpr int kAllCandidates = 100;

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

// What the library may assume of a pointer; where there is none yet, that it will be aligned. More than 16 bytes change no kernel, but would
// make more entries of the table.
uint32_t AlignmentOf(const void* data) {
  if (data == nullptr) return 16;
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

// The best of the heuristics' list, by the build's table.
const cublasLtMatmulAlgo_t& Choose(const std::vector<cublasLtMatmulAlgo_t>& found,
                                   const Product& product, int compute_capability) {
  for (const ProductChoice& choice : kProductTable) {
    if (!Holds(choice, product, compute_capability)) continue;
    for (const cublasLtMatmulAlgo_t& algorithm : found) {
      if (Read<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID) == choice.tile &&
          Read<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID) == choice.cluster &&
          Read<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) <= 1) {
        return algorithm;
      }
    }
  }
  return found[0];
}

// In the order of kAlgorithmAttributes.
Algorithm AttributesOf(const cublasLtMatmulAlgo_t& algorithm) {
  return {Read<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID),
          Read<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
          Read<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
          Read<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
          Read<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
          Read<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
          Read<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
          Read<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
          Read<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION)};
}

// Null if it is not there.
const cublasLtMatmulAlgo_t* FindAlgorithm(const std::vector<cublasLtMatmulAlgo_t>& found,
                                          const Algorithm& attributes) {
  for (const cublasLtMatmulAlgo_t& algorithm : found) {
    if (AttributesOf(algorithm) == attributes) return &algorithm;
  }
  return nullptr;
}

std::string TextOf(const Product& product) {
  return absl::StrCat("m ", product.m, " n ", product.n, " k ", product.k);
}

}  // namespace

ProductShape ShapeOf(const Product& product) {
  ProductShape shape;
  shape.inputs = product.inputs;
  shape.output = product.output;
  shape.fixed_order = product.fixed_order;
  if (product.a.transposed) {
    shape.kind = ProductKind::kGradWeight;
    shape.vocab = product.m;
    shape.hidden = product.n;
    shape.rows = product.k;
  } else if (product.b.transposed) {
    shape.kind = ProductKind::kLogits;
    shape.rows = product.m;
    shape.vocab = product.n;
    shape.hidden = product.k;
  } else {
    shape.kind = ProductKind::kGradHidden;
    shape.rows = product.m;
    shape.hidden = product.n;
    shape.vocab = product.k;
  }
  return shape;
}

Product ProductOf(const ProductShape& shape) {
  Product product;
  product.inputs = shape.inputs;
  product.output = shape.output;
  product.fixed_order = shape.fixed_order;
  switch (shape.kind) {
    case ProductKind::kLogits:
      product.m = shape.rows;
      product.n = shape.vocab;
      product.k = shape.hidden;
      product.b.transposed = true;
      break;
    case ProductKind::kGradHidden:
      product.m = shape.rows;
      product.n = shape.hidden;
      product.k = shape.vocab;
      break;
    case ProductKind::kGradWeight:
      product.m = shape.vocab;
      product.n = shape.hidden;
      product.k = shape.rows;
      product.a.transposed = true;
      break;
  }
  // Rows of logits and of their gradient are padded, as HeadRun has them.
  const int64_t stride = (shape.vocab + 63) / 64 * 64;
  const bool logits = shape.kind == ProductKind::kLogits;
  product.a.stride = logits ? shape.hidden : stride;
  product.b.stride = shape.hidden;
  product.d_stride = logits ? stride : shape.hidden;
  return product;
}

struct CublasLt::Plan {
  Operation operation;
  Layout a, b, d;
  cublasLtMatmulAlgo_t algorithm;
};

CublasLt::CublasLt() = default;

absl::StatusOr<CublasLt> CublasLt::Create(uint64_t workspace_bytes, bool use_table) {
  LOSSD_RETURN_IF_ERROR(LoadCublasLt());
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

absl::StatusOr<CublasLt> CublasLt::Create(uint64_t workspace_bytes, AlgorithmTable table) {
  LOSSD_ASSIGN_OR_RETURN(CublasLt lt, Create(workspace_bytes));
  lt.table_ = std::move(table);
  LOSSD_RETURN_IF_ERROR(lt.CheckTable());
  return lt;
}

absl::Status CublasLt::CheckTable() {
  int device = 0;
  cudaDeviceProp properties;
  LOSSD_RETURN_IF_CUDA_ERROR(cudaGetDevice(&device), "read the device");
  LOSSD_RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, device),
                             "read the device's properties");
  LOSSD_RETURN_IF_ERROR(
      table_.CheckMadeFor(properties.name, static_cast<int64_t>(cublasLtGetVersion())));
  for (const AlgorithmLine& line : table_.lines()) {
    const auto found = ListAlgorithms(ProductOf(line.product));
    if (found.ok() && std::find(found->begin(), found->end(), line.algorithm) != found->end()) {
      continue;
    }
    return table_.LineError(
        line.number,
        absl::StrCat("the library has no such algorithm for this product with ", workspace_.bytes(),
                     " bytes of workspace; write the table again with lossctl tune"));
  }
  return absl::OkStatus();
}

CublasLt::~CublasLt() {
  plans_.clear();
  if (handle_ != nullptr && !CudaIsUnloading()) cublasLtDestroy(handle_);
}

CublasLt::CublasLt(CublasLt&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      compute_capability_(other.compute_capability_),
      table_(std::move(other.table_)),
      workspace_(std::move(other.workspace_)),
      plans_(std::move(other.plans_)) {}

CublasLt& CublasLt::operator=(CublasLt&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(compute_capability_, other.compute_capability_);
  std::swap(table_, other.table_);
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
  for (const AlgorithmLine& line : table_.lines()) {
    absl::StrAppend(&text, "; ", lossd::Describe(line.product), " ",
                    lossd::Describe(line.algorithm));
  }
  return text;
}

absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> CublasLt::Propose(const Product& product,
                                                                    const Plan& plan, int count) {
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
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(count));
  int found = 0;
  LOSSD_RETURN_IF_ERROR(
      CublasStatus(cublasLtMatmulAlgoGetHeuristic(handle_, plan.operation.get, plan.a.get,
                                                  plan.b.get, plan.d.get, plan.d.get,
                                                  preference.get, count, results.data(), &found),
                   absl::StrCat("find an algorithm for ", TextOf(product))));
  if (found == 0) return CublasStatus(CUBLAS_STATUS_NOT_SUPPORTED, "find an algorithm");
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) algorithms.push_back(results[static_cast<size_t>(i)].algo);
  return algorithms;
}

absl::Status CublasLt::ChooseAlgorithm(const Product& product, Plan* plan) {
  if (const AlgorithmLine* line = table_.Find(ShapeOf(product)); line != nullptr) {
    // Other strides or alignments than the line was measured with may not allow it: then the build's rule holds.
    LOSSD_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> all,
                           Propose(product, *plan, kAllCandidates));
    const cublasLtMatmulAlgo_t* found = FindAlgorithm(all, line->algorithm);
    if (found != nullptr) {
      plan->algorithm = *found;
      return absl::OkStatus();
    }
  }
  LOSSD_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> found,
                         Propose(product, *plan, kCandidates));
  plan->algorithm = Choose(found, product, compute_capability_);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Algorithm>> CublasLt::ListAlgorithms(const Product& product) {
  LOSSD_ASSIGN_OR_RETURN(const std::unique_ptr<Plan> plan, MakePlan(product));
  LOSSD_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> found,
                         Propose(product, *plan, kAllCandidates));
  std::vector<Algorithm> algorithms;
  for (const cublasLtMatmulAlgo_t& algorithm : found) {
    // What the attributes do not tell apart is the first of them.
    const Algorithm attributes = AttributesOf(algorithm);
    if (std::find(algorithms.begin(), algorithms.end(), attributes) == algorithms.end()) {
      algorithms.push_back(attributes);
    }
  }
  return algorithms;
}

absl::StatusOr<Algorithm> CublasLt::ChosenAlgorithm(const Product& product) {
  LOSSD_ASSIGN_OR_RETURN(const Plan* plan, FindPlan(product));
  return AttributesOf(plan->algorithm);
}

absl::Status CublasLt::SetAlgorithm(const Product& product, const Algorithm& algorithm) {
  LOSSD_ASSIGN_OR_RETURN(std::unique_ptr<Plan> plan, MakePlan(product));
  LOSSD_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> found,
                         Propose(product, *plan, kAllCandidates));
  const cublasLtMatmulAlgo_t* chosen = FindAlgorithm(found, algorithm);
  if (chosen == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("no algorithm ", lossd::Describe(algorithm), " for ", TextOf(product)));
  }
  plan->algorithm = *chosen;
  plans_[KeyOf(product)] = std::move(plan);
  return absl::OkStatus();
}

CublasLt::Key CublasLt::KeyOf(const Product& product) {
  return {product.m,
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
          product.device_alpha != nullptr,
          AlignmentOf(product.a.data),
          AlignmentOf(product.b.data),
          AlignmentOf(product.d),
          product.beta != 0};
}

absl::StatusOr<const CublasLt::Plan*> CublasLt::FindPlan(const Product& product) {
  const Key key = KeyOf(product);
  if (const auto it = plans_.find(key); it != plans_.end()) return it->second.get();
  LOSSD_ASSIGN_OR_RETURN(std::unique_ptr<Plan> plan, MakePlan(product));
  LOSSD_RETURN_IF_ERROR(ChooseAlgorithm(product, plan.get()));
  if (plans_.size() >= kMaxPlans) plans_.clear();
  return plans_.emplace(key, std::move(plan)).first->second.get();
}

absl::StatusOr<std::unique_ptr<CublasLt::Plan>> CublasLt::MakePlan(const Product& product) {
  const bool device_scalars = product.device_alpha != nullptr;
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
  return plan;
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
      absl::StrCat("multiply ", TextOf(product)));
}

}  // namespace lossd
