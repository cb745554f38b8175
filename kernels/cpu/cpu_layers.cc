#include "kernels/cpu/cpu_layers.h"

#include <algorithm>

#include "kernels/cpu/layer_pieces.h"

namespace lossd {
namespace {

// What a thread takes at a time.
constexpr int64_t kBlockElements = 1 << 14;

}  // namespace

void CpuLayers::ForRows(int64_t rows, int64_t width,
                        const std::function<void(int64_t begin, int64_t end)>& body) {
  const int64_t block = std::max<int64_t>(kBlockElements / std::max<int64_t>(width, 1), 1);
  device_.pool().For((rows + block - 1) / block,
                     [&](int64_t i, int) { body(i * block, std::min(rows, (i + 1) * block)); });
}

void CpuLayers::ForPieces(
    int64_t rows, int64_t width,
    const std::function<void(int64_t row, int64_t piece, int64_t columns)>& body) {
  const int64_t pieces = PiecesOf(width);
  ForRows(rows * pieces, std::min(width, kPieceColumns), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      body(i / pieces, i % pieces, PieceWidth(width, i % pieces));
    }
  });
}

absl::Status CpuLayers::Finish(const LayerCall& call) {
  *call.record = ResultRecord();
  if (call.record_copy != nullptr) *call.record_copy = *call.record;
  return absl::OkStatus();
}

absl::Status CpuLayers::Gated(const GatedForward& problem, const LayerCall& call) {
  if (!problem.y) return Finish(call);
  const Rounding rounding =
      problem.options.rounds_activation ? RoundingOf(problem.gate.dtype) : Rounding::kNone;
  ForPieces(problem.rows, problem.width, [&](int64_t row, int64_t piece, int64_t columns) {
    PieceBuffer gate;
    PieceBuffer up;
    LoadPiece(problem.gate, row, piece, columns, gate.values);
    LoadPiece(problem.up, row, piece, columns, up.values);
    sweeps_.gated(problem.options, rounding, gate.values, up.values, columns, gate.values);
    StorePiece(gate.values, problem.y, row, piece, columns);
  });
  return Finish(call);
}

absl::Status CpuLayers::GatedGradients(const GatedBackward& problem, const LayerCall& call) {
  const Rounding rounding =
      problem.options.rounds_activation ? RoundingOf(problem.gate.dtype) : Rounding::kNone;
  ForPieces(problem.rows, problem.width, [&](int64_t row, int64_t piece, int64_t columns) {
    PieceBuffer gate;
    PieceBuffer up;
    PieceBuffer d_y;
    LoadPiece(problem.gate, row, piece, columns, gate.values);
    LoadPiece(problem.up, row, piece, columns, up.values);
    LoadPiece(problem.d_y, row, piece, columns, d_y.values);
    sweeps_.gated_gradient(problem.options, rounding, d_y.values, columns, gate.values, up.values);
    if (problem.grad_gate) StorePiece(gate.values, problem.grad_gate, row, piece, columns);
    if (problem.grad_up) StorePiece(up.values, problem.grad_up, row, piece, columns);
  });
  return Finish(call);
}

absl::Status CpuLayers::ReluSquared(const ReluSquaredForward& problem, const LayerCall& call) {
  if (!problem.y) return Finish(call);
  ForPieces(problem.rows, problem.width, [&](int64_t row, int64_t piece, int64_t columns) {
    PieceBuffer x;
    LoadPiece(problem.x, row, piece, columns, x.values);
    sweeps_.relu_squared(columns, x.values);
    StorePiece(x.values, problem.y, row, piece, columns);
  });
  return Finish(call);
}

absl::Status CpuLayers::ReluSquaredGradient(const ReluSquaredBackward& problem,
                                            const LayerCall& call) {
  ForPieces(problem.rows, problem.width, [&](int64_t row, int64_t piece, int64_t columns) {
    PieceBuffer x;
    PieceBuffer d_y;
    LoadPiece(problem.x, row, piece, columns, x.values);
    LoadPiece(problem.d_y, row, piece, columns, d_y.values);
    sweeps_.relu_squared_gradient(d_y.values, columns, x.values);
    StorePiece(x.values, problem.grad_x, row, piece, columns);
  });
  return Finish(call);
}

absl::Status CpuLayers::Softmax(const SoftmaxForward& problem, const LayerCall& call) {
  if (!problem.y) return Finish(call);
  const int64_t width = problem.width;
  ForRows(problem.rows, width, [&](int64_t begin, int64_t end) {
    PieceBuffer x;
    for (int64_t row = begin; row < end; ++row) {
      if (problem.mask && !problem.mask.Mask(row)) {
        std::fill(std::begin(x.values), std::end(x.values), 0.0f);
        for (int64_t piece = 0; piece < PiecesOf(width); ++piece) {
          StorePiece(x.values, problem.y, row, piece, PieceWidth(width, piece));
        }
        continue;
      }
      SoftmaxSums sums;
      for (int64_t piece = 0; piece < PiecesOf(width); ++piece) {
        LoadPiece(problem.x, row, piece, PieceWidth(width, piece), x.values);
        sweeps_.softmax_sums(x.values, PieceWidth(width, piece), &sums);
      }
      const auto inverse = static_cast<float>(1 / sums.sum);
      for (int64_t piece = 0; piece < PiecesOf(width); ++piece) {
        const int64_t columns = PieceWidth(width, piece);
        if (width > kPieceColumns) LoadPiece(problem.x, row, piece, columns, x.values);
        sweeps_.softmax(sums.max, inverse, columns, x.values);
        StorePiece(x.values, problem.y, row, piece, columns);
      }
    }
  });
  return Finish(call);
}

absl::Status CpuLayers::SoftmaxGradient(const SoftmaxBackward& problem, const LayerCall& call) {
  const int64_t width = problem.width;
  ForRows(problem.rows, width, [&](int64_t begin, int64_t end) {
    PieceBuffer y;
    PieceBuffer d_y;
    for (int64_t row = begin; row < end; ++row) {
      if (problem.mask && !problem.mask.Mask(row)) {
        std::fill(std::begin(d_y.values), std::end(d_y.values), 0.0f);
        for (int64_t piece = 0; piece < PiecesOf(width); ++piece) {
          StorePiece(d_y.values, problem.grad_x, row, piece, PieceWidth(width, piece));
        }
        continue;
      }
      const auto load = [&](int64_t piece) {
        LoadPiece(problem.y, row, piece, PieceWidth(width, piece), y.values);
        LoadPiece(problem.d_y, row, piece, PieceWidth(width, piece), d_y.values);
      };
      double sum = 0;
      for (int64_t piece = 0; piece < PiecesOf(width); ++piece) {
        load(piece);
        sum += sweeps_.softmax_dot(y.values, d_y.values, PieceWidth(width, piece));
      }
      for (int64_t piece = 0; piece < PiecesOf(width); ++piece) {
        const int64_t columns = PieceWidth(width, piece);
        if (width > kPieceColumns) load(piece);
        sweeps_.softmax_gradient(y.values, static_cast<float>(sum), columns, d_y.values);
        StorePiece(d_y.values, problem.grad_x, row, piece, columns);
      }
    }
  });
  return Finish(call);
}

}  // namespace lossd
