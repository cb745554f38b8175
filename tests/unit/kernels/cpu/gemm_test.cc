#include "kernels/cpu/gemm.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace lossd {
namespace {

struct Case {
  bool a_transposed;
  bool b_transposed;
  bool accumulate;
};

class GemmTest : public testing::TestWithParam<Case> {};

// Odd extents and rows that are wider than they need be; compared with sums in double.
void ExpectProduct(const Gemm& gemm, const Case& c) {
  const int64_t m = 37, n = 70, k = 53, pad = 3;
  const int64_t a_stride = (c.a_transposed ? m : k) + pad;
  const int64_t b_stride = (c.b_transposed ? k : n) + pad;
  const int64_t c_stride = n + pad;
  std::vector<float> a((c.a_transposed ? k : m) * a_stride);
  std::vector<float> b((c.b_transposed ? n : k) * b_stride);
  std::vector<float> out(m * c_stride, 0.5f);
  for (size_t i = 0; i < a.size(); ++i) a[i] = std::sin(0.7f * static_cast<float>(i));
  for (size_t i = 0; i < b.size(); ++i) b[i] = std::cos(0.3f * static_cast<float>(i));
  MatrixProduct product{c.a_transposed, c.b_transposed, m,        n,        k,
                        a.data(),       a_stride,       b.data(), b_stride, out.data(),
                        c_stride,       c.accumulate};
  gemm.Run(product);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = c.accumulate ? 0.5 : 0;
      for (int64_t l = 0; l < k; ++l) {
        const double left = c.a_transposed ? a[l * a_stride + i] : a[i * a_stride + l];
        const double right = c.b_transposed ? b[j * b_stride + l] : b[l * b_stride + j];
        sum += left * right;
      }
      ASSERT_NEAR(out[i * c_stride + j], sum, 2e-5) << i << ", " << j;
    }
    for (int64_t j = n; j < c_stride; ++j) ASSERT_EQ(out[i * c_stride + j], 0.5f);
  }
}

TEST_P(GemmTest, PlainKernel) { ExpectProduct(Gemm::Plain(), GetParam()); }

TEST_P(GemmTest, Library) {
  const Gemm gemm = Gemm::Load();
  if (!gemm.has_library()) GTEST_SKIP() << gemm.name();
  ExpectProduct(gemm, GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, GemmTest,
                         testing::Values(Case{false, true, false}, Case{false, false, false},
                                         Case{true, false, false}, Case{true, true, false},
                                         Case{false, true, true}, Case{false, false, true},
                                         Case{true, false, true}));

}  // namespace
}  // namespace lossd
