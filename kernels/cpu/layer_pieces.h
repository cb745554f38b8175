// Pieces of rows as fp32 in a thread's own memory.
#ifndef LOSSD_KERNELS_CPU_LAYER_PIECES_H_
#define LOSSD_KERNELS_CPU_LAYER_PIECES_H_

#include <algorithm>
#include <cstdint>

#include "kernels/core/tensor_view.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/layer_sweeps.h"

namespace lossd {

struct alignas(64) PieceBuffer {
  float values[kPieceColumns];
};

inline int64_t PiecesOf(int64_t width) { return (width + kPieceColumns - 1) / kPieceColumns; }
inline int64_t PieceWidth(int64_t width, int64_t piece) {
  return std::min(kPieceColumns, width - piece * kPieceColumns);
}

// Columns of piece `piece` of a row.
inline void LoadPiece(const RowsView& view, int64_t row, int64_t piece, int64_t columns,
                      float* to) {
  const int64_t at = view.Offset(row) + piece * kPieceColumns;
  LoadAsF32(static_cast<const char*>(view.data) + at * static_cast<int64_t>(SizeOf(view.dtype)),
            view.dtype, columns, to);
}
inline void StorePiece(const float* from, const RowsView& view, int64_t row, int64_t piece,
                       int64_t columns) {
  const int64_t at = view.Offset(row) + piece * kPieceColumns;
  StoreFromF32(from, columns, false, view.dtype,
               static_cast<char*>(view.data) + at * static_cast<int64_t>(SizeOf(view.dtype)));
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_LAYER_PIECES_H_
