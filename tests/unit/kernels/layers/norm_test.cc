// The norms' formulas in double: their gradients are derivatives.
#include "kernels/layers/norm.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/layers/rope.h"
#include "kernels/layers/softmax.h"

namespace lossd {
namespace {

const std::vector<double> kX = {0.3, -1.2, 2.1, 0.7, -0.4};
const std::vector<double> kDy = {1.1, 0.4, -0.7, 0.2, 0.9};
constexpr double kEps = 0.05;

struct Scale {
  double mean = 0;
  double rstd = 0;
};
Scale ScaleOf(const std::vector<double>& x, bool layer) {
  Scale scale;
  for (const double value : x) scale.mean += layer ? value / static_cast<double>(x.size()) : 0;
  double square = 0;
  for (const double value : x) square += std::pow(value - scale.mean, 2);
  scale.rstd = 1 / std::sqrt(square / static_cast<double>(x.size()) + kEps);
  return scale;
}

double Objective(const std::vector<double>& x, bool layer) {
  const Scale scale = ScaleOf(x, layer);
  double sum = 0;
  for (size_t j = 0; j < x.size(); ++j) {
    sum += kDy[j] * Normalized<DoubleMath, Rounding::kNone>(x[j], scale.mean, scale.rstd);
  }
  return sum;
}

TEST(NormTest, GradientsAreDerivatives) {
  for (const bool layer : {false, true}) {
    const Scale scale = ScaleOf(kX, layer);
    const auto columns = static_cast<double>(kX.size());
    double by_mean = 0;
    double by_dot = 0;
    for (size_t j = 0; j < kX.size(); ++j) {
      by_mean += layer ? kDy[j] / columns : 0;
      by_dot += kDy[j] * (kX[j] - scale.mean) * scale.rstd / columns;
    }
    for (size_t j = 0; j < kX.size(); ++j) {
      constexpr double kStep = 1e-5;
      std::vector<double> up = kX;
      std::vector<double> down = kX;
      up[j] += kStep;
      down[j] -= kStep;
      EXPECT_NEAR(NormGradient<DoubleMath>(kDy[j], kX[j], scale.mean, scale.rstd, by_mean, by_dot),
                  (Objective(up, layer) - Objective(down, layer)) / (2 * kStep), 1e-8)
          << layer << j;
    }
  }
}

TEST(NormTest, TheInverseRootIsRoundedToTheTypeOfX) {
  NormOptions options;
  options.eps = 0.1f;
  const float exact = InverseRoot(options, 2.9f, DType::kBF16);
  EXPECT_NEAR(exact, 1 / std::sqrt(3.0), 1e-7);
  options.rounds_rstd = true;
  EXPECT_EQ(InverseRoot(options, 2.9f, DType::kBF16), FloatMath::Round<Rounding::kBF16>(exact));
  EXPECT_EQ(InverseRoot(options, 2.9f, DType::kF16), FloatMath::Round<Rounding::kF16>(exact));
  EXPECT_EQ(InverseRoot(options, 2.9f, DType::kF32), exact);
}

TEST(SoftmaxTest, AProbabilityOfZeroRemovesTheUpstreamGradient) {
  EXPECT_EQ(SoftmaxTerm<FloatMath>(0, INFINITY), 0);
  EXPECT_EQ(SoftmaxGradient<FloatMath>(0, INFINITY, 1), 0);
  EXPECT_EQ(SoftmaxGradient<FloatMath>(0.5f, 3, 1), 1);
}

TEST(RopeTest, TheNegativeAngleTurnsBack) {
  const RopePair<DoubleMath> x = {0.7, -1.3};
  const double c = std::cos(0.9);
  const double s = std::sin(0.9);
  const RopePair<DoubleMath> turned = Rotate<DoubleMath>(x, c, s);
  EXPECT_NEAR(turned.first, 0.7 * c + 1.3 * s, 1e-15);
  const RopePair<DoubleMath> back = Rotate<DoubleMath>(turned, c, -s);
  EXPECT_NEAR(back.first, x.first, 1e-15);
  EXPECT_NEAR(back.second, x.second, 1e-15);
}

// [2, 3 tokens, 2 of 5 heads, 4] of a larger tensor.
TEST(RopeTest, HeadsOfAPartOfATensor) {
  TensorView view;
  view.present = true;
  view.dtype = DType::kF32;
  view.rank = 4;
  const int64_t shape[] = {2, 3, 2, 4};
  const int64_t strides[] = {90, 30, 6, 1};
  for (int d = 0; d < 4; ++d) {
    view.shape[d] = shape[d];
    view.strides[d] = strides[d];
  }
  const HeadsView heads = MakeHeadsView(view);
  EXPECT_EQ(heads.tokens.rows, 6);
  EXPECT_EQ(heads.tokens.width, 4);
  EXPECT_EQ(heads.Offset(5, 1), 90 + 2 * 30 + 6);
}

}  // namespace
}  // namespace lossd
