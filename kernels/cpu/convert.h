// Between the 16-bit formats and fp32: exact one way, to nearest even the other.
#ifndef LOSSD_KERNELS_CPU_CONVERT_H_
#define LOSSD_KERNELS_CPU_CONVERT_H_

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/tensor_view.h"

namespace lossd {

float FromBF16(uint16_t bits);
float FromF16(uint16_t bits);
uint16_t ToBF16(float value);
uint16_t ToF16(float value);

// `count` elements of a model dtype from `source` as fp32.
void LoadAsF32(const void* source, DType dtype, int64_t count, float* to);
// The reverse; with `accumulate` the sum of the old element and the value is rounded.
void StoreFromF32(const float* from, int64_t count, bool accumulate, DType dtype, void* to);

// The same for row `row` of a matrix.
void LoadRow(const RowsView& view, int64_t row, float* to);
void StoreRow(const float* from, bool accumulate, const RowsView& view, int64_t row);

// Whether the rows of an fp32 matrix lie at equal distances of at least a row: a product reads or writes it in place.
bool IsPlainF32(const RowsView& view);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_CONVERT_H_
