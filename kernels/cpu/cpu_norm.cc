// CpuLayers: norms.
#include <algorithm>

#include "kernels/core/status_macros.h"
#include "kernels/cpu/cpu_layers.h"
#include "kernels/cpu/layer_pieces.h"
#include "kernels/cpu/sweeps.h"

namespace lossd {
namespace {

// Sums over rows are made by so many parts of the rows, each by one thread, whatever the number of threads.
constexpr int64_t kRowParts = 32;
// A part has at least so many elements.
constexpr int64_t kPartElements = 1 << 15;

int64_t RoundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// A [H] tensor as fp32 with `offset` added, and something readable up to the next group of columns. Null if it is absent.
absl::StatusOr<float*> LoadColumns(const RowsView& view, float offset, const char* what,
                                   Arena& arena) {
  if (!view) return nullptr;
  const int64_t padded = RoundUp(view.rows, kColumnGroup);
  LOSSD_ASSIGN_OR_RETURN(float* columns, arena.AllocateArray<float>(padded, what));
  for (int64_t j = 0; j < view.rows; ++j) {
    LoadAsF32(static_cast<const char*>(view.data) +
                  view.Offset(j) * static_cast<int64_t>(SizeOf(view.dtype)),
              view.dtype, 1, columns + j);
    columns[j] += offset;
  }
  std::fill(columns + view.rows, columns + padded, 0.0f);
  return columns;
}

// Adds the parts' sums of columns begin ... end - 1 in the order of the parts and writes them, or adds them to what is there.
void FinishColumns(const float* parts, int64_t count, int64_t stride, const RowsView& to,
                   bool accumulate, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; ++j) {
    double sum = 0;
    for (int64_t part = 0; part < count; ++part) sum += parts[part * stride + j];
    const auto value = static_cast<float>(sum);
    StoreFromF32(
        &value, 1, accumulate, to.dtype,
        static_cast<char*>(to.data) + to.Offset(j) * static_cast<int64_t>(SizeOf(to.dtype)));
  }
}

// One row of a norm at a time, on one thread.
class NormRow {
 public:
  NormRow(const NormForward& problem, const LayerSweeps& sweeps, const float* weight,
          const float* bias)
      : problem_(problem), sweeps_(sweeps), weight_(weight), bias_(bias) {}

  void Run(int64_t row) {
    const int64_t width = problem_.width;
    const auto columns = static_cast<float>(width);
    double sum = 0;
    const bool layer = problem_.options.kind == NormKind::kLayer;
    const auto sum_about = [&](bool first, float center) {
      double total = 0;
      for (int64_t piece = 0; piece < PiecesOf(width); ++piece) {
        const int64_t here = PieceWidth(width, piece);
        Load(row, piece, here, first);
        total += first && layer ? sweeps_.sum(x_.values, here)
                                : sweeps_.sum_squares(x_.values, center, here);
      }
      return total;
    };
    sum = sum_about(true, 0);
    float mean = 0;
    if (layer) {
      mean = static_cast<float>(sum / columns);
      sum = sum_about(false, mean);
    }
    const float rstd =
        InverseRoot(problem_.options, static_cast<float>(sum / columns), problem_.x.dtype);
    if (problem_.mean) problem_.mean.SetF32(row, mean);
    if (problem_.rstd) problem_.rstd.SetF32(row, rstd);
    if (!problem_.y) return;
    NormPiece piece;
    piece.x = x_.values;
    piece.mean = mean;
    piece.rstd = rstd;
    if (problem_.options.rounds_normalized) piece.rounding = RoundingOf(problem_.x.dtype);
    for (int64_t p = 0; p < PiecesOf(width); ++p) {
      piece.columns = PieceWidth(width, p);
      Load(row, p, piece.columns, false);
      piece.weight = weight_ == nullptr ? nullptr : weight_ + p * kPieceColumns;
      piece.bias = bias_ == nullptr ? nullptr : bias_ + p * kPieceColumns;
      sweeps_.norm(piece, y_.values);
      StorePiece(y_.values, problem_.y, row, p, piece.columns);
    }
  }

