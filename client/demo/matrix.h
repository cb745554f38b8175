// Products of small matrices, all row-major without gaps.
#ifndef LOSSD_CLIENT_DEMO_MATRIX_H_
#define LOSSD_CLIENT_DEMO_MATRIX_H_

#include <cstdint>

namespace lossd::demo {

// c[rows, columns] = a[rows, inner] b[inner, columns], added to c if `accumulate`. columns must be a multiple of 16.
// A row of c has the same bits whatever other rows are in the call and however many threads work on it: trainer and rollout must get
// equal hidden states from different batches, and a library's product does not promise that.
void Multiply(const float* a, const float* b, float* c, int64_t rows, int64_t inner,
              int64_t columns, bool accumulate = false);

// to[columns, rows] = from[rows, columns].
void Transpose(const float* from, float* to, int64_t rows, int64_t columns);

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_MATRIX_H_
