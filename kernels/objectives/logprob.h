// Row programs of LinearLogprob and LinearLogprobBackward. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_LOGPROB_H_
#define LOSSD_KERNELS_OBJECTIVES_LOGPROB_H_

#include <cmath>
#include <cstdint>

#include "kernels/core/host_device.h"
#include "kernels/core/result_record.h"
#include "kernels/core/tensor_view.h"
#include "kernels/objectives/row.h"

namespace lossd {

// Columns of vocab_stats.
enum VocabStatsColumn : int {
  kStatsMax,
  kStatsSumExp,
  kStatsSumExpD,
  kStatsSumExp2,
  kStatsSumD,
  kStatsColumns,
  kStatsTargetD,
  kStatsOwnsTarget,
  kStatsArgmax,
  kVocabStatsWidth
};

// Writes the statistics that the request asks for; no gradient.
struct LogprobRows {
  static constexpr bool kKnowsStatistics = false;

  RowsView target;  // may be absent
  int64_t valid_vocab = 0;
  int64_t valid_columns = 0;  // of this shard
  // Outputs, each may be absent.
  RowsView logprob;
  RowsView lse;
  RowsView entropy;
  RowsView lse2;
  RowsView log_sum_p2;
  RowsView argmax;
  RowsView correct;
  RowsView max_prob;
  RowsView mean_logit;
  RowsView vocab_stats;
  uint8_t* degenerate = nullptr;  // [N], workspace

  LOSSD_HD RowStatistics KnownStatistics(int64_t) const { return RowStatistics(); }

  LOSSD_HD RowCoefficients Row(int64_t row, const RowStatistics& stats) const {
    Write(row, stats);
    return RowCoefficients();
  }

  LOSSD_HD RowCoefficients Coefficients(int64_t, const RowStatistics&) const {
    return RowCoefficients();
  }
  LOSSD_HD void Write(int64_t row, const RowStatistics& stats) const {
    if (logprob) logprob.SetF32(row, stats.Logprob());
    if (lse) lse.SetF32(row, stats.Lse());
    if (entropy) entropy.SetF32(row, stats.Entropy());
    if (lse2) lse2.SetF32(row, stats.Lse2());
    if (log_sum_p2) log_sum_p2.SetF32(row, stats.LogSumP2());
    if (argmax) argmax.SetI32(row, stats.argmax);
    if (correct) correct.SetU8(row, stats.argmax >= 0 && stats.argmax == target.Index(row) ? 1 : 0);
    if (max_prob) max_prob.SetF32(row, stats.MaxProb());
    if (mean_logit) mean_logit.SetF32(row, stats.MeanLogit(valid_vocab));
    if (vocab_stats) WriteShard(vocab_stats.Row<float>(row), stats);
    degenerate[row] = IsDegenerate(stats) ? 1 : 0;
  }

 private:
  // A shard whose columns are all -infinity says nothing yet about the whole row.
  LOSSD_HD bool IsDegenerate(const RowStatistics& stats) const {
    return stats.degenerate && !(valid_columns < valid_vocab && IsEmptyShard(stats));
  }
  LOSSD_HD static bool IsEmptyShard(const RowStatistics& stats) {
    return stats.max < 0 && std::isinf(stats.max);
  }

  LOSSD_HD void WriteShard(float* out, const RowStatistics& stats) const {
    const bool empty = IsEmptyShard(stats);
    out[kStatsMax] = stats.max;
    out[kStatsSumExp] = empty ? 0 : stats.sum_exp;
    out[kStatsSumExpD] = empty ? 0 : stats.sum_exp_d;
    out[kStatsSumExp2] = empty ? 0 : stats.sum_exp_2;
    out[kStatsSumD] = empty ? 0 : stats.sum_d;
    out[kStatsColumns] = static_cast<float>(valid_columns);
    // The owner's merge adds m_r = -infinity to it.
    out[kStatsTargetD] = empty ? 0 : stats.target_d;
    out[kStatsOwnsTarget] = stats.owns_target ? 1 : 0;
    out[kStatsArgmax] = static_cast<float>(stats.argmax);
  }
};

// Counts rows, and those that are degenerate if `degenerate` is given. One instance.
struct LogprobEndStage {
  int64_t rows = 0;
  const uint8_t* counted = nullptr;     // [rows]
  const uint8_t* degenerate = nullptr;  // [rows], written on rows that count; may be null
  ResultRecord* record = nullptr;

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t) const {
    int64_t count = 0;
    int64_t bad = 0;
    if (record->code == 0) {
      for (int64_t i = team.rank(); i < rows; i += team.size()) {
        if (counted[i] == 0) continue;
        ++count;
        if (degenerate != nullptr) bad += degenerate[i];
      }
    }
    count = team.Sum(count);
    bad = team.Sum(bad);
    if (team.rank() != 0) return;
    record->count = count;
    record->degenerate_rows = bad;
  }
};

// Derivatives of a loss with respect to a row's statistics.
template <class Real>
struct StatisticsGradient {
  Real logprob = 0;
  Real entropy = 0;
  Real lse = 0;
  Real mean_logit = 0;
  Real ids = 0;  // sum over the row's ids
};

// Coefficients of the row's logits gradient. With l = lse, z the logits, p = exp(z - l):
//   d logprob = [j = y] - p,  d entropy = -p (log p + H),  d lse = p,  d mean_logit = 1 / K,  d ids_logprob_k = [j = id_k] - p.
template <class Real, class Coefficients>
LOSSD_HD void LogprobCoefficients(const StatisticsGradient<Real>& d, Real inverse_valid,
                                  Coefficients* out) {
  out->c = d.lse - d.logprob - d.ids;
  out->a = -d.logprob;
  out->u = -d.mean_logit * inverse_valid;
  out->h = d.entropy;
}

// Takes the forward call's lse and the derivatives; no sweep for statistics.
struct BackwardRows {
  static constexpr bool kKnowsStatistics = true;

  int64_t valid_vocab = 0;
  RowsView lse;
  // Each may be absent.
  RowsView entropy;
  RowsView d_logprob;
  RowsView d_entropy;
  RowsView d_lse;
  RowsView d_mean_logit;
  RowsView ids;  // with d_ids_logprob
  RowsView d_ids_logprob;

  LOSSD_HD RowStatistics KnownStatistics(int64_t row) const {
    RowStatistics stats;
    stats.max = lse.F32(row);
    stats.sum_exp = 1;
    return stats;
  }

  LOSSD_HD RowCoefficients Row(int64_t row, const RowStatistics& stats) const {
    return Coefficients(row, stats);
  }

  LOSSD_HD RowCoefficients Coefficients(int64_t row, const RowStatistics&) const {
    StatisticsGradient<float> d;
    if (d_logprob) d.logprob = d_logprob.F32(row);
    if (d_entropy) d.entropy = d_entropy.F32(row);
    if (d_lse) d.lse = d_lse.F32(row);
    if (d_mean_logit) d.mean_logit = d_mean_logit.F32(row);
    if (d_ids_logprob) {
      for (int64_t k = 0; k < ids.width; ++k) {
        if (ids.Index(row, k) >= 0) d.ids += d_ids_logprob.Row<const float>(row)[k];
      }
    }
    RowCoefficients out;
    LogprobCoefficients(d, 1.0f / static_cast<float>(valid_vocab), &out);
    out.entropy = entropy ? entropy.F32(row) : 0;
    return out;
  }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_LOGPROB_H_
