// The decisions of a HeadRun and its memory.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/head_run.h"

namespace lossd {
namespace {

// Rows of one product with batch_invariant: the same kernel, whatever the call.
constexpr int64_t kInvariantRows = 256;
// Smallest chunk worth running; below it the workspace is too small for the vocabulary.
constexpr int64_t kMinRows = 16;
// Weights of fewer elements are multiplied in fp32: launches dominate there, so exactness is free. By the weight alone, since the number
// of rows must not change a row's bits.
constexpr int64_t kExactElements = int64_t{1} << 16;
constexpr int64_t kDxTileRows = 1024;
// Chunks of this many rows use the GPU as well as larger ones.
constexpr int64_t kLargeRows = 2048;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Rows `stride` apart, as the products want them.
bool IsEven(const RowsView& view) {
  return view.lead_rank == 1 && (view.rows <= 1 || view.lead_strides[0] >= view.width);
}

}  // namespace

bool HeadRun::IsAligned(const RowsView& view) {
  return IsEven(view) && reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
         (view.rows <= 1 || view.lead_strides[0] % 8 == 0);
}

bool HeadRun::IsDirect(const RowsView& view) const {
  return IsEven(view) && (view.dtype == DType::kF32 || view.dtype == product_);
}

DType HeadRun::ProductType() const {
  const bool large = head_.vocab * head_.hidden_size > kExactElements;
  return head_.hidden.dtype == head_.weight.dtype && large ? head_.hidden.dtype : DType::kF32;
}

absl::Status HeadRun::Plan() {
  const HeadGradients& gradients = pass_.gradients;
  const RowSet& rows = pass_.rows;
  product_ = ProductType();
  why_not_exp_ = WhyNotExp();
  exp_ = why_not_exp_.what == nullptr;
  // The kernel with the epilogue multiplies every row alike.
  const bool tiled = pass_.batch_invariant && !exp_;
  real_rows_ = rows.host_count >= 0 ? rows.host_count : head_.rows;
  rows_ = tiled ? RoundUp(real_rows_, kInvariantRows) : real_rows_;
  columns_ = head_.valid_columns;
  stride_ = RoundUp(head_.vocab, 64);
  x_stride_ = RoundUp(head_.hidden_size, 8);
  identity_ = real_rows_ == head_.rows;
  gather_ = head_.hidden.dtype != product_ || !IsEven(head_.hidden) || !identity_ || tiled ||
            (exp_ && !IsAligned(head_.hidden));
  convert_weight_ = head_.weight.dtype != product_ || !IsEven(head_.weight);
  if (gradients.any()) {
    dz_mode_ = product_ == DType::kF32    ? DzMode::kF32
               : product_ == DType::kBF16 ? DzMode::kBF16
                                          : DzMode::kF16;
  }
  if (gradients.hidden) {
    dx_direct_ = identity_ && IsDirect(gradients.hidden);
    dx_dtype_ = gradients.hidden.dtype == product_ ? product_ : DType::kF32;
  }
  shape_ = ChooseRowShape(head_.vocab, facts_.has_clusters(), facts_.shared_bytes_per_block);
  if (rows_ == 0) return absl::OkStatus();
  if (exp_) {
    LOSSD_ASSIGN_OR_RETURN(const bool fits, PlanExp());
    if (fits) return absl::OkStatus();
    // Not even a few rows: the other way has smaller ones.
    if (first_ != nullptr) return absl::OkStatus();
    exp_allowed_ = false;
    return Plan();
  }
  LOSSD_RETURN_IF_ERROR(AllocateFixed());
  return PlanChunksOrFail();
}

absl::Status HeadRun::AllocateFixed() {
  const HeadGradients& gradients = pass_.gradients;
  const int64_t element = static_cast<int64_t>(SizeOf(product_));
  if (rows_ == real_rows_) {
    index_ = pass_.rows.index;
  } else {
    LOSSD_ASSIGN_OR_RETURN(padded_index_, arena_.AllocateArray<int32_t>(rows_, "the row numbers"));
    index_ = padded_index_;
  }
  if (convert_weight_) {
    const int64_t row_bytes = x_stride_ * element;
    const auto share = static_cast<int64_t>(arena_.available() / 8);
    weight_tile_rows_ =
        std::min(RoundUp(head_.vocab, 64), std::max<int64_t>(64, share / row_bytes / 64 * 64));
    LOSSD_ASSIGN_OR_RETURN(weight_tile_, arena_.Allocate(weight_tile_rows_ * row_bytes,
                                                         "a converted tile of the weight"));
  }
  if (!gradients.any()) return absl::OkStatus();
  LOSSD_ASSIGN_OR_RETURN(live_, arena_.AllocateArray<uint8_t>(rows_, "the row flags"));
  if (dz_mode_ == DzMode::kF16) {
    LOSSD_ASSIGN_OR_RETURN(scalars_, arena_.AllocateArray<DzScalars>(1, "the scale of dz"));
    LOSSD_ASSIGN_OR_RETURN(stored_,
                           arena_.AllocateArray<StoredRow>(head_.rows, "the rows' coefficients"));
  }
  if (gradients.bias) LOSSD_RETURN_IF_ERROR(AllocateBiasSums());
  if (gradients.hidden && !dx_direct_) {
    dx_tile_rows_ = std::min(kDxTileRows, real_rows_);
    LOSSD_ASSIGN_OR_RETURN(dx_tile_, arena_.Allocate(dx_tile_rows_ * x_stride_ * SizeOf(dx_dtype_),
                                                     "a tile of grad_hidden"));
  }
  return absl::OkStatus();
}

absl::Status HeadRun::Prepare() {
  if (padded_index_ != nullptr) {
    LOSSD_RETURN_IF_ERROR(Launched(
        LaunchMakeIndex(pass_.rows, head_.rows, rows_, padded_index_, stream_), "number the rows"));
  }
  if (scalars_ != nullptr) {
    LOSSD_RETURN_IF_ERROR(Launched(LaunchInitScalars(scalars_, stream_), "start the scale"));
  }
  if (exp_bias_ == nullptr) return absl::OkStatus();
  return Launched(LaunchExpBias(head_.bias, columns_, int64_t{exp_rows_.tiles} * kExpTileColumns,
                                exp_bias_, stream_),
                  "copy the bias");
}

absl::Status HeadRun::AllocateBiasSums() {
  LOSSD_ASSIGN_OR_RETURN(bias_sums_, arena_.AllocateArray<float>(head_.vocab, "grad_bias in fp32"));
  LOSSD_ASSIGN_OR_RETURN(
      bias_partials_, arena_.AllocateArray<float>(kBiasParts * head_.vocab, "parts of grad_bias"));
  return absl::OkStatus();
}

ChunkRequest HeadRun::MakeRequest() const {
  const int64_t x_bytes = x_stride_ * static_cast<int64_t>(SizeOf(product_));
  ChunkRequest request;
  request.rows = rows_;
  request.logits_bytes = stride_ * 4;
  request.row_bytes = gather_ ? x_bytes : 0;
  request.late_row_bytes = pass_.gradients.weight && !gather_ ? x_bytes : 0;
  request.sliced = dz_mode_ == DzMode::kBF16;
  if (step_ != nullptr) {
    request.row_bytes += step_->RowBytes();
    request.one_slice = true;
  }
  if (pass_.batch_invariant) request.row_multiple = kInvariantRows;
  // Each of the two allocations may lose an alignment.
  request.budget =
      static_cast<int64_t>(arena_.available() / Arena::kAlignment * Arena::kAlignment) -
      2 * static_cast<int64_t>(Arena::kAlignment);
  return request;
}

absl::Status HeadRun::AllocateWeightPath() {
  const int64_t row_bytes = head_.hidden_size * 4;
  if (weight_path_ == WeightPath::kAccumulator) {
    dw_rows_ = columns_;
  } else {
    const auto share = static_cast<int64_t>(arena_.available() / 8);
    dw_rows_ = std::min(columns_, std::max<int64_t>(64, share / row_bytes / 64 * 64));
  }
  LOSSD_ASSIGN_OR_RETURN(
      dw_, arena_.AllocateArray<float>(dw_rows_ * head_.hidden_size, "grad_weight in fp32"));
  return absl::OkStatus();
}

// grad_weight in fp32 adds chunks up by itself: chunks of one slice each, if they are large. The products of small slices read the whole
// weight for a few rows.
bool HeadRun::PlanLargeChunks() {
  ChunkRequest request = MakeRequest();
  request.one_slice = true;
  if (PlanChunks(request, std::min(kLargeRows, rows_), &plan_) &&
      plan_.LargestChunk() >= std::min(kLargeRows, rows_)) {
    return true;
  }
  return PlanOneChunk(MakeRequest(), &plan_);
}

// All rows in one chunk though a step wants memory beside the logits: slices of equal size, each in the same place behind dz. The products
// of the gradients then run once, over all rows.
bool HeadRun::PlanApart() {
  if (step_ == nullptr || dz_mode_ != DzMode::kBF16) return false;
  ChunkRequest request = MakeRequest();
  const int64_t step_bytes = step_->RowBytes();
  const int64_t late_bytes = rows_ * request.late_row_bytes;
  for (const int64_t slice : {1024, 512, 256}) {
    if (slice >= rows_) continue;
    const int64_t behind = std::max(slice * request.logits_bytes, late_bytes);
    const int64_t each = request.logits_bytes / 2 + request.row_bytes - step_bytes;
    if (rows_ * each + behind + slice * step_bytes > request.budget) continue;
    plan_.chunks.assign(1, rows_);
    plan_.slices.assign(1, std::vector<int64_t>(static_cast<size_t>(rows_ / slice), slice));
    if (rows_ % slice != 0) plan_.slices[0].push_back(rows_ % slice);
    apart_rows_ = slice;
    return true;
  }
  return false;
}

absl::Status HeadRun::PlanChunksOrFail() {
  const RowsView& weight = pass_.gradients.weight;
  const uint64_t used = arena_.used();
  const int64_t min_rows = pass_.batch_invariant ? kInvariantRows : kMinRows;
  bool fits = false;
  if (weight && !IsDirect(weight)) {
    weight_path_ = WeightPath::kTiles;
    LOSSD_RETURN_IF_ERROR(AllocateWeightPath());
  } else if (weight) {
    weight_path_ = WeightPath::kDirect;
  }
  if (first_ != nullptr) {
    ChunkRequest request = MakeRequest();
    request.one_slice = true;
    fits = PlanOneChunk(request, &plan_);
    if (!fits) {
      plan_ = ChunkPlan();
      return absl::OkStatus();
    }
  } else if (step_ != nullptr && (PlanOneChunk(MakeRequest(), &plan_) || PlanApart())) {
    fits = true;
  } else {
    fits = weight_path_ == WeightPath::kDirect && weight.dtype == DType::kF32
               ? PlanLargeChunks()
               : PlanOneChunk(MakeRequest(), &plan_);
  }
  if (!fits && weight && !(IsDirect(weight) && weight.dtype == DType::kF32)) {
    arena_.ReleaseTo(used);
    weight_path_ = WeightPath::kAccumulator;
    LOSSD_RETURN_IF_ERROR(AllocateWeightPath());
  }
  if (!fits) fits = PlanChunks(MakeRequest(), min_rows, &plan_);
  const ChunkRequest request = MakeRequest();
  if (!fits) {
    return ReasonError(
        absl::StatusCode::kResourceExhausted, "WORKSPACE",
        absl::StrCat("workspace: ", std::min(min_rows, rows_), " rows of ", head_.vocab,
                     " logits need ",
                     std::min(min_rows, rows_) *
                         (request.logits_bytes + request.row_bytes + request.late_row_bytes),
                     " bytes, ", arena_.available(), " of ", arena_.bytes(),
                     " are free; start the server with a larger workspace"));
  }
  int64_t region = 0;
  for (const auto& slices : plan_.slices) region = std::max(region, RegionBytes(request, slices));
  if (apart_rows_ > 0) {
    region = rows_ * (request.logits_bytes / 2) +
             std::max(apart_rows_ * request.logits_bytes, rows_ * request.late_row_bytes);
  }
  if (gather_) {
    LOSSD_ASSIGN_OR_RETURN(void* x, arena_.Allocate(plan_.LargestChunk() * x_stride_ *
                                                        static_cast<int64_t>(SizeOf(product_)),
                                                    "gathered hidden rows"));
    x_ = static_cast<std::byte*>(x);
  }
  LOSSD_ASSIGN_OR_RETURN(void* memory, arena_.Allocate(region, "logits"));
  region_ = static_cast<std::byte*>(memory);
  if (step_ != nullptr) {
    return step_->Allocate(apart_rows_ > 0 ? apart_rows_ : plan_.LargestChunk());
  }
  return absl::OkStatus();
}

}  // namespace lossd
