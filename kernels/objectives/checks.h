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

  // A row that does not count, by one thread.
  LOSSD_HD_CALLED void FillRow(int64_t i) const {
    for (int32_t o = 0; o < output_count; ++o) {
      const RowsView& view = outputs[o].view;
      for (int64_t j = 0; j < view.width; ++j) Write(view, outputs[o].fill, i, j);
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
      if (!IsLegalReal(view.Row<const float>(row)[j])) return false;
    }
    return true;
  }
  // Also false for NaN.
  LOSSD_HD bool IsLegalReal(float value) const {
    if (!(fabsf(value) <= FLT_MAX)) return false;
    if (rule == ElementRule::kAtLeast && !(value >= bound)) return false;
    return rule != ElementRule::kAbove || value > bound;
  }
  // One real for each row.
  LOSSD_HD bool IsRealColumn() const {
    return !shared && rule != ElementRule::kIndex && view.width == 1;
  }
};

// INVALID_ARGUMENT of absl::StatusCode.
inline constexpr int32_t kInvalidArgumentCode = 3;
// No row is wrong.
inline constexpr int64_t kNoRow = INT64_MAX;

// A check that fails, and its row, as one number: the least is the one that is reported.
inline constexpr int64_t kNoError = INT64_MAX;
LOSSD_HD int64_t ErrorKey(int32_t check, int64_t row) { return int64_t{check} << 48 | row; }
LOSSD_HD int32_t CheckOf(int64_t key) { return static_cast<int32_t>(key >> 48); }
LOSSD_HD int64_t RowOf(int64_t key) { return key & ((int64_t{1} << 48) - 1); }

// The least errors of the rows that somebody has looked at.
struct FoundErrors {
  int64_t certain = kNoError;
  int64_t if_any_counts = kNoError;  // of elements that are used as soon as one row counts

  // `count`: of the rows that count in the whole call.
  LOSSD_HD int64_t First(int64_t count) const {
    return count > 0 && if_any_counts < certain ? if_any_counts : certain;
  }
};
LOSSD_HD void KeepLeast(int64_t key, int64_t* least) {
  if (key < *least) *least = key;
}

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
  static constexpr int kTogether = 4;  // checks whose elements of a row are under way at once

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
    FoundErrors found;
    Find(
        team.rank(), team.size(), [this](int64_t i) { return counted[i] != 0; }, &found);
    const int64_t key = team.Min(found.First(*count));
    if (key != kNoError && team.rank() == 0) RecordError(record, FieldOf(CheckOf(key)), RowOf(key));
  }

  // The errors of rows first, first + step, ... `is_counted`: of a row.
  template <class IsCounted>
  LOSSD_HD void Find(int64_t first, int64_t step, const IsCounted& is_counted,
                     FoundErrors* found) const {
    for (int32_t c = 0; c < check_count; c += kTogether) {
      for (int64_t i = first; i < rows; i += step) {
        float values[kTogether];
        for (int k = 0; k < kTogether; ++k) {
          values[k] = c + k < check_count && checks[c + k].IsRealColumn()
                          ? checks[c + k].view.F32(i)
                          : 0.0f;
        }
        for (int k = 0; k < kTogether; ++k) {
          if (c + k >= check_count || checks[c + k].shared) continue;
          const ElementCheck& check = checks[c + k];
          const bool legal = check.IsRealColumn() ? check.IsLegalReal(values[k]) : check.IsLegal(i);
          if (!legal && is_counted(i)) KeepLeast(ErrorKey(c + k, i), &found->certain);
        }
      }
    }
    for (int32_t c = 0; c < check_count; ++c) {
      if (!checks[c].shared) continue;
      int64_t* least = checks[c].always ? &found->certain : &found->if_any_counts;
      for (int64_t i = first; i < checks[c].view.rows; i += step) {
        if (!checks[c].IsLegal(i)) KeepLeast(ErrorKey(c, i), least);
      }
    }
  }
  LOSSD_HD int32_t FieldOf(int32_t check) const { return checks[check].field; }
};

// cu_seqlens must rise from 0 to the number of rows; then the checks of [B] inputs, on sequences that have a row that counts.
// Without cu_seqlens all rows are one sequence. One instance.
struct SequenceCheckStage {
  static constexpr int kMaxChecks = 6;
  // In ErrorKey: cu_seqlens, then the others.
  static constexpr int32_t kFirstCheck = ElementCheckStage::kMaxChecks;

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

  template <class Team>
  LOSSD_HD void Run(Team& team, int64_t) const {
    FoundErrors found;
    Find(
        team.rank(), team.size(), [this](int64_t i) { return counted[i] != 0; }, &found);
    const int64_t key = team.Min(found.certain);
    if (key != kNoError && team.rank() == 0) RecordError(record, FieldOf(CheckOf(key)), RowOf(key));
  }

  // The errors of sequences first, first + step, ... `is_counted`: of a row.
  template <class IsCounted>
  LOSSD_HD void Find(int64_t first, int64_t step, const IsCounted& is_counted,
                     FoundErrors* found) const {
    if (cu_seqlens) {
      for (int64_t b = first; b <= sequences; b += step) {
        if (!IsLegalBound(b)) KeepLeast(ErrorKey(kFirstCheck, b), &found->certain);
      }
    }
    for (int32_t c = 0; c < check_count; ++c) {
      for (int64_t b = first; b < sequences; b += step) {
        if (checks[c].IsLegal(b) || !IsUsed(b, is_counted)) continue;
        KeepLeast(ErrorKey(kFirstCheck + 1 + c, b), &found->certain);
      }
    }
  }
  LOSSD_HD int32_t FieldOf(int32_t check) const {
    return check == kFirstCheck ? field : checks[check - kFirstCheck - 1].field;
  }

 private:
  LOSSD_HD bool IsLegalBound(int64_t b) const {
    const int64_t value = cu_seqlens.Index(b);
    // With no sequence the one element is first and last.
    if (b == 0) return value == 0 && (sequences > 0 || rows == 0);
    if (value < cu_seqlens.Index(b - 1)) return false;
    return b == sequences ? value == rows : value <= rows;
  }
  // Reads no row outside the call whatever cu_seqlens holds: it may be what is reported.
  template <class IsCounted>
  LOSSD_HD bool IsUsed(int64_t sequence, const IsCounted& is_counted) const {
    const int64_t begin = cu_seqlens ? cu_seqlens.Index(sequence) : 0;
    const int64_t end = cu_seqlens ? cu_seqlens.Index(sequence + 1) : rows;
    for (int64_t i = begin < 0 ? 0 : begin; i < end && i < rows; ++i) {
      if (is_counted(i)) return true;
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
