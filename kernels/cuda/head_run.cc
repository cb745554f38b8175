#include "kernels/cuda/head_run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/check.h"

namespace lossd {
namespace {

// Rows of one logits product with batch_invariant; head_plan.cc pads to it.
constexpr int64_t kInvariantRows = 256;

std::byte* At(void* data, DType dtype, int64_t offset) {
  return static_cast<std::byte*>(data) + offset * static_cast<int64_t>(SizeOf(dtype));
}

int64_t RowStride(const RowsView& view) {
  return view.rows <= 1 ? view.width : view.lead_strides[0];
}

DType TypeOf(DzMode mode) {
  return mode == DzMode::kBF16 ? DType::kBF16 : mode == DzMode::kF16 ? DType::kF16 : DType::kF32;
}

}  // namespace

HeadRun::HeadRun(const HeadPass& pass, const CudaMachine& machine, RowStep* step)
    : pass_(pass),
      head_(pass.head),
      facts_(machine.facts),
      arena_(*machine.workspace),
      device_(machine.device),
      products_(machine.products),
      plans_(machine.plans),
      stream_(device_ == nullptr ? nullptr : device_->stream()),
      worth_waiting_(machine.worth_waiting),
      step_(step) {}

absl::Status HeadRun::Launched(cudaError_t error, const char* what) const {
  return CudaStatus(error, what);
}

std::string HeadRun::Describe() const {
  if (rows_ == 0) return "chunks=0";
  std::string text = absl::StrCat(plan_.Describe(), " products=", NameOf(product_));
  if (exp_) absl::StrAppend(&text, " epilogue=exp");
  if (filters_) absl::StrAppend(&text, " filter=", pass_.gradient_filter);
  if (first_ != nullptr) absl::StrAppend(&text, " logits=kept");
  if (gather_) absl::StrAppend(&text, " gathered=", real_rows_);
  if (gradient_rows_ > 0 && gradient_rows_ < rows_) {
    absl::StrAppend(&text, " gradient_rows=", gradient_rows_);
  }
  switch (weight_path_) {
    case WeightPath::kNone:
      break;
    case WeightPath::kDirect:
      absl::StrAppend(&text, " grad_weight=direct");
      break;
    case WeightPath::kTiles:
      absl::StrAppend(&text, " grad_weight=tiles");
      break;
    case WeightPath::kAccumulator:
      absl::StrAppend(&text, " grad_weight=accumulator");
      break;
    case WeightPath::kSlices:
      absl::StrAppend(&text, " grad_weight=slices of ", slice_columns_);
      break;
  }
  return text;
}

absl::Status HeadRun::Run() {
  LOSSD_RETURN_IF_ERROR(Plan());
  if (device_ == nullptr) {
    HandOver();
    return absl::OkStatus();
  }
  if (rows_ == 0) return RunEmpty();
  LOSSD_RETURN_IF_ERROR(Prepare());
  int64_t begin = 0;
  for (size_t i = 0; i < plan_.chunks.size(); ++i) {
    LOSSD_RETURN_IF_ERROR(RunChunk(i, begin));
    begin += plan_.chunks[i];
  }
  if (weight_path_ == WeightPath::kSlices) LOSSD_RETURN_IF_ERROR(RunExpSlices());
  return FinishWeightAndBias();
}

absl::StatusOr<bool> HeadRun::RunAfter(const HeadPass& first,
                                       const std::function<absl::Status()>& between) {
  first_ = &first;
  between_ = &between;
  LOSSD_RETURN_IF_ERROR(Plan());
  if (rows_ == 0 || plan_.chunks.empty()) return false;
  if (device_ == nullptr) {
    HandOver();
    return true;
  }
  LOSSD_RETURN_IF_ERROR(Prepare());
  LOSSD_RETURN_IF_ERROR(RunChunk(0, 0));
  LOSSD_RETURN_IF_ERROR(FinishWeightAndBias());
  return true;
}

void HeadRun::HandOver() {
  if (step_ != nullptr && rows_ > 0) {
    Chunk chunk;
    RowPass pass = DescribeRows(pass_, chunk, 0, rows_, reinterpret_cast<const float*>(region_));
    pass.dz_mode = dz_mode_;
    pass.dz = region_;
    pass.dz_stride = stride_;
    step_->Plan(pass);
  }
  plans_->Add(*this);
}

// No row counts: sums of nothing. grad_hidden has been filled.
absl::Status HeadRun::RunEmpty() {
  const HeadGradients& gradients = pass_.gradients;
  if (gradients.weight && gradients.weight_mode == GradMode::kOverwrite) {
    LOSSD_RETURN_IF_ERROR(
        Launched(LaunchZeroRows(gradients.weight, 0, head_.vocab, pass_.record, stream_),
                 "clear grad_weight"));
  }
  if (gradients.bias && gradients.bias_mode == GradMode::kOverwrite) {
    LOSSD_RETURN_IF_ERROR(Launched(
        LaunchZeroRows(gradients.bias, 0, head_.vocab, pass_.record, stream_), "clear grad_bias"));
  }
  return absl::OkStatus();
}

absl::StatusOr<HeadRun::Chunk> HeadRun::MakeChunk(size_t number, int64_t begin) {
  Chunk chunk;
  chunk.begin = begin;
  chunk.rows = plan_.chunks[number];
  chunk.real = std::min(chunk.rows, real_rows_ - begin);
  chunk.first = number == 0;
  if (gather_) {
    // For slices of the vocabulary all rows stay.
    const int64_t place = weight_path_ == WeightPath::kSlices ? begin : 0;
    chunk.x = {At(x_, product_, place * x_stride_), product_, x_stride_, chunk.rows,
               head_.hidden_size};
    LOSSD_RETURN_IF_ERROR(Launched(
        LaunchPackRows(chunk.x, head_.hidden, 0, index_ + begin, nullptr, stream_), "gather rows"));
  } else {
    const int64_t stride = RowStride(head_.hidden);
    chunk.x = {At(head_.hidden.data, product_, begin * stride), product_, stride, chunk.rows,
               head_.hidden_size};
  }
  return chunk;
}

absl::Status HeadRun::RunChunk(size_t number, int64_t begin) {
  LOSSD_ASSIGN_OR_RETURN(Chunk chunk, MakeChunk(number, begin));
  if (exp_) return RunExpChunk(chunk);
  const std::vector<int64_t>& slices = plan_.slices[number];
  const bool in_place = slices.size() == 1;
  const int64_t logits_bytes = stride_ * 4;
  const DType dz_dtype = TypeOf(dz_mode_);
  const int64_t dz_stride = in_place && dz_dtype != DType::kF32 ? 2 * stride_ : stride_;
  int64_t done = 0;
  for (const int64_t rows : slices) {
    std::byte* dz = region_ + done * (logits_bytes / 2);
    std::byte* logits = in_place          ? dz
                        : apart_rows_ > 0 ? region_ + chunk.rows * (logits_bytes / 2)
                                          : dz + ChunkPlan::kGapRows * logits_bytes;
    LOSSD_RETURN_IF_ERROR(MakeLogits(chunk, done, rows, reinterpret_cast<float*>(logits)));
    if (first_ != nullptr) {
      LOSSD_RETURN_IF_ERROR(PassFirst(chunk, rows, reinterpret_cast<float*>(logits)));
    }
    LOSSD_RETURN_IF_ERROR(
        PassRows(chunk, done, rows, reinterpret_cast<float*>(logits), dz, in_place));
    done += rows;
  }
  if (!pass_.gradients.any()) return absl::OkStatus();

  chunk.dz = {region_, dz_dtype, dz_stride, chunk.real, columns_};
  if (pass_.gradients.bias) {
    LOSSD_RETURN_IF_ERROR(Launched(
        LaunchSumColumns(chunk.dz, bias_partials_, bias_sums_, !chunk.first,
                         scalars_ == nullptr ? nullptr : &scalars_->alpha, nullptr, stream_),
        "add up grad_bias"));
  }
  if (pass_.gradients.weight) {
    LOSSD_ASSIGN_OR_RETURN(chunk.x, MakeCleanRows(chunk, in_place));
    LOSSD_RETURN_IF_ERROR(AddWeightGradient(chunk));
  }
  return pass_.gradients.hidden ? MakeHiddenGradient(chunk) : absl::OkStatus();
}

absl::StatusOr<HeadRun::WeightTile> HeadRun::LoadWeight(int64_t begin) {
  WeightTile tile;
  tile.begin = begin;
  if (!convert_weight_) {
    const int64_t stride = RowStride(head_.weight);
    tile.rows = columns_ - begin;
    tile.operand = {At(head_.weight.data, product_, begin * stride), stride, false};
    return tile;
  }
  tile.rows = std::min(weight_tile_rows_, columns_ - begin);
  tile.operand = {weight_tile_, x_stride_, false};
  if (weight_tile_begin_ != begin) {
    const PackedRows to = {weight_tile_, product_, x_stride_, tile.rows, head_.hidden_size};
    LOSSD_RETURN_IF_ERROR(Launched(
        LaunchPackRows(to, head_.weight, begin, nullptr, nullptr, stream_), "convert the weight"));
    weight_tile_begin_ = begin;
  }
  return tile;
}

// Logits of rows done ... done + rows - 1 of the chunk.
absl::Status HeadRun::MakeLogits(const Chunk& chunk, int64_t done, int64_t rows, float* logits) {
  const int64_t step = pass_.batch_invariant ? kInvariantRows : rows;
  for (int64_t column = 0; column < columns_;) {
    LOSSD_ASSIGN_OR_RETURN(const WeightTile tile, LoadWeight(column));
    for (int64_t row = 0; row < rows; row += step) {
      Product product;
      product.m = std::min(step, rows - row);
      product.n = tile.rows;
      product.k = head_.hidden_size;
      product.inputs = product_;
      product.a = {At(chunk.x.data, product_, (done + row) * chunk.x.stride), chunk.x.stride,
                   false};
      product.b = tile.operand;
      product.b.transposed = true;
      product.output = DType::kF32;
      product.d = logits + row * stride_ + column;
      product.d_stride = stride_;
      product.fixed_order = pass_.batch_invariant;
      LOSSD_RETURN_IF_ERROR(products_->Run(product, stream_));
    }
    column += tile.rows;
  }
  return absl::OkStatus();
}

RowPass HeadRun::DescribeRows(const HeadPass& pass, const Chunk& chunk, int64_t done, int64_t rows,
                              const float* logits) const {
  RowPass out;
  out.head = head_;
  out.columns = pass.columns;
  out.column_weight = pass.column_weight;
  out.index = index_ + chunk.begin + done;
  out.rows = rows;
  out.logits = logits;
  out.logits_stride = stride_;
  out.record = pass.record;
  return out;
}

absl::Status HeadRun::PassFirst(const Chunk& chunk, int64_t rows, const float* logits) {
  const RowPass pass = DescribeRows(*first_, chunk, 0, rows, logits);
  if (pass.columns.topk_ids || pass.columns.topk_logprob) {
    LOSSD_RETURN_IF_ERROR(Launched(LaunchTopK(pass, stream_), "select the largest logits"));
  }
  LOSSD_RETURN_IF_ERROR(
      Launched(LaunchRowPass(pass, first_->program, shape_, stream_), "run the row pass"));
  return (*between_)();
}

absl::Status HeadRun::PassRows(const Chunk& chunk, int64_t done, int64_t rows, const float* logits,
                               void* dz, bool in_place) {
  RowPass pass = DescribeRows(pass_, chunk, done, rows, logits);
  pass.dz_mode = dz_mode_;
  pass.dz = dz;
  pass.dz_stride = in_place && dz_mode_ != DzMode::kF32 ? 2 * stride_ : stride_;
  pass.live = live_ == nullptr ? nullptr : live_ + done;
  if (pass.columns.topk_ids || pass.columns.topk_logprob) {
    LOSSD_RETURN_IF_ERROR(Launched(LaunchTopK(pass, stream_), "select the largest logits"));
  }
  if (dz_mode_ == DzMode::kF16) return PassRowsScaled(pass);
  if (in_place || apart_rows_ > 0) return LaunchRows(pass);
  // dz moves down over logits that earlier launches have read.
  const RowPass slice = pass;
  for (int64_t begin = 0; begin < rows;) {
    const int64_t end = SafeEnd(begin, rows);
    pass.index = slice.index + begin;
    pass.live = slice.live + begin;
    pass.rows = end - begin;
    pass.logits = slice.logits + begin * slice.logits_stride;
    pass.dz = At(slice.dz, DType::kBF16, begin * slice.dz_stride);
    LOSSD_RETURN_IF_ERROR(LaunchRows(pass));
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status HeadRun::LaunchRows(const RowPass& pass) {
  if (taken_ != nullptr) {
    return Launched(LaunchStoredRowPass(pass, {taken_}, shape_, stream_), "run the row pass");
  }
  if (step_ != nullptr) return step_->Run(pass);
  return Launched(LaunchRowPass(pass, pass_.program, shape_, stream_), "run the row pass");
}

// fp16: the objective and the largest |dz| first, then dz times a power of two.
absl::Status HeadRun::PassRowsScaled(const RowPass& pass) {
  RowPass measure = pass;
  measure.dz_mode = DzMode::kMeasure;
  measure.dz_max = &scalars_->dz_max;
  measure.stored = stored_;
  LOSSD_RETURN_IF_ERROR(LaunchRows(measure));
  LOSSD_RETURN_IF_ERROR(Launched(LaunchScaleFromMax(scalars_, stream_), "scale dz"));
  RowPass write = pass;
  write.dz_scale = &scalars_->scale;
  write.columns.ids_logprob = RowsView();
  write.columns.topk_ids = RowsView();
  write.columns.topk_logprob = RowsView();
  if (step_ != nullptr) return step_->Run(write);
  return Launched(LaunchStoredRowPass(write, {stored_}, shape_, stream_), "write dz");
}

// The chunk's hidden rows with zeros in place of rows that have no gradient.
absl::StatusOr<PackedRows> HeadRun::MakeCleanRows(const Chunk& chunk, bool in_place) {
  PackedRows x = chunk.x;
  x.rows = chunk.real;
  if (gather_) {
    LOSSD_RETURN_IF_ERROR(
        Launched(LaunchClearDeadRows(x, live_, stream_), "clear rows without gradient"));
    return x;
  }
  const int64_t logits_bytes = stride_ * 4;
  const int64_t x_bytes = x_stride_ * static_cast<int64_t>(SizeOf(product_));
  x.stride = x_stride_;
  if (!in_place) {
    // Behind the dz rows: the logits are no longer needed.
    x.data = region_ + chunk.rows * (logits_bytes / 2);
  } else if (dz_mode_ == DzMode::kBF16 && x_bytes <= logits_bytes / 2) {
    // In the half of each row that dz leaves free.
    x.data = region_ + logits_bytes / 2;
    x.stride = 2 * stride_;
  } else {
    x.data = region_ + chunk.rows * logits_bytes;
  }
  LOSSD_RETURN_IF_ERROR(Launched(
      LaunchPackRows(x, head_.hidden, 0, index_ + chunk.begin, live_, stream_), "copy rows"));
  return x;
}

void HeadRun::SetScalars(Product* product, bool accumulate) const {
  product->beta = accumulate ? 1 : 0;
  if (scalars_ == nullptr) return;
  product->device_alpha = &scalars_->alpha;
  product->device_beta = accumulate ? &scalars_->one : &scalars_->zero;
}

absl::Status HeadRun::MakeWeightSlice(const Chunk& chunk, int64_t begin, int64_t columns) {
  const RowsView& weight = pass_.gradients.weight;
  Product product;
  product.m = columns;
  product.n = head_.hidden_size;
  product.k = chunk.real;
  product.inputs = product_;
  product.a = {chunk.dz.data, chunk.dz.stride, true};
  product.b = {chunk.x.data, chunk.x.stride, false};
  product.output = weight.dtype;
  product.d = At(weight.data, weight.dtype, begin * RowStride(weight));
  product.d_stride = RowStride(weight);
  product.beta = pass_.gradients.weight_mode == GradMode::kAccumulate ? 1 : 0;
  return products_->Run(product, stream_);
}

absl::Status HeadRun::AddWeightGradient(const Chunk& chunk) {
  const RowsView& weight = pass_.gradients.weight;
  const bool adds = pass_.gradients.weight_mode == GradMode::kAccumulate;
  const int64_t step = weight_path_ == WeightPath::kTiles ? dw_rows_ : columns_;
  for (int64_t column = 0; column < columns_; column += step) {
    Product product;
    product.m = std::min(step, columns_ - column);
    product.n = head_.hidden_size;
    product.k = chunk.real;
    product.inputs = product_;
    product.a = {At(chunk.dz.data, product_, column), chunk.dz.stride, true};
    product.b = {chunk.x.data, chunk.x.stride, false};
    if (weight_path_ == WeightPath::kDirect) {
      product.output = weight.dtype;
      product.d = weight.data;
      product.d_stride = RowStride(weight);
      SetScalars(&product, adds || !chunk.first);
    } else {
      product.output = DType::kF32;
      product.d = dw_;
      product.d_stride = head_.hidden_size;
      SetScalars(&product, weight_path_ == WeightPath::kAccumulator && !chunk.first);
    }
    LOSSD_RETURN_IF_ERROR(products_->Run(product, stream_));
    if (weight_path_ == WeightPath::kTiles) {
      const PackedRows tile = {dw_, DType::kF32, head_.hidden_size, product.m, head_.hidden_size};
      LOSSD_RETURN_IF_ERROR(
          Launched(LaunchFinishRows(weight, column, tile, adds, pass_.record, stream_),
                   "finish grad_weight"));
    }
  }
  return absl::OkStatus();
}

// out = rows first ... first + rows - 1 of dz times the weight.
absl::Status HeadRun::MultiplyByWeight(const Chunk& chunk, int64_t first, int64_t rows,
                                       const PackedRows& out) {
  for (int64_t column = 0; column < columns_;) {
    LOSSD_ASSIGN_OR_RETURN(const WeightTile tile, LoadWeight(column));
    Product product;
    product.m = rows;
    product.n = head_.hidden_size;
    product.k = tile.rows;
    product.inputs = product_;
    product.a = {At(chunk.dz.data, product_, first * chunk.dz.stride + column), chunk.dz.stride,
                 false};
    product.b = tile.operand;
    product.output = out.dtype;
    product.d = out.data;
    product.d_stride = out.stride;
    SetScalars(&product, column > 0);
    LOSSD_RETURN_IF_ERROR(products_->Run(product, stream_));
    column += tile.rows;
  }
  return absl::OkStatus();
}

absl::Status HeadRun::MakeHiddenGradient(const Chunk& chunk) {
  const RowsView& hidden = pass_.gradients.hidden;
  if (columns_ == 0) {
    // Nothing to multiply: every row is cleared below.
    LOSSD_RETURN_IF_ERROR(device_->Zero(live_, static_cast<uint64_t>(chunk.rows)));
  }
  if (dx_direct_) {
    const int64_t stride = RowStride(hidden);
    const PackedRows out = {At(hidden.data, hidden.dtype, chunk.begin * stride), hidden.dtype,
                            stride, chunk.real, head_.hidden_size};
    LOSSD_RETURN_IF_ERROR(MultiplyByWeight(chunk, 0, chunk.real, out));
    return Launched(LaunchClearDeadRows(out, live_, stream_), "clear rows without gradient");
  }
  for (int64_t first = 0; first < chunk.real; first += dx_tile_rows_) {
    const int64_t rows = std::min(dx_tile_rows_, chunk.real - first);
    const PackedRows tile = {dx_tile_, dx_dtype_, x_stride_, rows, head_.hidden_size};
    LOSSD_RETURN_IF_ERROR(MultiplyByWeight(chunk, first, rows, tile));
    LOSSD_RETURN_IF_ERROR(Launched(LaunchScatterRows(hidden, tile, index_ + chunk.begin + first,
                                                     live_ + first, pass_.record, stream_),
                                   "scatter grad_hidden"));
  }
  return absl::OkStatus();
}

absl::Status HeadRun::FinishWeightAndBias() {
  const HeadGradients& gradients = pass_.gradients;
  if (gradients.weight) {
    const bool adds = gradients.weight_mode == GradMode::kAccumulate;
    if (weight_path_ == WeightPath::kAccumulator) {
      const PackedRows sums = {dw_, DType::kF32, head_.hidden_size, columns_, head_.hidden_size};
      LOSSD_RETURN_IF_ERROR(
          Launched(LaunchFinishRows(gradients.weight, 0, sums, adds, pass_.record, stream_),
                   "finish grad_weight"));
    }
    if (!adds) {
      LOSSD_RETURN_IF_ERROR(
          Launched(LaunchZeroRows(gradients.weight, columns_, head_.vocab, pass_.record, stream_),
                   "clear grad_weight"));
    }
  }
  if (gradients.bias) {
    const bool adds = gradients.bias_mode == GradMode::kAccumulate;
    const PackedRows sums = {bias_sums_, DType::kF32, 1, columns_, 1};
    LOSSD_RETURN_IF_ERROR(
        Launched(LaunchFinishRows(gradients.bias, 0, sums, adds, pass_.record, stream_),
                 "finish grad_bias"));
    if (!adds) {
      LOSSD_RETURN_IF_ERROR(
          Launched(LaunchZeroRows(gradients.bias, columns_, head_.vocab, pass_.record, stream_),
                   "clear grad_bias"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lossd
