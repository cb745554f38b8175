#include "kernels/cpu/head_rows.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <variant>

namespace lossd {
namespace {

constexpr int64_t kMaxIds = 1024;

// Column of a global id in this shard's valid part, or -1.
int64_t ColumnOf(const HeadProblem& head, int64_t id) {
  const int64_t column = id - head.vocab_start;
  return column >= 0 && column < head.valid_columns ? column : -1;
}

void SetTarget(const RowPass& shared, const LogitRow& logits, int64_t column,
               RowStatistics* stats) {
  stats->owns_target = column >= 0;
  stats->target_d = 0;
  if (column < 0) return;
  float z = 0;
  shared.sweeps->logits(logits, column, 1, &z);
  stats->target_d = stats->degenerate ? std::numeric_limits<float>::quiet_NaN() : z - stats->max;
}

RowStatistics Sweep(const RowPass& shared, const LogitRow& logits, int64_t target) {
  const HeadProblem& head = shared.pass->head;
  RowStatistics stats;
  shared.sweeps->statistics(logits, &stats);
  if (stats.argmax >= 0) stats.argmax += static_cast<int32_t>(head.vocab_start);
  if (shared.column_weight != nullptr) {
    stats.weighted_d = stats.degenerate
                           ? std::numeric_limits<float>::quiet_NaN()
                           : shared.sweeps->weighted_d(logits, stats.max, shared.column_weight);
  }
  SetTarget(shared, logits, target, &stats);
  return stats;
}

float LogprobOf(float z, const RowStatistics& stats) {
  RowStatistics at = stats;
  at.target_d = z - stats.max;
  return at.Logprob();
}

void WriteIds(const RowPass& shared, const LogitRow& logits, const RowStatistics& stats,
              int64_t row) {
  const RowColumns& columns = shared.pass->columns;
  float* out = columns.ids_logprob.Row<float>(row);
  for (int64_t k = 0; k < columns.ids.width; ++k) {
    const int64_t column = ColumnOf(shared.pass->head, columns.ids.Index(row, k));
    out[k] = 0;
    if (column < 0) continue;
    float z = 0;
    shared.sweeps->logits(logits, column, 1, &z);
    out[k] = LogprobOf(z, stats);
  }
}

// Keeps the largest logits sorted while it reads: a later one that equals the last does not displace it, so ties go to smaller ids.
void WriteTopK(const RowPass& shared, const LogitRow& logits, const RowStatistics& stats,
               int64_t row) {
  constexpr int64_t kBlock = 64;
  const RowColumns& columns = shared.pass->columns;
  const int64_t wanted = columns.topk_ids ? columns.topk_ids.width : columns.topk_logprob.width;
  float values[kMaxIds];
  int32_t ids[kMaxIds];
  int64_t found = 0;
  float block[kBlock];
  for (int64_t begin = 0; begin < logits.columns && !stats.degenerate; begin += kBlock) {
    const int64_t count = std::min(kBlock, logits.columns - begin);
    shared.sweeps->logits(logits, begin, count, block);
    for (int64_t j = 0; j < count; ++j) {
      if (found == wanted && !(block[j] > values[wanted - 1])) continue;
      const int64_t place =
          std::upper_bound(values, values + found, block[j], std::greater<float>()) - values;
      found = std::min(found + 1, wanted);
      std::copy_backward(values + place, values + found - 1, values + found);
      std::copy_backward(ids + place, ids + found - 1, ids + found);
      values[place] = block[j];
      ids[place] = static_cast<int32_t>(shared.pass->head.vocab_start + begin + j);
    }
  }
  for (int64_t k = 0; k < wanted; ++k) {
    if (columns.topk_ids) columns.topk_ids.Row<int32_t>(row)[k] = k < found ? ids[k] : -1;
    if (columns.topk_logprob) {
      columns.topk_logprob.Row<float>(row)[k] =
          k < found ? LogprobOf(values[k], stats) : std::numeric_limits<float>::quiet_NaN();
    }
  }
}

// What d_ids_logprob adds to single columns; collected before the logits are overwritten.
struct IdGradients {
  int64_t count = 0;
  int64_t column[kMaxIds];
  float value[kMaxIds];
};

void CollectIds(const RowPass& shared, const LogitRow& logits, int64_t row, IdGradients* out) {
  const RowColumns& columns = shared.pass->columns;
  if (!columns.d_ids_logprob) return;
  const float* d = columns.d_ids_logprob.Row<const float>(row);
  for (int64_t k = 0; k < columns.ids.width; ++k) {
    const int64_t column = ColumnOf(shared.pass->head, columns.ids.Index(row, k));
    if (column < 0 || d[k] == 0) continue;
    out->column[out->count] = column;
    out->value[out->count++] = d[k] * shared.sweeps->slope(logits, column);
  }
}

template <class Program>
bool RunProgram(const Program& program, const RowPass& shared, int64_t row, float* raw) {
  const HeadPass& pass = *shared.pass;
  const HeadProblem& head = pass.head;
  LogitRow logits;
  logits.raw = raw;
  logits.bias = shared.bias;
  logits.columns = head.valid_columns;
  logits.logit_scale = head.logit_scale;
  logits.softcap = head.softcap;
  logits.inverse_temperature = 1 / head.Temperature(row);
  const int64_t target = head.target ? ColumnOf(head, head.target.Index(row)) : -1;

  RowStatistics stats;
  if constexpr (Program::kKnowsStatistics) {
    stats = program.KnownStatistics(row);
    stats.owns_target = target >= 0;
  } else {
    stats = Sweep(shared, logits, target);
  }
  const RowCoefficients coefficients = program.Row(row, stats);
  if (pass.columns.ids_logprob) WriteIds(shared, logits, stats, row);
  if (pass.columns.topk_ids || pass.columns.topk_logprob) WriteTopK(shared, logits, stats, row);
  if (!shared.gradients) return false;

  IdGradients ids;
  CollectIds(shared, logits, row, &ids);
  if (coefficients.IsZero() && ids.count == 0) return false;
  GradientRow gradient;
  gradient.max = stats.max;
  gradient.sum_exp = stats.sum_exp;
  gradient.coefficients = coefficients;
  gradient.target = target;
  gradient.column_weight = shared.column_weight;
  if (coefficients.IsZero()) {
    std::fill(raw, raw + logits.columns, 0.0f);
  } else {
    shared.sweeps->gradient(logits, gradient);
  }
  for (int64_t k = 0; k < ids.count; ++k) raw[ids.column[k]] += ids.value[k];
  return true;
}

}  // namespace

bool RunRow(const RowPass& shared, int64_t row, float* logits) {
  return std::visit([&](const auto& program) { return RunProgram(program, shared, row, logits); },
                    shared.pass->program);
}

}  // namespace lossd
