// Products of fp32 matrices by OpenBLAS, which is loaded at run time; without it by a plain kernel of our own.
#ifndef LOSSD_KERNELS_CPU_GEMM_H_
#define LOSSD_KERNELS_CPU_GEMM_H_

#include <cstdint>
#include <string>

namespace lossd {

// C [m, n] = A B, or C += A B; everything row-major. `a_transposed`: A is stored as [k, m], `b_transposed`: B as [n, k].
struct MatrixProduct {
  bool a_transposed = false;
  bool b_transposed = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const float* a = nullptr;
  int64_t a_stride = 0;  // elements between stored rows
  const float* b = nullptr;
  int64_t b_stride = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
  bool accumulate = false;
};

// Thread-safe. Each product runs on the calling thread alone: the backend splits its work itself, in pieces whose shape does not
// depend on the number of threads, so that neither do the bits. Loading sets the library's own thread count to 1 in this process.
class Gemm {
 public:
  // Looks for libopenblas.so.0.
  static Gemm Load();
  // The plain kernel: for tests, and where the library is missing.
  static Gemm Plain() { return Gemm(); }

  void Run(const MatrixProduct& product) const;

  // "OpenBLAS 0.3.21 ..." or "plain (libopenblas.so.0 was not found)".
  const std::string& name() const { return name_; }
  bool has_library() const { return sgemm_ != nullptr; }

 private:
  // cblas_sgemm; its enums are ints.
  using Sgemm = void (*)(int order, int a_transposed, int b_transposed, int m, int n, int k,
                         float alpha, const float* a, int a_stride, const float* b, int b_stride,
                         float beta, float* c, int c_stride);

  Sgemm sgemm_ = nullptr;
  std::string name_ = "plain";
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_GEMM_H_