 private:
  // `first`: the sum with the residual is written out. Later it is read again, or made again where it was not kept as it is.
  void Load(int64_t row, int64_t piece, int64_t columns, bool first) {
    if (!first && problem_.width <= kPieceColumns) return;
    const RowsView& out = problem_.residual_out;
    if (!first && out && out.dtype == problem_.x.dtype) {
      return LoadPiece(out, row, piece, columns, x_.values);
    }
    LoadPiece(problem_.x, row, piece, columns, x_.values);
    if (!problem_.residual) return;
    LoadPiece(problem_.residual, row, piece, columns, y_.values);
    sweeps_.add(x_.values, y_.values, columns, RoundingOf(problem_.x.dtype));
    if (first && out) StorePiece(x_.values, out, row, piece, columns);
  }

  const NormForward& problem_;
  const LayerSweeps& sweeps_;
  const float* weight_;
  const float* bias_;
  PieceBuffer x_;
  PieceBuffer y_;
};

// One row of a backward pass at a time, on one thread.
class NormBackwardRow {
 public:
  // The sums are of this thread's rows; null where they are not wanted.
  NormBackwardRow(const NormBackward& problem, const LayerSweeps& sweeps, const float* weight,
                  float* weight_sums, float* bias_sums)
      : problem_(problem),
        sweeps_(sweeps),
        weight_(weight),
        weight_sums_(weight_sums),
        bias_sums_(bias_sums) {}

  void Run(int64_t row) {
    const int64_t width = problem_.width;
    const auto columns = static_cast<float>(width);
    loaded_ = false;
    piece_ = NormPiece();
    piece_.x = x_.values;
    piece_.d_y = d_y_.values;
    FindStatistics(row);
    const bool rounds = problem_.options.rounds_normalized;
    piece_.rounding = rounds ? RoundingOf(problem_.x.dtype) : Rounding::kNone;
    NormSums sums;
    if (problem_.grad_x) ForPieces(row, [&](int64_t) { sweeps_.norm_sums(piece_, &sums); });
    const bool layer = problem_.options.kind == NormKind::kLayer;
    const float by_mean = layer ? static_cast<float>(sums.m / columns) : 0;
    const auto by_dot = static_cast<float>(sums.m_n / columns);
    ForPieces(row, [&](int64_t p) {
      const int64_t at = p * kPieceColumns;
      if (problem_.sums_columns()) {
        sweeps_.norm_columns(piece_, weight_sums_ == nullptr ? nullptr : weight_sums_ + at,
                             bias_sums_ == nullptr ? nullptr : bias_sums_ + at);
      }
      if (!problem_.grad_x) return;
      const float* more = nullptr;
      if (problem_.d_residual_out) {
        LoadPiece(problem_.d_residual_out, row, p, piece_.columns, more_.values);
        more = more_.values;
      }
      sweeps_.norm_gradient(piece_, by_mean, by_dot, more, grad_.values);
      StorePiece(grad_.values, problem_.grad_x, row, p, piece_.columns);
    });
  }

 private:
  void FindStatistics(int64_t row) {
    const auto columns = static_cast<float>(problem_.width);
    const bool layer = problem_.options.kind == NormKind::kLayer;
    if (problem_.rstd) {
      piece_.rstd = problem_.rstd.F32(row);
      if (layer) piece_.mean = problem_.mean.F32(row);
      return;
    }
    double sum = 0;
    if (layer) {
      ForPieces(row, [&](int64_t) { sum += sweeps_.sum(x_.values, piece_.columns); });
      piece_.mean = static_cast<float>(sum / columns);
      sum = 0;
    }
    ForPieces(row,
              [&](int64_t) { sum += sweeps_.sum_squares(x_.values, piece_.mean, piece_.columns); });
    piece_.rstd =
        InverseRoot(problem_.options, static_cast<float>(sum / columns), problem_.x.dtype);
  }

  // body(number of the piece) with x, d_y and weight of each piece.
  template <class Body>
  void ForPieces(int64_t row, const Body& body) {
    for (int64_t p = 0; p < PiecesOf(problem_.width); ++p) {
      piece_.columns = PieceWidth(problem_.width, p);
      piece_.weight = weight_ == nullptr ? nullptr : weight_ + p * kPieceColumns;
      if (!loaded_ || problem_.width > kPieceColumns) {
        LoadPiece(problem_.x, row, p, piece_.columns, x_.values);
        LoadPiece(problem_.d_y, row, p, piece_.columns, d_y_.values);
      }
      loaded_ = true;
      body(p);
    }
  }

