// Stages that every operation runs before its products: fill the outputs of rows that do not count, look for wrong data.
// Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_CHECKS_H_
#define LOSSD_KERNELS_OBJECTIVES_CHECKS_H_

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/host_device.h"
#include "kernels/core/result_record.h"
#include "kernels/core/tensor_view.h"

namespace lossd {

// What the elements of an output become on a row that does not count.
enum class Fill : int32_t { kZero, kMinusOne, kVocabStats };

// Writes the outputs of rows that do not count: zero, or -1 for ids. Instances are blocks of kRows rows.
struct FillStage {
  static constexpr int kMaxOutputs = 18;
  static constexpr int64_t kRows = 128;
  static constexpr int64_t kWide = 64;  // from here on a row is enough work for a team

  struct Output {
    RowsView view;
    Fill fill = Fill::kZero;
  };
  Output outputs[kMaxOutputs];
  int32_t output_count = 0;
  int64_t rows = 0;
  const uint8_t* counted = nullptr;      // [rows]
  const ResultRecord* record = nullptr;  // nothing is written if it has an error

  // Ignores an absent view. False if there is no place left.
  bool Add(const RowsView& view, Fill fill) {
    if (!view) return true;
    if (output_count == kMaxOutputs) return false;
    outputs[output_count++] = {view, fill};
    return true;
  }
  LOSSD_HD int64_t Instances() const { return output_count == 0 ? 0 : (rows + kRows - 1) / kRows; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t instance) const {
    if (record->code != 0) return;
    const int64_t begin = instance * kRows;
    const int64_t end = begin + kRows < rows ? begin + kRows : rows;
    for (int32_t o = 0; o < output_count; ++o) {
      const RowsView& view = outputs[o].view;
      if (view.width < kWide) {
        // The team's threads share the elements of all rows.
        const int64_t elements = (end - begin) * view.width;
        for (int64_t e = team.rank(); e < elements; e += team.size()) {
          const int64_t i = begin + e / view.width;
          if (counted[i] == 0) Write(view, outputs[o].fill, i, e % view.width);
        }
        continue;
      }
      for (int64_t i = begin; i < end; ++i) {
        if (counted[i] != 0) continue;
        for (int64_t j = team.rank(); j < view.width; j += team.size()) {
          Write(view, outputs[o].fill, i, j);
        }
      }
    }
  }

 private:
  LOSSD_HD static void Write(const RowsView& view, Fill fill, int64_t i, int64_t j) {
    switch (view.dtype) {
      case DType::kF32:
        view.Row<float>(i)[j] = fill == Fill::kVocabStats && j == view.width - 1 ? -1.0f : 0.0f;
        return;
      case DType::kI32:
        view.Row<int32_t>(i)[j] = fill == Fill::kMinusOne ? -1 : 0;
        return;
      case DType::kBF16:
      case DType::kF16:
        view.Row<uint16_t>(i)[j] = 0;
        return;
      case DType::kU8:
        view.Row<uint8_t>(i)[j] = 0;
        return;
      case DType::kI64:
      case DType::kUnspecified:
        return;
    }
  }
};

enum class ElementRule : int32_t {
  kIndex,    // low <= element < high, or -1 if padding is legal
  kFinite,   // a finite real
  kAtLeast,  // finite and at least `bound`
  kAbove,    // finite and above `bound`
};

// The rule of one input's elements.
struct ElementCheck {
  RowsView view;
  ElementRule rule = ElementRule::kFinite;
  bool padding = false;
  // Elements 0 ... view.rows - 1 are used as soon as one row counts.
  bool shared = false;
  // ... and these even if none does.
  bool always = false;
  int32_t field = 0;  // FieldRule::index
  int64_t low = 0;
  int64_t high = 0;
  float bound = 0;

  LOSSD_HD bool IsLegal(int64_t row) const {
    for (int64_t j = 0; j < view.width; ++j) {
      if (rule == ElementRule::kIndex) {
        const int64_t value = view.Index(row, j);
        if ((value < low || value >= high) && !(padding && value == -1)) return false;
        continue;
      }
      const float value = view.Row<const float>(row)[j];
      // Also false for NaN.
      if (!(fabsf(value) <= FLT_MAX)) return false;
      if (rule == ElementRule::kAtLeast && !(value >= bound)) return false;
      if (rule == ElementRule::kAbove && !(value > bound)) return false;
    }
    return true;
  }
};

// INVALID_ARGUMENT of absl::StatusCode.
inline constexpr int32_t kInvalidArgumentCode = 3;
// No row is wrong.
inline constexpr int64_t kNoRow = INT64_MAX;

// Leaves an error in the record, if there is none yet. Called by one thread.
LOSSD_HD void RecordError(ResultRecord* record, int32_t field, int64_t row) {
  if (record->code != 0) return;
  record->code = kInvalidArgumentCode;
  record->field = field;
  record->row = row;
}

// The checks of [N] inputs in order, on rows that count; the first that fails leaves its field and its first wrong row in the record.
// One instance.
struct ElementCheckStage {
  static constexpr int kMaxChecks = 12;

