// The gradients of a HeadRun by the product with the exponential in its epilogue.
#include <algorithm>
#include <variant>

#include "kernels/core/status_macros.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/head_run.h"
#include "kernels/objectives/program_needs.h"

namespace lossd {
namespace {

// Rows that the library's products take at a time.
constexpr int64_t kLiveMultiple = 256;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

bool HeadRun::DropsRows() const {
  const HeadGradients& gradients = pass_.gradients;
  if (!pass_.host_may_wait || filters_ || weight_path_ == WeightPath::kSlices) return false;
  const double products = (gradients.hidden ? 1.0 : 0.0) + (gradients.weight ? 1.0 : 0.0);
  const double work = products * static_cast<double>(rows_) * static_cast<double>(columns_) *
                      static_cast<double>(head_.hidden_size);
  return work >= worth_waiting_ &&
         std::visit([](const auto& of) { return OftenVanishes(of); }, pass_.program);
}

// Where at least one row in eight goes, the others' exponentials move together.
absl::StatusOr<HeadRun::ExpOrder> HeadRun::DropRows(const Chunk& chunk, const ExpRows& rows) {
  ExpOrder all;
  all.rows = chunk.rows;
  if (order_ == nullptr) return all;
  LOSSD_RETURN_IF_ERROR(
      Launched(LaunchOrderRows(rows, order_, live_count_, stream_), "order the rows"));
  int32_t live = 0;
  LOSSD_RETURN_IF_ERROR(device_->CopyOut(&live, live_count_, sizeof(live)));
  LOSSD_RETURN_IF_ERROR(device_->Synchronize());
  ExpOrder out;
  out.order = order_;
  out.rows = std::min(RoundUp(std::max(live, 1), kLiveMultiple), chunk.rows);
  if (out.rows > chunk.rows / 8 * 7) return all;
  LOSSD_RETURN_IF_ERROR(
      Launched(LaunchMoveRows(rows, order_, live, out.rows, stream_), "move exponentials"));
  return out;
}

// The hidden rows times their factors: over the gathered copy if nobody reads it again, or where the sums were.
absl::Status HeadRun::ScaleExpRows(const Chunk& chunk, const ExpRows& rows, const ExpOrder& order,
                                   PackedRows* scaled) {
  if (order.order != nullptr || !gather_ || weight_path_ == WeightPath::kSlices) {
    scaled->data = late_;
    scaled->stride = x_stride_;
  }
  return Launched(
      LaunchScaleRows(static_cast<uint16_t*>(scaled->data), scaled->stride, rows.x, rows.x_stride,
                      order.rows, head_.hidden_size, rows.factor, order.order, stream_),
      "scale hidden rows");
}

absl::Status HeadRun::MakeExpGradients(const Chunk& chunk, const ExpRows& rows) {
  Chunk scaled = chunk;
  scaled.dz = {region_, DType::kBF16, stride_, chunk.rows, columns_};
  if (pass_.gradients.bias) {
    LOSSD_RETURN_IF_ERROR(Launched(LaunchSumColumns(scaled.dz, bias_partials_, bias_sums_,
                                                    !chunk.first, nullptr, rows.factor, stream_),
                                   "add up grad_bias"));
  }
  LOSSD_ASSIGN_OR_RETURN(const ExpOrder order, DropRows(chunk, rows));
  gradient_rows_ += order.rows;
  scaled.real = scaled.dz.rows = order.rows;
  if (pass_.gradients.weight && weight_path_ != WeightPath::kSlices) {
    LOSSD_RETURN_IF_ERROR(ScaleExpRows(chunk, rows, order, &scaled.x));
    LOSSD_RETURN_IF_ERROR(AddWeightGradient(scaled));
  }
  const RowsView& hidden = pass_.gradients.hidden;
  if (!hidden) return absl::OkStatus();
  for (int64_t first = 0; first < chunk.rows; first += kExpDxRows) {
    const int64_t count = std::min(kExpDxRows, chunk.rows - first);
    const int64_t live = std::clamp<int64_t>(order.rows - first, 0, count);
    const PackedRows tile = {late_, DType::kF32, x_stride_, live, head_.hidden_size};
    if (live > 0) LOSSD_RETURN_IF_ERROR(MultiplyByWeight(scaled, first, live, tile));
    LOSSD_RETURN_IF_ERROR(Launched(
        LaunchScatterScaledRows(hidden, static_cast<const float*>(tile.data), tile.stride, first,
                                count, rows.index, rows.factor, order.order, pass_.record, stream_),
        "scatter grad_hidden"));
  }
  return absl::OkStatus();
}

// The filter's products write gradients themselves, two numbers at a time.
bool HeadRun::CanFilter() const {
  const HeadGradients& gradients = pass_.gradients;
  if (!(pass_.gradient_filter > 0) || gradients.bias || !(gradients.hidden || gradients.weight)) {
    return false;
  }
  const auto takes = [&](const RowsView& view) {
    return !view || (IsDirect(view) && reinterpret_cast<uintptr_t>(view.data) % 8 == 0 &&
                     (view.rows <= 1 || view.lead_strides[0] % 2 == 0));
  };
  return takes(gradients.hidden) && takes(gradients.weight);
}

int64_t HeadRun::FilterBytes(int64_t rows) const {
  BlockLists lists;
  lists.rows = rows;
  lists.columns = columns_;
  const int64_t blocks = lists.ColumnBlocks();
  return rows * (blocks + 4) + lists.RowBlocks() * blocks +
         2 * (lists.RowGroups() * blocks + lists.ColumnGroups() * lists.RowBlocks()) +
         4 * (lists.RowGroups() + lists.ColumnGroups()) + 8 * int64_t{Arena::kAlignment};
}

absl::Status HeadRun::AllocateFilter(int64_t rows) {
  lists_.rows = rows;
  lists_.columns = columns_;
  lists_.bound = pass_.gradient_filter;
  lists_.mass_stride = lists_.ColumnBlocks();
  const char* what = "the filter's blocks";
  LOSSD_ASSIGN_OR_RETURN(mass_, arena_.AllocateArray<uint8_t>(rows * lists_.mass_stride, what));
  lists_.mass = mass_;
  LOSSD_ASSIGN_OR_RETURN(exp_rows_.total, arena_.AllocateArray<float>(rows, what));
  LOSSD_ASSIGN_OR_RETURN(lists_.flags, arena_.AllocateArray<uint8_t>(
                                           lists_.RowBlocks() * lists_.ColumnBlocks(), what));
  LOSSD_ASSIGN_OR_RETURN(lists_.columns_of, arena_.AllocateArray<uint16_t>(
                                                lists_.RowGroups() * lists_.ColumnBlocks(), what));
  LOSSD_ASSIGN_OR_RETURN(lists_.rows_of, arena_.AllocateArray<uint16_t>(
                                             lists_.ColumnGroups() * lists_.RowBlocks(), what));
  LOSSD_ASSIGN_OR_RETURN(lists_.column_counts,
                         arena_.AllocateArray<int32_t>(lists_.RowGroups(), what));
  LOSSD_ASSIGN_OR_RETURN(lists_.row_counts,
                         arena_.AllocateArray<int32_t>(lists_.ColumnGroups(), what));
  return absl::OkStatus();
}

absl::Status HeadRun::MakeFilteredGradients(const Chunk& chunk, const ExpRows& rows) {
  BlockLists lists = lists_;
  lists.rows = chunk.rows;
  lists.total = rows.total;
  lists.factor = rows.factor;
  lists.target = rows.target;
  LOSSD_RETURN_IF_ERROR(Launched(LaunchBlockLists(lists, stream_), "list the blocks"));
  const auto map = [&](const void* data, int64_t count, int64_t columns, int64_t stride, int box,
                       CUtensorMap* to) {
    return MakeExpMap(data, count, columns, stride, box, to) == CUDA_SUCCESS
               ? absl::OkStatus()
               : absl::InternalError("the driver cannot describe an operand of the gradients");
  };
  const HeadGradients& gradients = pass_.gradients;
  ListedProduct product;
  product.n = static_cast<int32_t>(head_.hidden_size);
  product.record = pass_.record;
  if (gradients.weight) {
    PackedRows scaled = chunk.x;
    LOSSD_RETURN_IF_ERROR(ScaleExpRows(chunk, rows, {chunk.rows, nullptr}, &scaled));
    LOSSD_RETURN_IF_ERROR(map(rows.e, chunk.rows, columns_, stride_, kListedTerms, &product.a));
    LOSSD_RETURN_IF_ERROR(
        map(scaled.data, chunk.rows, head_.hidden_size, scaled.stride, kListedTerms, &product.b));
    product.transposed = true;
    product.m = static_cast<int32_t>(columns_);
    product.list = {lists.rows_of, lists.RowBlocks(), lists.row_counts, 1};
    const bool direct = weight_path_ == WeightPath::kDirect;
    product.d = direct ? gradients.weight.data : dw_;
    product.dtype = direct ? gradients.weight.dtype : DType::kF32;
    product.d_stride = !direct || gradients.weight.rows <= 1 ? head_.hidden_size
                                                             : gradients.weight.lead_strides[0];
    product.adds = !chunk.first || (direct && gradients.weight_mode == GradMode::kAccumulate);
    LOSSD_RETURN_IF_ERROR(
        Launched(LaunchListedProduct(product, stream_), "multiply the blocks of grad_weight"));
  }
  if (!gradients.hidden) return absl::OkStatus();
  const int64_t weight_stride =
      head_.weight.rows <= 1 ? head_.hidden_size : head_.weight.lead_strides[0];
  LOSSD_RETURN_IF_ERROR(map(rows.e, chunk.rows, columns_, stride_, kListedRows / 2, &product.a));
  LOSSD_RETURN_IF_ERROR(
      map(head_.weight.data, columns_, head_.hidden_size, weight_stride, kListedTerms, &product.b));
  product.transposed = false;
  product.m = static_cast<int32_t>(chunk.rows);
  product.list = {lists.columns_of, lists.ColumnBlocks(), lists.column_counts, 1};
  product.d = gradients.hidden.data;
  product.dtype = gradients.hidden.dtype;
  product.d_stride =
      gradients.hidden.rows <= 1 ? head_.hidden_size : gradients.hidden.lead_strides[0];
  product.adds = false;
  product.index = rows.index;
  product.factor = rows.factor;
  return Launched(LaunchListedProduct(product, stream_), "multiply the blocks of grad_hidden");
}

// grad_weight slice by slice, each finished by one product over all rows: their references and factors are known now.
absl::Status HeadRun::RunExpSlices() {
  Chunk all;
  all.rows = all.real = rows_;
  all.x = {gather_ ? x_ : head_.hidden.data, product_,
           gather_ ? x_stride_
                   : (head_.hidden.rows <= 1 ? head_.hidden.width : head_.hidden.lead_strides[0]),
           rows_, head_.hidden_size};
  ExpRows rows = ExpRowsOf(all);
  rows.which = ExpSums::kExp;
  Chunk scaled = all;
  LOSSD_RETURN_IF_ERROR(ScaleExpRows(all, rows, {all.rows, nullptr}, &scaled.x));
  std::byte* next = late_ + RoundUp(rows_ * x_stride_ * 2, int64_t{Arena::kAlignment});
  rows.e = reinterpret_cast<uint16_t*>(next);
  rows.e_stride = slice_columns_;
  next += RoundUp(rows_ * slice_columns_ * 2, int64_t{Arena::kAlignment});
  rows.sums = reinterpret_cast<float*>(next);
  for (int64_t begin = 0; begin < columns_; begin += slice_columns_) {
    const int64_t columns = std::min(slice_columns_, columns_ - begin);
    // The targets are columns of the whole vocabulary: those of a slice have been found, and target_d is not read again.
    LOSSD_RETURN_IF_ERROR(MultiplyExp(all, rows, begin, columns, true));
    LOSSD_RETURN_IF_ERROR(
        Launched(LaunchExpEntries(rows, begin, columns, stream_), "put the targets' entries"));
    scaled.dz = {rows.e, DType::kBF16, slice_columns_, rows_, columns};
    LOSSD_RETURN_IF_ERROR(MakeWeightSlice(scaled, begin, columns));
  }
  return absl::OkStatus();
}

}  // namespace lossd
