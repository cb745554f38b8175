// The head problem in plain numbers and pointers: what kernels read. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_LINEAR_HEAD_H_
#define LOSSD_KERNELS_LINEAR_HEAD_H_

#include <cmath>
#include <cstdint>

#include "kernels/core/result_record.h"
#include "kernels/core/tensor_view.h"

namespace lossd {

// Logits and rows of one call. Every view lies on the call's device and is borrowed for it.
struct HeadProblem {
  int64_t rows = 0;         // N
  int64_t hidden_size = 0;  // H
  int64_t vocab = 0;        // V, rows of weight held here
  int64_t vocab_start = 0;  // global id of column 0
  int64_t vocab_total = 0;
  int64_t valid_vocab = 0;    // K, global: ids from K on do not exist
  int64_t valid_columns = 0;  // valid ids among the columns held here
  RowsView hidden;            // [N, H] model dtype
  RowsView weight;            // [V, H] model dtype
  RowsView bias;              // [V] model dtype, may be absent
  RowsView logits;            // [N, V] model dtype, in place of the three above
  RowsView target;            // [N] i32 or i64, may be absent
  RowsView mask;              // [N] u8, may be absent
  RowsView temperature_rows;  // [N] f32, may be absent
  int64_t ignore_index = -100;
  float logit_scale = 1;
  float softcap = 0;  // 0 = off
  float temperature = 1;

  LOSSD_HD float Temperature(int64_t row) const {
    return temperature_rows ? temperature_rows.F32(row) : temperature;
  }
  LOSSD_HD bool IsCounted(int64_t row) const {
    return (!mask || mask.Mask(row)) && (!target || target.Index(row) != ignore_index);
  }
};

// raw logit (product plus bias) -> z, without the cut at valid_vocab.
LOSSD_HD float TransformLogit(const HeadProblem& head, float raw, float inverse_temperature) {
  float s = head.logit_scale * raw;
  if (head.softcap > 0) s = head.softcap * tanhf(s / head.softcap);
  return s * inverse_temperature;
}

// The rows that count, in order. On a GPU the arrays lie in device memory.
struct RowSet {
  // [N]: the first *count entries are row numbers, the others -1. Without a host_count: i on a row that counts, else -1.
  int32_t* index = nullptr;
  uint8_t* counted = nullptr;  // [N]
  int64_t* count = nullptr;    // [1]
  int64_t host_count =
      -1;  // the same where the host knows it; -1: it does not, and N rows are computed
};

enum class GradMode : int32_t { kOverwrite, kAccumulate };

// Destinations of the products, or of dz itself; absent views are not computed.
struct HeadGradients {
  RowsView hidden;  // [N, H]
  RowsView weight;  // [V, H]
  RowsView bias;    // [V]
  // [N, V] model dtype, of a problem with logits, on which it may lie element by element.
  RowsView logits;
  GradMode weight_mode = GradMode::kOverwrite;
  GradMode bias_mode = GradMode::kOverwrite;

  bool any() const { return hidden || weight || bias || logits; }
};

// Outputs and inputs that speak of single columns. Absent views cost nothing.
struct RowColumns {
  RowsView ids;            // [N, K] i32 or i64, -1 is padding
  RowsView ids_logprob;    // [N, K] f32, out
  RowsView topk_ids;       // [N, top_k] i32, out
  RowsView topk_logprob;   // [N, top_k] f32, out
  RowsView d_ids_logprob;  // [N, K] f32, in: dz gains it at ids
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_LINEAR_HEAD_H_