  ElementCheck checks[kMaxChecks];
  int32_t check_count = 0;
  int64_t rows = 0;
  const uint8_t* counted = nullptr;  // [rows]
  const int64_t* count = nullptr;    // [1], rows that count
  ResultRecord* record = nullptr;

  bool Add(const ElementCheck& check) {
    if (!check.view) return true;
    if (check_count == kMaxChecks) return false;
    checks[check_count++] = check;
    return true;
  }
  LOSSD_HD int64_t Instances() const { return check_count == 0 ? 0 : 1; }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t) const {
    for (int32_t c = 0; c < check_count; ++c) {
      const ElementCheck& check = checks[c];
      const int64_t end = !check.shared ? rows : check.always || *count > 0 ? check.view.rows : 0;
      int64_t wrong = kNoRow;
      for (int64_t i = team.rank(); i < end; i += team.size()) {
        if (!check.shared && counted[i] == 0) continue;
        if (!check.IsLegal(i)) {
          wrong = i;
          break;
        }
      }
      wrong = team.Min(wrong);
      if (wrong == kNoRow) continue;
      if (team.rank() == 0) RecordError(record, check.field, wrong);
      return;
    }
  }
};

// cu_seqlens must rise from 0 to the number of rows; then the checks of [B] inputs, on sequences that have a row that counts.
// Without cu_seqlens all rows are one sequence. One instance.
struct SequenceCheckStage {
  static constexpr int kMaxChecks = 6;

  RowsView cu_seqlens;  // [B + 1], may be absent
  int32_t field = 0;    // of cu_seqlens
  int64_t sequences = 1;
  ElementCheck checks[kMaxChecks];
  int32_t check_count = 0;
  int64_t rows = 0;
  const uint8_t* counted = nullptr;  // [rows]
  ResultRecord* record = nullptr;

  bool Add(const ElementCheck& check) {
    if (!check.view) return true;
    if (check_count == kMaxChecks) return false;
    checks[check_count++] = check;
    return true;
  }
  LOSSD_HD int64_t Instances() const { return cu_seqlens || check_count > 0 ? 1 : 0; }

  LOSSD_HD int64_t Begin(int64_t sequence) const {
    return cu_seqlens ? cu_seqlens.Index(sequence) : 0;
  }
  LOSSD_HD int64_t End(int64_t sequence) const {
    return cu_seqlens ? cu_seqlens.Index(sequence + 1) : rows;
  }

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t) const {
    if (cu_seqlens) {
      int64_t wrong = kNoRow;
      for (int64_t b = team.rank(); b <= sequences; b += team.size()) {
        const int64_t value = cu_seqlens.Index(b);
        const bool legal = b == 0           ? value == 0
                           : b == sequences ? value == rows && value >= cu_seqlens.Index(b - 1)
                                            : value >= cu_seqlens.Index(b - 1) && value <= rows;
        // With no sequence the one element is first and last.
        if (legal && (b != 0 || sequences > 0 || rows == 0)) continue;
        wrong = b;
        break;
      }
      wrong = team.Min(wrong);
      if (wrong != kNoRow) {
        if (team.rank() == 0) RecordError(record, field, wrong);
        return;
      }
    }
    for (int32_t c = 0; c < check_count; ++c) {
      int64_t wrong = kNoRow;
      for (int64_t b = team.rank(); b < sequences; b += team.size()) {
        if (checks[c].IsLegal(b) || !IsUsed(b)) continue;
        wrong = b;
        break;
      }
      wrong = team.Min(wrong);
      if (wrong == kNoRow) continue;
      if (team.rank() == 0) RecordError(record, checks[c].field, wrong);
      return;
    }
  }

 private:
  LOSSD_HD bool IsUsed(int64_t sequence) const {
    for (int64_t i = Begin(sequence); i < End(sequence); ++i) {
      if (counted[i] != 0) return true;
    }
    return false;
  }
};

// The record to where the client reads it. One instance.
struct RecordCopyStage {
  const ResultRecord* from = nullptr;
  ResultRecord* to = nullptr;

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t) const {
    constexpr int kWords = sizeof(ResultRecord) / sizeof(int64_t);
    for (int w = team.rank(); w < kWords; w += team.size()) {
      reinterpret_cast<int64_t*>(to)[w] = reinterpret_cast<const int64_t*>(from)[w];
    }
  }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_CHECKS_H_
