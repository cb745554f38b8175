#include "kernels/cpu/gemm.h"

#include <dlfcn.h>

#include <algorithm>
#include <limits>

namespace lossd {
namespace {

constexpr int kRowMajor = 101;
constexpr int kNoTranspose = 111;
constexpr int kTranspose = 112;

// Rows of C times a block of its columns; the block's sums stay in registers or the first cache.
void RunPlain(const MatrixProduct& p) {
  constexpr int64_t kBlock = 64;
  float sums[kBlock];
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j0 = 0; j0 < p.n; j0 += kBlock) {
      const int64_t width = std::min(kBlock, p.n - j0);
      std::fill(sums, sums + width, 0.0f);
      if (p.b_transposed) {
        for (int64_t j = 0; j < width; ++j) {
          const float* b = p.b + (j0 + j) * p.b_stride;
          double sum = 0;
          for (int64_t k = 0; k < p.k; ++k) {
            sum += static_cast<double>(p.a_transposed ? p.a[k * p.a_stride + i]
                                                      : p.a[i * p.a_stride + k]) *
                   b[k];
          }
          sums[j] = static_cast<float>(sum);
        }
      } else {
        for (int64_t k = 0; k < p.k; ++k) {
          const float a = p.a_transposed ? p.a[k * p.a_stride + i] : p.a[i * p.a_stride + k];
          const float* b = p.b + k * p.b_stride + j0;
          for (int64_t j = 0; j < width; ++j) sums[j] += a * b[j];
        }
      }
      float* c = p.c + i * p.c_stride + j0;
      for (int64_t j = 0; j < width; ++j) c[j] = p.accumulate ? c[j] + sums[j] : sums[j];
    }
  }
}

bool FitsInt(int64_t value) { return value <= std::numeric_limits<int>::max(); }

}  // namespace

Gemm Gemm::Load() {
  Gemm gemm;
  // Stays loaded: other code of the process may use it.
  void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    gemm.name_ = "plain (libopenblas.so.0 was not found; install libopenblas0-pthread)";
    return gemm;
  }
  const auto sgemm = reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
  const auto set_threads =
      reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"));
  const auto config = reinterpret_cast<char* (*)()>(dlsym(library, "openblas_get_config"));
  if (sgemm == nullptr || set_threads == nullptr) {
    gemm.name_ = "plain (libopenblas.so.0 lacks cblas_sgemm)";
    return gemm;
  }
  set_threads(1);
  gemm.sgemm_ = sgemm;
  gemm.name_ = config != nullptr ? config() : "OpenBLAS";
  return gemm;
}

void Gemm::Run(const MatrixProduct& p) const {
  if (p.m == 0 || p.n == 0) return;
  const bool fits = FitsInt(p.m) && FitsInt(p.n) && FitsInt(p.k) && FitsInt(p.a_stride) &&
                    FitsInt(p.b_stride) && FitsInt(p.c_stride);
  if (sgemm_ == nullptr || !fits || p.k == 0) {
    RunPlain(p);
    return;
  }
  sgemm_(kRowMajor, p.a_transposed ? kTranspose : kNoTranspose,
         p.b_transposed ? kTranspose : kNoTranspose, static_cast<int>(p.m), static_cast<int>(p.n),
         static_cast<int>(p.k), 1.0f, p.a, static_cast<int>(p.a_stride), p.b,
         static_cast<int>(p.b_stride), p.accumulate ? 1.0f : 0.0f, p.c,
         static_cast<int>(p.c_stride));
}

}  // namespace lossd