  const NormBackward& problem_;
  const LayerSweeps& sweeps_;
  const float* weight_;
  float* weight_sums_;
  float* bias_sums_;
  NormPiece piece_;
  bool loaded_ = false;  // the row's only piece
  PieceBuffer x_;
  PieceBuffer d_y_;
  PieceBuffer more_;
  PieceBuffer grad_;
};

}  // namespace

absl::Status CpuLayers::Norm(const NormForward& problem, const LayerCall& call) {
  Arena& arena = device_.workspace();
  const uint64_t mark = arena.used();
  LOSSD_ASSIGN_OR_RETURN(
      const float* weight,
      LoadColumns(problem.weight, problem.options.weight_offset, "the weight as fp32", arena));
  LOSSD_ASSIGN_OR_RETURN(const float* bias,
                         LoadColumns(problem.bias, 0, "the bias as fp32", arena));
  ForRows(problem.rows, problem.width, [&](int64_t begin, int64_t end) {
    NormRow work(problem, sweeps_, weight, bias);
    for (int64_t row = begin; row < end; ++row) work.Run(row);
  });
  arena.ReleaseTo(mark);
  return Finish(call);
}

absl::Status CpuLayers::NormGradients(const NormBackward& problem, const LayerCall& call) {
  Arena& arena = device_.workspace();
  const uint64_t mark = arena.used();
  LOSSD_ASSIGN_OR_RETURN(
      const float* weight,
      LoadColumns(problem.weight, problem.options.weight_offset, "the weight as fp32", arena));
  if (!problem.sums_columns()) {
    ForRows(problem.rows, problem.width, [&](int64_t begin, int64_t end) {
      NormBackwardRow work(problem, sweeps_, weight, nullptr, nullptr);
      for (int64_t row = begin; row < end; ++row) work.Run(row);
    });
    arena.ReleaseTo(mark);
    return Finish(call);
  }
  const int64_t stride = RoundUp(problem.width, kColumnGroup);
  const int64_t parts = std::clamp<int64_t>(
      problem.rows / std::max<int64_t>(kPartElements / problem.width, 1), 1, kRowParts);
  const int64_t sums = (problem.grad_weight ? 1 : 0) + (problem.grad_bias ? 1 : 0);
  LOSSD_ASSIGN_OR_RETURN(float* memory,
                         arena.AllocateArray<float>(sums * parts * stride, "sums over rows"));
  float* weight_sums = problem.grad_weight ? memory : nullptr;
  float* bias_sums = problem.grad_bias ? memory + (sums - 1) * parts * stride : nullptr;
  device_.pool().For(parts, [&](int64_t part, int) {
    float* of_weight = weight_sums == nullptr ? nullptr : weight_sums + part * stride;
    float* of_bias = bias_sums == nullptr ? nullptr : bias_sums + part * stride;
    for (float* columns : {of_weight, of_bias}) {
      if (columns != nullptr) std::fill(columns, columns + stride, 0.0f);
    }
    NormBackwardRow work(problem, sweeps_, weight, of_weight, of_bias);
    const int64_t end = problem.rows * (part + 1) / parts;
    for (int64_t row = problem.rows * part / parts; row < end; ++row) work.Run(row);
  });
  device_.pool().For(PiecesOf(problem.width), [&](int64_t piece, int) {
    const int64_t begin = piece * kPieceColumns;
    const int64_t end = begin + PieceWidth(problem.width, piece);
    if (problem.grad_weight) {
      FinishColumns(weight_sums, parts, stride, problem.grad_weight, problem.accumulate_weight,
                    begin, end);
    }
    if (problem.grad_bias) {
      FinishColumns(bias_sums, parts, stride, problem.grad_bias, problem.accumulate_bias, begin,
                    end);
    }
  });
  arena.ReleaseTo(mark);
  return Finish(call);
}

}  // namespace lossd
