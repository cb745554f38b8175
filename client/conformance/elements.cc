#include "client/conformance/elements.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace lossd::conformance {
namespace {

struct Format {
  int digits;        // of the significand, the hidden one included
  int min_exponent;  // of the smallest normal number
  double largest;
};

constexpr Format kBF16 = {8, -126, 3.3895313892515355e38};
constexpr Format kF16 = {11, -14, 65504};

// One rounding, straight from double: by way of float some ties would be rounded twice.
double RoundToFormat(const Format& format, double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), format.min_exponent);
  const int shift = exponent - (format.digits - 1);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -shift)), shift);
  if (std::fabs(rounded) <= format.largest) return rounded;
  return std::copysign(std::numeric_limits<double>::infinity(), value);
}

uint16_t PackBF16(double value) {
  if (std::isnan(value)) return 0x7fc0;
  const float rounded = static_cast<float>(RoundToFormat(kBF16, value));
  uint32_t bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

double UnpackBF16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint16_t PackF16(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7e00;
  const double size = std::fabs(RoundToFormat(kF16, value));
  if (std::isinf(size)) return sign | 0x7c00;
  if (size < std::ldexp(1, -14)) return sign | static_cast<uint16_t>(std::ldexp(size, 24));
  const int exponent = std::ilogb(size);
  const auto fraction = static_cast<uint16_t>((std::ldexp(size, -exponent) - 1) * 1024);
  return sign | static_cast<uint16_t>((exponent + 15) << 10) | fraction;
}

double UnpackF16(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  double size;
  if (exponent == 31) {
    size = fraction == 0 ? std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    size = std::ldexp(fraction, -24);
  } else {
    size = std::ldexp(1024 + fraction, exponent - 25);
  }
  return (half & 0x8000) != 0 ? -size : size;
}

template <class T>
void AppendBytes(T value, std::string* bytes) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof value);
  bytes->append(raw, sizeof value);
}

template <class T>
T Clamp(double value) {
  if (std::isnan(value)) return 0;
  if (value >= static_cast<double>(std::numeric_limits<T>::max()))
    return std::numeric_limits<T>::max();
  if (value <= static_cast<double>(std::numeric_limits<T>::min()))
    return std::numeric_limits<T>::min();
  return static_cast<T>(value);
}

template <class T>
T Load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

double Decode(v1::DType dtype, const char* from) {
  switch (dtype) {
    case v1::F32:
      return Load<float>(from);
    case v1::BF16:
      return UnpackBF16(Load<uint16_t>(from));
    case v1::F16:
      return UnpackF16(Load<uint16_t>(from));
    case v1::I32:
      return Load<int32_t>(from);
    case v1::I64:
      return static_cast<double>(Load<int64_t>(from));
    case v1::U8:
      return Load<uint8_t>(from);
    default:
      return 0;
  }
}

}  // namespace

v1::DType DTypeFromName(absl::string_view name) {
  for (const v1::DType dtype : {v1::F32, v1::BF16, v1::F16, v1::I32, v1::I64, v1::U8}) {
    if (DTypeName(dtype) == name) return dtype;
  }
  return v1::DTYPE_UNSPECIFIED;
}

std::string DTypeName(v1::DType dtype) {
  switch (dtype) {
    case v1::F32:
      return "f32";
    case v1::BF16:
      return "bf16";
    case v1::F16:
      return "f16";
    case v1::I32:
      return "i32";
    case v1::I64:
      return "i64";
    case v1::U8:
      return "u8";
    default:
      return "?";
  }
}

int DTypeSize(v1::DType dtype) {
  switch (dtype) {
    case v1::F32:
    case v1::I32:
      return 4;
    case v1::BF16:
    case v1::F16:
      return 2;
    case v1::I64:
      return 8;
    case v1::U8:
      return 1;
    default:
      return 0;
  }
}

bool IsReal(v1::DType dtype) { return dtype == v1::F32 || dtype == v1::BF16 || dtype == v1::F16; }

double RoundTo(v1::DType dtype, double value) {
  switch (dtype) {
    case v1::F32:
      return static_cast<float>(value);
    case v1::BF16:
      return RoundToFormat(kBF16, value);
    case v1::F16:
      return RoundToFormat(kF16, value);
    default:
      return std::trunc(value);
  }
}

void AppendElement(v1::DType dtype, double value, std::string* bytes) {
  switch (dtype) {
    case v1::F32:
      return AppendBytes(static_cast<float>(value), bytes);
    case v1::BF16:
      return AppendBytes(PackBF16(value), bytes);
    case v1::F16:
      return AppendBytes(PackF16(value), bytes);
    case v1::I32:
      return AppendBytes(Clamp<int32_t>(value), bytes);
    case v1::I64:
      return AppendBytes(Clamp<int64_t>(value), bytes);
    case v1::U8:
      return AppendBytes(Clamp<uint8_t>(value), bytes);
    default:
      return;
  }
}

void AppendInteger(v1::DType dtype, int64_t value, std::string* bytes) {
  if (dtype == v1::I64) return AppendBytes(value, bytes);
  AppendElement(dtype, static_cast<double>(value), bytes);
}

std::vector<double> DecodeElements(v1::DType dtype, absl::string_view bytes) {
  std::vector<double> values;
  const size_t size = DTypeSize(dtype);
  if (size == 0) return values;
  values.reserve(bytes.size() / size);
  for (size_t at = 0; at + size <= bytes.size(); at += size) {
    values.push_back(Decode(dtype, bytes.data() + at));
  }
  return values;
}

int64_t ElementCount(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

}  // namespace lossd::conformance
