#include "kernels/cpu/convert.h"

#include <cstring>

namespace lossd {
namespace {

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float BF16Value(uint16_t bits) { return FloatOf(static_cast<uint32_t>(bits) << 16); }

// Exponent and fraction moved into place are the value times 2^-112, also for subnormal numbers; a product sets it right.
inline float F16Value(uint16_t bits) {
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t scaled = BitsOf(FloatOf(magnitude) * 0x1p112f);
  // Infinity and NaN have the largest exponent in both formats.
  const uint32_t special = magnitude | 0x7f800000u;
  return FloatOf(((bits & 0x7c00) == 0x7c00 ? special : scaled) | sign);
}

inline uint16_t BF16Bits(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;  // a NaN stays one
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

inline uint16_t F16Bits(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t result;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    result = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: 0.5 has the fraction's unit at 2^-24
    result = BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f);
  } else {
    result = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<uint16_t>(result | sign);
}

template <uint16_t (*Bits)(float), float (*Value)(uint16_t)>
void Store16(const float* from, int64_t count, bool accumulate, uint16_t* to) {
  if (accumulate) {
    for (int64_t i = 0; i < count; ++i) to[i] = Bits(Value(to[i]) + from[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = Bits(from[i]);
  }
}

}  // namespace

float FromBF16(uint16_t bits) { return BF16Value(bits); }
float FromF16(uint16_t bits) { return F16Value(bits); }
uint16_t ToBF16(float value) { return BF16Bits(value); }
uint16_t ToF16(float value) { return F16Bits(value); }

void LoadAsF32(const void* source, DType dtype, int64_t count, float* to) {
  const auto* half = static_cast<const uint16_t*>(source);
  if (dtype == DType::kF32) {
    if (count > 0) std::memcpy(to, source, count * sizeof(float));
  } else if (dtype == DType::kBF16) {
    for (int64_t i = 0; i < count; ++i) to[i] = BF16Value(half[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = F16Value(half[i]);
  }
}

void StoreFromF32(const float* from, int64_t count, bool accumulate, DType dtype, void* to) {
  if (dtype == DType::kF32) {
    auto* out = static_cast<float*>(to);
    for (int64_t i = 0; i < count; ++i) out[i] = accumulate ? out[i] + from[i] : from[i];
  } else if (dtype == DType::kBF16) {
    Store16<BF16Bits, BF16Value>(from, count, accumulate, static_cast<uint16_t*>(to));
  } else {
    Store16<F16Bits, F16Value>(from, count, accumulate, static_cast<uint16_t*>(to));
  }
}

void LoadRow(const RowsView& view, int64_t row, float* to) {
  LoadAsF32(static_cast<const char*>(view.data) + view.Offset(row) * SizeOf(view.dtype), view.dtype,
            view.width, to);
}

void StoreRow(const float* from, bool accumulate, const RowsView& view, int64_t row) {
  StoreFromF32(from, view.width, accumulate, view.dtype,
               static_cast<char*>(view.data) + view.Offset(row) * SizeOf(view.dtype));
}

bool IsPlainF32(const RowsView& view) {
  return view.present && view.dtype == DType::kF32 && view.lead_rank == 1 &&
         (view.lead_strides[0] >= view.width || view.rows <= 1);
}

}  // namespace lossd
