// The activations' formulas: derivatives against differences in double, ends of the range, and the functions that they are made of.
#include "kernels/layers/activation.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace lossd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <GatedKind kKind>
void ExpectSlopes(double gate_scale) {
  GatedOptions options;
  options.kind = kKind;
  options.gate_scale = static_cast<float>(gate_scale);
  options.down_scale = 1.5f;
  constexpr double kStep = 1e-5;
  for (double gate = -9; gate < 9; gate += 0.37) {
    const auto value = [&](double g, double up) {
      return GatedValue<DoubleMath, kKind, Rounding::kNone>(options, g, up);
    };
    const auto slopes = GatedGradient<DoubleMath, kKind, Rounding::kNone>(options, gate, 0.8, 1.2);
    EXPECT_NEAR(slopes.gate,
                1.2 * (value(gate + kStep, 0.8) - value(gate - kStep, 0.8)) / (2 * kStep), 1e-7)
        << gate;
    EXPECT_NEAR(slopes.up,
                1.2 * (value(gate, 0.8 + kStep) - value(gate, 0.8 - kStep)) / (2 * kStep), 1e-7)
        << gate;
  }
}

TEST(ActivationTest, GradientsAreDerivatives) {
  ExpectSlopes<GatedKind::kSilu>(1);
  ExpectSlopes<GatedKind::kSilu>(-0.6);
  ExpectSlopes<GatedKind::kGeluTanh>(1);
  ExpectSlopes<GatedKind::kGeluErf>(1);
}

TEST(ActivationTest, ValuesAreThoseOfTheDefinitions) {
  const GatedOptions options;
  for (float g = -12; g < 12; g += 0.173f) {
    const double x = g;
    const double tanh = 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    const double erf = 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    const double silu = x / (1 + std::exp(-x));
    const auto silu_f = Activate<FloatMath, GatedKind::kSilu>(options, g).value;
    const auto tanh_f = Activate<FloatMath, GatedKind::kGeluTanh>(options, g).value;
    const auto erf_f = Activate<FloatMath, GatedKind::kGeluErf>(options, g).value;
    EXPECT_NEAR(silu_f, silu, 1e-6 * std::fabs(silu) + 1e-12) << g;
    // Far below 0 the definition by tanh has cancelled to nothing.
    EXPECT_NEAR(tanh_f, tanh, 1e-6 * std::fabs(tanh) + 1e-7) << g;
    EXPECT_NEAR(erf_f, erf, 4e-6 * std::fabs(erf) + 1e-30) << g;
  }
}

TEST(ActivationTest, FarOutNothingOverflows) {
  const GatedOptions options;
  for (const float g : {100.0f, 1e13f, 3e38f}) {
    const auto at = [&](float gate, auto kind) {
      return Activate<FloatMath, decltype(kind)::value>(options, gate);
    };
    const auto expect = [&](auto kind) {
      EXPECT_EQ(at(g, kind).value, g);
      EXPECT_EQ(at(g, kind).slope, 1);
      EXPECT_EQ(at(-g, kind).value, 0);
      EXPECT_EQ(at(-g, kind).slope, 0);
      EXPECT_TRUE(std::isnan(at(NAN, kind).value));
      EXPECT_TRUE(std::isnan(at(NAN, kind).slope));
    };
    expect(std::integral_constant<GatedKind, GatedKind::kSilu>());
    expect(std::integral_constant<GatedKind, GatedKind::kGeluTanh>());
    expect(std::integral_constant<GatedKind, GatedKind::kGeluErf>());
  }
}

TEST(ActivationTest, TheRoundedActivationIsUsedAndItsSlopeIsNot) {
  const GatedOptions options;
  const auto exact =
      GatedGradient<FloatMath, GatedKind::kSilu, Rounding::kNone>(options, 1.1f, 1, 1);
  const auto rounded =
      GatedGradient<FloatMath, GatedKind::kSilu, Rounding::kBF16>(options, 1.1f, 1, 1);
  EXPECT_EQ(rounded.gate, exact.gate);
  EXPECT_EQ(rounded.up, FloatMath::Round<Rounding::kBF16>(exact.up));
  EXPECT_NE(rounded.up, exact.up);
}

TEST(ActivationTest, SquaredReluKeepsNan) {
  EXPECT_EQ(ReluSquaredValue<FloatMath>(3), 9);
  EXPECT_EQ(ReluSquaredValue<FloatMath>(-3), 0);
  EXPECT_EQ(ReluSquaredValue<FloatMath>(-kInfinity), 0);
  EXPECT_TRUE(std::isnan(ReluSquaredValue<FloatMath>(NAN)));
  EXPECT_EQ(ReluSquaredGradient<FloatMath>(3, 0.5f), 3);
  EXPECT_EQ(ReluSquaredGradient<FloatMath>(0, kInfinity), 0);
  EXPECT_EQ(ReluSquaredGradient<FloatMath>(-3, kInfinity), 0);
  EXPECT_TRUE(std::isnan(ReluSquaredGradient<FloatMath>(NAN, 1)));
}

TEST(RealMathTest, ErfcIsAccurateWhereItIsNotZero) {
  for (float x = -4; x < 9; x += 0.0137f) {
    const double want = std::erfc(static_cast<double>(x));
    EXPECT_NEAR(FloatMath::Erfc(x), want, 5e-6 * want) << x;
  }
  EXPECT_EQ(FloatMath::Erfc(kInfinity), 0);
  EXPECT_EQ(FloatMath::Erfc(-kInfinity), 2);
}

TEST(RealMathTest, RoundsToNearestEven) {
  EXPECT_EQ(FloatMath::Round<Rounding::kBF16>(1 + 0x1p-8f), 1);
  EXPECT_EQ(FloatMath::Round<Rounding::kBF16>(1 + 0x3p-8f), 1 + 0x1p-6f);
  EXPECT_EQ(FloatMath::Round<Rounding::kBF16>(3.4e38f), kInfinity);
  EXPECT_TRUE(std::isnan(FloatMath::Round<Rounding::kBF16>(NAN)));
  EXPECT_EQ(FloatMath::Round<Rounding::kF16>(1 + 0x1p-11f), 1);
  EXPECT_EQ(FloatMath::Round<Rounding::kF16>(65519), 65504);
  EXPECT_EQ(FloatMath::Round<Rounding::kF16>(-65520), -kInfinity);
  EXPECT_EQ(FloatMath::Round<Rounding::kF16>(0x1p-25f), 0);
  EXPECT_EQ(FloatMath::Round<Rounding::kF16>(-0x3p-25f), -0x1p-23f);
  EXPECT_TRUE(std::isnan(FloatMath::Round<Rounding::kF16>(NAN)));
  EXPECT_EQ(FloatMath::Round<Rounding::kNone>(0.1f), 0.1f);
}

}  // namespace
}  // namespace lossd
