#include "kernels/cpu/convert.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace lossd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The value that the format's definition gives the bits.
double DecodeF16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return fraction == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(ConvertTest, EveryF16IsItsValue) {
  for (int bits = 0; bits < 65536; ++bits) {
    const double expected = DecodeF16(static_cast<uint16_t>(bits));
    const float value = FromF16(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(value, expected) << bits;
    }
  }
}

TEST(ConvertTest, SixteenBitValuesComeBack) {
  for (int bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    EXPECT_TRUE(std::isnan(FromF16(half)) || ToF16(FromF16(half)) == half) << bits;
    EXPECT_TRUE(std::isnan(FromBF16(half)) || ToBF16(FromBF16(half)) == half) << bits;
  }
  EXPECT_TRUE(std::isnan(FromBF16(ToBF16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(FromF16(ToF16(std::nanf("")))));
}

// Between two neighbours: the nearer one, in the middle the even one.
template <class To, class From>
void ExpectNearestEven(To to, From from, uint16_t last) {
  for (uint16_t bits = 0; bits < last; ++bits) {
    const double low = from(bits);
    const double high = from(static_cast<uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    EXPECT_EQ(to(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    EXPECT_EQ(to(std::nextafter(middle, 0.0f)), bits) << bits;
    EXPECT_EQ(to(std::nextafter(middle, kInfinity)), bits + 1) << bits;
    EXPECT_EQ(to(-middle), (bits % 2 == 0 ? bits : bits + 1) | 0x8000) << bits;
  }
}

TEST(ConvertTest, RoundsF16ToNearestEven) {
  ExpectNearestEven(ToF16, FromF16, 0x7bff);
  EXPECT_EQ(ToF16(65519.99f), 0x7bff);
  EXPECT_EQ(ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(ToF16(-kInfinity), 0xfc00);
}

TEST(ConvertTest, RoundsBF16ToNearestEven) {
  ExpectNearestEven(ToBF16, FromBF16, 0x7f7f);
  EXPECT_EQ(ToBF16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(ConvertTest, AccumulateRoundsTheSumOnce) {
  // 1 + 2^-9 is half a unit of bf16 above 1; with 1.0078125 (1 + 2^-7) the sum is exact.
  std::vector<uint16_t> to = {ToBF16(1.0f), ToBF16(1.0f)};
  const float add[] = {0x1p-9f, 0x1p-7f};
  StoreFromF32(add, 2, /*accumulate=*/true, DType::kBF16, to.data());
  EXPECT_EQ(FromBF16(to[0]), 1.0f);
  EXPECT_EQ(FromBF16(to[1]), 1.0078125f);
}

TEST(ConvertTest, OnlyEvenlyStridedF32IsPlain) {
  RowsView view;
  view.present = true;
  view.dtype = DType::kF32;
  view.rows = 3;
  view.width = 4;
  view.lead_shape[0] = 3;
  view.lead_strides[0] = 4;
  EXPECT_TRUE(IsPlainF32(view));
  view.lead_strides[0] = 2;  // rows that overlap are legal inputs
  EXPECT_FALSE(IsPlainF32(view));
  view.lead_strides[0] = 4;
  view.dtype = DType::kBF16;
  EXPECT_FALSE(IsPlainF32(view));
}

}  // namespace
}  // namespace lossd
