#include "kernels/cpu/head_products.h"

#include <algorithm>
#include <vector>

#include "kernels/core/status_macros.h"
#include "kernels/cpu/convert.h"

namespace lossd {
namespace {

// Distance of an IsPlainF32 matrix's rows; a single row may have any.
int64_t StrideOf(const RowsView& view) { return std::max(view.lead_strides[0], view.width); }

}  // namespace

absl::Status HeadProducts::Allocate(Arena& arena, int threads) {
  const int64_t hidden_size = pass_.head.hidden_size;
  if (plan_.tiles) {
    const int64_t elements = threads * plan_.column_tile * hidden_size;
    LOSSD_ASSIGN_OR_RETURN(tile_buffers_, arena.AllocateArray<float>(elements, "the weight tiles"));
  }
  if (plan_.weight_accumulator) {
    LOSSD_ASSIGN_OR_RETURN(weight_accumulator_, arena.AllocateArray<float>(columns() * hidden_size,
                                                                           "grad_weight in fp32"));
  }
  if (pass_.gradients.bias) {
    LOSSD_ASSIGN_OR_RETURN(bias_accumulator_,
                           arena.AllocateArray<double>(columns(), "grad_bias in fp64"));
  }
  return absl::OkStatus();
}

void HeadProducts::Start() {
  if (pass_.gradients.bias) {
    std::fill(bias_accumulator_, bias_accumulator_ + columns(), 0.0);
  }
}

int64_t HeadProducts::TileWidth(int64_t tile) const {
  return std::min(plan_.column_tile, columns() - TileBegin(tile));
}

const float* HeadProducts::WeightRows(int64_t begin, int64_t count, float* buffer,
                                      int64_t* stride) const {
  const RowsView& weight = pass_.head.weight;
  if (!plan_.convert_weight) {
    *stride = StrideOf(weight);
    return weight.Row<const float>(begin);
  }
  *stride = pass_.head.hidden_size;
  for (int64_t j = 0; j < count; ++j) LoadRow(weight, begin + j, buffer + j * *stride);
  return buffer;
}

void HeadProducts::Logits(const float* hidden, int64_t rows, float* logits) {
  const int64_t hidden_size = pass_.head.hidden_size;
  const int64_t step = pass_.batch_invariant ? kInvariantRows : rows;
  device_->pool().For(tiles(), [&](int64_t tile, int worker) {
    MatrixProduct product;
    product.b_transposed = true;
    product.m = step;
    product.n = TileWidth(tile);
    product.k = hidden_size;
    product.a_stride = hidden_size;
    product.b = WeightRows(TileBegin(tile), product.n, TileBuffer(worker), &product.b_stride);
    product.c_stride = plan_.logits_stride;
    for (int64_t row = 0; row < rows; row += step) {
      product.a = hidden + row * hidden_size;
      product.c = logits + row * plan_.logits_stride + TileBegin(tile);
      device_->gemm().Run(product);
    }
  });
}

void HeadProducts::GradHidden(const float* draw, int64_t rows, float* grad_hidden) {
  if (columns() == 0) {
    std::fill(grad_hidden, grad_hidden + rows * pass_.head.hidden_size, 0.0f);
    return;
  }
  if (!plan_.convert_weight) {
    GradHiddenBlocks(draw, columns(), pass_.head.weight.Row<const float>(0),
                     StrideOf(pass_.head.weight), rows, false, grad_hidden);
    return;
  }
  // A slab of weight, one tile from each thread, is converted and then used by all.
  const int64_t slab = device_->pool().threads();
  for (int64_t first = 0; first < tiles(); first += slab) {
    const int64_t count = std::min(slab, tiles() - first);
    device_->pool().For(count, [&](int64_t slot, int) {
      int64_t stride = 0;
      WeightRows(TileBegin(first + slot), TileWidth(first + slot), TileBuffer(slot), &stride);
    });
    const int64_t k = std::min(columns(), TileBegin(first + count)) - TileBegin(first);
    GradHiddenBlocks(draw + TileBegin(first), k, tile_buffers_, pass_.head.hidden_size, rows,
                     first > 0, grad_hidden);
  }
}

void HeadProducts::GradHiddenBlocks(const float* draw, int64_t k, const float* weight,
                                    int64_t weight_stride, int64_t rows, bool accumulate,
                                    float* grad_hidden) {
  // Blocks of the result; large, because each packs its own part of both factors, but at least one for each thread.
  const int64_t hidden_size = pass_.head.hidden_size;
  int64_t row_block = 256;
  int64_t column_block = 512;
  const auto blocks = [](int64_t extent, int64_t block) { return (extent + block - 1) / block; };
  const int64_t threads = device_->pool().threads();
  while (blocks(rows, row_block) * blocks(hidden_size, column_block) < threads && row_block > 32) {
    column_block > 64 ? column_block /= 2 : row_block /= 2;
  }
  const int64_t across = blocks(hidden_size, column_block);
  device_->pool().For(blocks(rows, row_block) * across, [&](int64_t block, int) {
    const int64_t row = block / across * row_block;
    const int64_t column = block % across * column_block;
    MatrixProduct product;
    product.m = std::min(row_block, rows - row);
    product.n = std::min(column_block, hidden_size - column);
    product.k = k;
    product.a = draw + row * plan_.logits_stride;
    product.a_stride = plan_.logits_stride;
    product.b = weight + column;
    product.b_stride = weight_stride;
    product.c = grad_hidden + row * hidden_size + column;
    product.c_stride = hidden_size;
    product.accumulate = accumulate;
    device_->gemm().Run(product);
  });
}

void HeadProducts::GradWeight(const float* draw, const float* hidden, int64_t rows) {
  if (rows == 0) return;
  device_->pool().For(tiles(), [&](int64_t tile, int worker) {
    if (pass_.gradients.weight) GradWeightTile(draw, hidden, rows, tile, worker);
    if (pass_.gradients.bias) GradBiasTile(draw, rows, tile);
  });
  started_ = true;
}

void HeadProducts::GradWeightTile(const float* draw, const float* hidden, int64_t rows,
                                  int64_t tile, int worker) {
  const RowsView& destination = pass_.gradients.weight;
  const int64_t hidden_size = pass_.head.hidden_size;
  const int64_t begin = TileBegin(tile);
  const bool add = pass_.gradients.weight_mode == GradMode::kAccumulate;
  MatrixProduct product;
  product.a_transposed = true;
  product.m = TileWidth(tile);
  product.n = hidden_size;
  product.k = rows;
  product.a = draw + begin;
  product.a_stride = plan_.logits_stride;
  product.b = hidden;
  product.b_stride = hidden_size;
  product.c_stride = hidden_size;
  if (IsPlainF32(destination)) {
    product.c = destination.Row<float>(begin);
    product.c_stride = StrideOf(destination);
    product.accumulate = add || started_;
    device_->gemm().Run(product);
    return;
  }
  if (weight_accumulator_ != nullptr) {
    product.c = weight_accumulator_ + begin * hidden_size;
    product.accumulate = started_;
    device_->gemm().Run(product);
    return;
  }
  // The only chunk: the tile is complete and is rounded once.
  product.c = TileBuffer(worker);
  device_->gemm().Run(product);
  for (int64_t j = 0; j < product.m; ++j) {
    StoreRow(product.c + j * hidden_size, add, destination, begin + j);
  }
}

void HeadProducts::GradBiasTile(const float* draw, int64_t rows, int64_t tile) {
  constexpr int64_t kRows = 64;  // summed in fp32 before they go to the accumulator
  constexpr int64_t kWidth = 128;
  const int64_t end = TileBegin(tile) + TileWidth(tile);
  for (int64_t begin = TileBegin(tile); begin < end; begin += kWidth) {
    const int64_t width = std::min(kWidth, end - begin);
    for (int64_t first = 0; first < rows; first += kRows) {
      float sums[kWidth] = {};
      for (int64_t i = first; i < std::min(rows, first + kRows); ++i) {
        const float* row = draw + i * plan_.logits_stride + begin;
        for (int64_t j = 0; j < width; ++j) sums[j] += row[j];
      }
      for (int64_t j = 0; j < width; ++j) bias_accumulator_[begin + j] += sums[j];
    }
  }
}

void HeadProducts::Finish() {
  const int64_t hidden_size = pass_.head.hidden_size;
  const RowsView& weight = pass_.gradients.weight;
  if (weight) {
    const bool add = pass_.gradients.weight_mode == GradMode::kAccumulate;
    const int64_t total = (pass_.head.vocab + plan_.column_tile - 1) / plan_.column_tile;
    const bool rounded = weight_accumulator_ != nullptr && started_;
    const std::vector<float> zeros(hidden_size, 0.0f);
    device_->pool().For(total, [&](int64_t tile, int) {
      const int64_t end = std::min(pass_.head.vocab, TileBegin(tile) + plan_.column_tile);
      for (int64_t row = TileBegin(tile); row < end; ++row) {
        if (row < columns() && rounded) {
          StoreRow(weight_accumulator_ + row * hidden_size, add, weight, row);
        } else if (!add && (row >= columns() || !started_)) {
          StoreRow(zeros.data(), false, weight, row);
        }
      }
    });
  }
  const RowsView& bias = pass_.gradients.bias;
  if (bias) {
    const bool add = pass_.gradients.bias_mode == GradMode::kAccumulate;
    for (int64_t j = 0; j < pass_.head.vocab; ++j) {
      const float sum = j < columns() ? static_cast<float>(bias_accumulator_[j]) : 0;
      if (!add || j < columns()) StoreRow(&sum, add, bias, j);
    }
  }
}

}  // namespace lossd
