// The losses of single judged sequences in double: derivatives against central differences, values by hand, extreme arguments.
#include "kernels/objectives/unpaired_terms.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lossd {
namespace {

using Options = UnpairedOptions<double>;

Options Of(UnpairedType type) {
  Options options;
  options.type = type;
  options.beta = 0.4;
  options.desirable_weight = 1.5;
  options.undesirable_weight = 0.5;
  if (type == UnpairedType::kBco) options.bco_delta = 0.3;
  return options;
}

const UnpairedType kTypes[] = {UnpairedType::kKto, UnpairedType::kApoZeroUnpaired,
                               UnpairedType::kBco};

TEST(UnpairedTermsTest, DerivativesMatchCentralDifferences) {
  const double step = 1e-5;
  for (const UnpairedType type : kTypes) {
    for (const bool desirable : {false, true}) {
      for (const double x : {-7.0, -0.6, 0.0, 1.4, 5.0}) {
        const auto at = [&](double z) {
          return EvaluateUnpaired(Of(type), 0.7, desirable, z).value;
        };
        EXPECT_NEAR(EvaluateUnpaired(Of(type), 0.7, desirable, x).slope,
                    (at(x + step) - at(x - step)) / (2 * step), 1e-9);
      }
    }
  }
}

TEST(UnpairedTermsTest, ValuesByHand) {
  const auto sig = [](double z) { return 1 / (1 + std::exp(-z)); };
  const Options kto = Of(UnpairedType::kKto);
  EXPECT_NEAR(EvaluateUnpaired(kto, 0.5, true, 2.0).value, 1.5 * (1 - sig(0.6)), 1e-14);
  EXPECT_NEAR(EvaluateUnpaired(kto, 0.5, false, 2.0).value, 0.5 * (1 - sig(-0.6)), 1e-14);
  const Options apo = Of(UnpairedType::kApoZeroUnpaired);
  EXPECT_NEAR(EvaluateUnpaired(apo, 0.5, true, 2.0).value, 1.5 * (1 - sig(0.8)), 1e-14);
  EXPECT_NEAR(EvaluateUnpaired(apo, 0.5, false, 2.0).value, 0.5 * sig(0.8), 1e-14);
  const Options bco = Of(UnpairedType::kBco);
  EXPECT_NEAR(EvaluateUnpaired(bco, 0.5, true, 2.0).value, -1.5 * std::log(sig(0.5)), 1e-14);
  EXPECT_NEAR(EvaluateUnpaired(bco, 0.5, false, 2.0).value, -0.5 * std::log(sig(-0.5)), 1e-14);
}

TEST(UnpairedTermsTest, TheBaselineIsKtosAlone) {
  for (const UnpairedType type : kTypes) {
    const bool differs = EvaluateUnpaired(Of(type), 0.0, true, 1.0).value !=
                         EvaluateUnpaired(Of(type), 2.0, true, 1.0).value;
    EXPECT_EQ(differs, type == UnpairedType::kKto);
  }
}

TEST(UnpairedTermsTest, ExtremeArgumentsStayFinite) {
  for (const UnpairedType type : kTypes) {
    for (const bool desirable : {false, true}) {
      for (const double x : {-1e5, 1e5}) {
        const ValueSlope<double> got = EvaluateUnpaired(Of(type), 0.0, desirable, x);
        EXPECT_TRUE(std::isfinite(got.value) && std::isfinite(got.slope));
      }
    }
  }
}

TEST(UnpairedTermsTest, AClassWeightOfZeroRemovesTheSequence) {
  Options options = Of(UnpairedType::kBco);
  options.desirable_weight = 0;
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(EvaluateUnpaired(options, 0.0, true, -infinity).value, 0);
  EXPECT_EQ(EvaluateUnpaired(options, 0.0, true, -infinity).slope, 0);
}

}  // namespace
}  // namespace lossd
