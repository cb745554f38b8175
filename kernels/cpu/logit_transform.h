// From a raw logit to z and the derivative of z, a group of columns at a time.
#ifndef LOSSD_KERNELS_CPU_LOGIT_TRANSFORM_H_
#define LOSSD_KERNELS_CPU_LOGIT_TRANSFORM_H_

#include <cstdint>

#include "kernels/cpu/sweeps.h"
#include "kernels/cpu/vector_math.h"

namespace lossd {

struct Transformed {
  vec::F32 z;
  vec::F32 slope;  // dz / draw
};

template <bool kCap>
LOSSD_VEC Transformed Transform(const LogitRow& row, int64_t j, vec::F32 raw) {
  if (row.bias != nullptr) raw += vec::Load(row.bias + j);
  const vec::F32 scaled = row.logit_scale * raw;
  Transformed out;
  if (kCap) {
    const vec::TanhParts parts = vec::Tanh(scaled / row.softcap);
    out.z = row.softcap * parts.tanh * row.inverse_temperature;
    out.slope = parts.slope * (row.logit_scale * row.inverse_temperature);
  } else {
    out.z = scaled * row.inverse_temperature;
    out.slope = vec::Splat(row.logit_scale * row.inverse_temperature);
  }
  return out;
}

template <bool kCap>
LOSSD_VEC vec::F32 LogitsAt(const LogitRow& row, int64_t j) {
  return Transform<kCap>(row, j, vec::Load(row.raw + j)).z;
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_LOGIT_TRANSFORM_H_
