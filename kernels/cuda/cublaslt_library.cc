#include "kernels/cuda/cublaslt_library.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace lossd {
namespace {

struct Loaded {
  void* library = nullptr;
  std::string error;
};

const Loaded& Library() {
  static const Loaded loaded = [] {
    Loaded result;
    // By soname, so that one which is in the process already is found wherever it lies.
    const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
    result.library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (result.library == nullptr) {
      result.error =
          absl::StrCat("the CUDA backend needs ", name, " of the CUDA toolkit: ", dlerror());
    }
    return result;
  }();
  return loaded;
}

// Null without the library.
template <class Function>
Function Find(const char* name) {
  void* library = Library().library;
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

absl::Status LoadCublasLt() {
  const Loaded& loaded = Library();
  return loaded.library != nullptr ? absl::OkStatus() : absl::NotFoundError(loaded.error);
}

}  // namespace lossd

// The functions of cublasLt.h that the backend uses, for the linker. Hidden: nobody else's calls come here.
#pragma GCC visibility push(hidden)
extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static const auto function = lossd::Find<decltype(&cublasLtCreate)>("cublasLtCreate");
  return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : function(handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  static const auto function = lossd::Find<decltype(&cublasLtDestroy)>("cublasLtDestroy");
  return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : function(handle);
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  static const auto function =
      lossd::Find<decltype(&cublasLtGetStatusName)>("cublasLtGetStatusName");
  return function == nullptr ? "no libcublasLt" : function(status);
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  static const auto function =
      lossd::Find<decltype(&cublasLtGetStatusString)>("cublasLtGetStatusString");
  return function == nullptr ? "no libcublasLt" : function(status);
}

size_t cublasLtGetVersion() {
  static const auto function = lossd::Find<decltype(&cublasLtGetVersion)>("cublasLtGetVersion");
  return function == nullptr ? 0 : function();
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  static const auto function = lossd::Find<decltype(&cublasLtMatmul)>("cublasLtMatmul");
  return function == nullptr
             ? CUBLAS_STATUS_NOT_INITIALIZED
             : function(handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d,
                        d_layout, algorithm, workspace, workspace_bytes, stream);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
  static const auto function = lossd::Find<decltype(&cublasLtMatmulAlgoConfigGetAttribute)>(
      "cublasLtMatmulAlgoConfigGetAttribute");
  return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED
                             : function(algorithm, attribute, value, bytes, written);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t found[], int* count) {
  static const auto function =
      lossd::Find<decltype(&cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic");
  return function == nullptr
             ? CUBLAS_STATUS_NOT_INITIALIZED
             : function(handle, operation, a, b, c, d, preference, wanted, found, count);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  static const auto function =
      lossd::Find<decltype(&cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate");
  return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : function(operation, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  static const auto function =
      lossd::Find<decltype(&cublasLtMatmulDescDestroy)>("cublasLtMatmulDescDestroy");
  return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : function(operation);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  static const auto function =
      lossd::Find<decltype(&cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute");
  return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED
                             : function(operation, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  static const auto function =
      lossd::Find<decltype(&cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate");
  return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : function(preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  static const auto function =
      lossd::Find<decltype(&cublasLtMatmulPreferenceDestroy)>("cublasLtMatmulPreferenceDestroy");
  return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : function(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  static const auto function = lossd::Find<decltype(&cublasLtMatmulPreferenceSetAttribute)>(
      "cublasLtMatmulPreferenceSetAttribute");
  return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED
                             : function(preference, attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
  static const auto function =
      lossd::Find<decltype(&cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate");
  return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED
                             : function(layout, type, rows, columns, leading);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  static const auto function =
      lossd::Find<decltype(&cublasLtMatrixLayoutDestroy)>("cublasLtMatrixLayoutDestroy");
  return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : function(layout);
}

}  // extern "C"
#pragma GCC visibility pop
