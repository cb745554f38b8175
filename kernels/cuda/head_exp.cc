// The way of a HeadRun by the product with the exponential in its epilogue.
#include <algorithm>
#include <type_traits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/head_run.h"
#include "kernels/objectives/program_needs.h"

namespace lossd {
namespace {

// Rows of a tile of grad_hidden: as many as the library's product wants to fill the GPU.
constexpr int64_t kDxRows = 4096;
// Chunks are whole pairs of tiles, but for the last.
constexpr int64_t kRowMultiple = 2 * kExpTileRows;
// What a row takes beside e, x and the sums.
constexpr int64_t kRowBytes = 64;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool IsKnown(const RowProgram& program) {
  return std::visit([](const auto& of) { return std::decay_t<decltype(of)>::kKnowsStatistics; },
                    program);
}

ExpSums SumsFor(const RowProgram& program) {
  const StatisticsRead read =
      std::visit([](const auto& of) { return StatisticsReadBy(of); }, program);
  return read == StatisticsRead::kExp       ? ExpSums::kExp
         : read == StatisticsRead::kEntropy ? ExpSums::kEntropy
                                            : ExpSums::kAll;
}

// The field by which a sweep asks for more than the epilogue gives; null if there is none.
const char* FieldBeyondExp(const HeadPass& pass) {
  const RowColumns& columns = pass.columns;
  if (columns.ids_logprob) return "ids_logprob";
  if (columns.topk_ids || columns.topk_logprob) return "top_k";
  if (columns.d_ids_logprob) return "d_ids_logprob";
  if (pass.column_weight != nullptr) return "class_weight";
  // Statistics of a shard are relative to its maximum.
  const auto* logprob = std::get_if<LogprobRows>(&pass.program);
  if (logprob != nullptr && logprob->vocab_stats) return "vocab_stats";
  if (!pass.gradients.any()) return nullptr;
  return std::visit([](const auto& of) { return OtherGradientTerm(of); }, pass.program);
}

}  // namespace

HeadRun::Refusal HeadRun::WhyNotExp() const {
  if (!facts_.has_exp_product()) return {"compute capability", "is not 9.0"};
  if (product_ != DType::kBF16) return {"hidden, weight", "are not multiplied in bf16"};
  if (step_ != nullptr) return {"teacher", "is compared logit by logit"};
  if (head_.softcap > 0) return {"softcap", "bends the logits before the exponential"};
  if (head_.hidden_size % 8 != 0) return {"hidden", "is not a multiple of 8 wide"};
  if (!IsAligned(head_.weight)) return {"weight", "has rows that do not start at 16 bytes"};
  const char* field = FieldBeyondExp(pass_);
  if (field == nullptr && first_ != nullptr) field = FieldBeyondExp(*first_);
  if (field != nullptr) return {field, "needs the logits again"};
  if (!exp_allowed_) return {"workspace", "does not hold the exponentials of a few rows"};
  return {};
}

// The sums are dead when the rows are scaled, and these when grad_hidden is made.
int64_t HeadRun::ExpLateBytes(int64_t rows) const {
  int64_t bytes = rows * kExpSumsCount[static_cast<int>(exp_rows_.which)] * exp_rows_.tiles * 4;
  if (pass_.gradients.weight && !gather_) bytes = std::max(bytes, rows * x_stride_ * 2);
  if (pass_.gradients.hidden) bytes = std::max(bytes, std::min(rows, kDxRows) * x_stride_ * 4);
  return bytes;
}

int64_t HeadRun::ExpBytes(int64_t rows) const {
  int64_t bytes = ExpLateBytes(rows) + rows * kRowBytes;
  if (pass_.gradients.any()) bytes += rows * stride_ * 2;
  if (gather_) bytes += rows * x_stride_ * 2;
  return bytes;
}

absl::StatusOr<bool> HeadRun::PlanExp() {
  const RowsView& weight = pass_.gradients.weight;
  const uint64_t used = arena_.used();
  const HeadPass& reader = first_ != nullptr ? *first_ : pass_;
  index_ = pass_.rows.index;
  exp_rows_.which = SumsFor(reader.program);
  exp_rows_.tiles = static_cast<int32_t>((columns_ + kExpTileColumns - 1) / kExpTileColumns);
  int64_t bias_bytes = head_.bias ? int64_t{exp_rows_.tiles} * kExpTileColumns * 4 : 0;
  if (pass_.gradients.bias) bias_bytes += (kBiasParts + 1) * head_.vocab * 4;
  // Each allocation may lose an alignment.
  constexpr int64_t kAllocations = 20;
  const auto fits = [&](int64_t rows) {
    return ExpBytes(rows) + bias_bytes + kAllocations * static_cast<int64_t>(Arena::kAlignment) <=
           static_cast<int64_t>(arena_.available());
  };
  if (weight) {
    weight_path_ = IsDirect(weight) ? WeightPath::kDirect : WeightPath::kTiles;
    if (weight_path_ == WeightPath::kTiles) LOSSD_RETURN_IF_ERROR(AllocateWeightPath());
  }
  int64_t rows = rows_;
  if (!fits(rows)) {
    if (first_ != nullptr) {
      arena_.ReleaseTo(used);
      return false;
    }
    if (weight && !(IsDirect(weight) && weight.dtype == DType::kF32)) {
      arena_.ReleaseTo(used);
      weight_path_ = WeightPath::kAccumulator;
      if (!AllocateWeightPath().ok()) {
        arena_.ReleaseTo(used);
        return false;
      }
    }
    int64_t chunks = 1;
    do {
      ++chunks;
      rows = RoundUp((rows_ + chunks - 1) / chunks, kRowMultiple);
    } while (!fits(rows) && rows > kRowMultiple);
    if (!fits(rows)) {
      arena_.ReleaseTo(used);
      return false;
    }
  }
  for (int64_t done = 0; done < rows_; done += rows) {
    plan_.chunks.push_back(std::min(rows, rows_ - done));
  }
  plan_.slices.resize(plan_.chunks.size());
  LOSSD_RETURN_IF_ERROR(AllocateExp());
  return true;
}

absl::Status HeadRun::AllocateExp() {
  const int64_t rows = plan_.LargestChunk();
  const int64_t pairs = (rows + kRowMultiple - 1) / kRowMultiple;
  const int64_t counts = kExpSumsCount[static_cast<int>(exp_rows_.which)];
  const auto array = [&](auto** to, int64_t count) -> absl::Status {
    LOSSD_ASSIGN_OR_RETURN(*to, (arena_.AllocateArray<std::remove_reference_t<decltype(**to)>>(
                                    count, "the rows' statistics")));
    return absl::OkStatus();
  };
  ExpRows& r = exp_rows_;
  for (float** to : {&r.slope, &r.reference, &r.target_z, &r.target_d, &r.factor}) {
    LOSSD_RETURN_IF_ERROR(array(to, rows));
  }
  LOSSD_RETURN_IF_ERROR(array(&r.totals, rows * counts));
  LOSSD_RETURN_IF_ERROR(array(&r.target, rows));
  LOSSD_RETURN_IF_ERROR(array(&r.largest, rows));
  LOSSD_RETURN_IF_ERROR(array(&r.pairs, pairs));
  LOSSD_RETURN_IF_ERROR(array(&r.repaired, pairs));
  LOSSD_RETURN_IF_ERROR(array(&r.pair_count, int64_t{1}));
  LOSSD_RETURN_IF_ERROR(array(&r.live, rows));
  if (head_.bias) {
    LOSSD_RETURN_IF_ERROR(array(&exp_bias_, int64_t{r.tiles} * kExpTileColumns));
  }
  if (pass_.gradients.bias) LOSSD_RETURN_IF_ERROR(AllocateBiasSums());
  if (gather_) {
    LOSSD_ASSIGN_OR_RETURN(void* x, arena_.Allocate(rows * x_stride_ * 2, "gathered hidden rows"));
    x_ = static_cast<std::byte*>(x);
  }
  if (pass_.gradients.any()) {
    LOSSD_ASSIGN_OR_RETURN(void* e, arena_.Allocate(rows * stride_ * 2, "exponentials"));
    region_ = static_cast<std::byte*>(e);
  }
  LOSSD_ASSIGN_OR_RETURN(void* late, arena_.Allocate(ExpLateBytes(rows), "sums of exponentials"));
  late_ = static_cast<std::byte*>(late);
  return absl::OkStatus();
}

// e and the rows' totals. Of a program that knows its statistics no row has the wrong reference.
absl::Status HeadRun::MultiplyExp(const Chunk& chunk, const ExpRows& rows, bool known) {
  ExpProduct product;
  const int64_t weight_stride =
      head_.weight.rows <= 1 ? head_.hidden_size : head_.weight.lead_strides[0];
  if (MakeExpMap(chunk.x.data, chunk.rows, head_.hidden_size, chunk.x.stride, kExpHiddenBox,
                 &product.hidden) != CUDA_SUCCESS ||
      MakeExpMap(head_.weight.data, columns_, head_.hidden_size, weight_stride, kExpWeightBox,
                 &product.weight) != CUDA_SUCCESS) {
    return absl::InternalError("the driver cannot describe the hidden states or the weight");
  }
  product.rows = static_cast<int32_t>(chunk.rows);
  product.columns = static_cast<int32_t>(columns_);
  product.hidden_size = static_cast<int32_t>(head_.hidden_size);
  product.slope = rows.slope;
  product.reference = rows.reference;
  product.target = rows.target;
  product.target_d = rows.target_d;
  product.bias = exp_bias_;
  product.e = reinterpret_cast<uint16_t*>(region_);
  product.e_stride = stride_;
  product.sums = rows.sums;
  product.sums_stride = chunk.rows;
  product.largest = known ? nullptr : rows.largest;
  LOSSD_RETURN_IF_ERROR(
      Launched(LaunchExpProduct(product, rows.which, stream_), "multiply the hidden states"));
  LOSSD_RETURN_IF_ERROR(Launched(LaunchExpTotals(rows, stream_), "add up exponentials"));
  if (known) return absl::OkStatus();
  product.largest = nullptr;
  product.pairs = rows.pairs;
  product.pair_count = rows.pair_count;
  return Launched(LaunchExpProduct(product, rows.which, stream_), "multiply some rows again");
}

absl::Status HeadRun::RunExpChunk(const Chunk& chunk) {
  const HeadPass& reader = first_ != nullptr ? *first_ : pass_;
  const bool known = IsKnown(reader.program);
  const bool has_gradient = pass_.gradients.any();
  ExpRows rows = exp_rows_;
  rows.head = head_;
  rows.rows = chunk.rows;
  rows.index = index_ + chunk.begin;
  rows.x = static_cast<const uint16_t*>(chunk.x.data);
  rows.x_stride = chunk.x.stride;
  rows.sums = reinterpret_cast<float*>(late_);
  rows.record = pass_.record;
  rows.e_stride = stride_;
  LOSSD_RETURN_IF_ERROR(
      Launched(LaunchExpReferences(rows, reader.program, stream_), "find the rows' references"));
  LOSSD_RETURN_IF_ERROR(MultiplyExp(chunk, rows, known));
  if (first_ != nullptr) {
    LOSSD_RETURN_IF_ERROR(
        Launched(LaunchExpAnswers(rows, first_->program, stream_), "run the row program"));
    LOSSD_RETURN_IF_ERROR((*between_)());
  }
  if (has_gradient) rows.e = reinterpret_cast<uint16_t*>(region_);
  LOSSD_RETURN_IF_ERROR(
      Launched(LaunchExpAnswers(rows, pass_.program, stream_), "run the row program"));
  return has_gradient ? MakeExpGradients(chunk, rows) : absl::OkStatus();
}

absl::Status HeadRun::MakeExpGradients(const Chunk& chunk, const ExpRows& rows) {
  Chunk scaled = chunk;
  scaled.dz = {region_, DType::kBF16, stride_, chunk.rows, columns_};
  if (pass_.gradients.bias) {
    LOSSD_RETURN_IF_ERROR(Launched(LaunchSumColumns(scaled.dz, bias_partials_, bias_sums_,
                                                    !chunk.first, nullptr, rows.factor, stream_),
                                   "add up grad_bias"));
  }
  if (pass_.gradients.weight) {
    if (!gather_) {
      scaled.x.data = late_;
      scaled.x.stride = x_stride_;
    }
    LOSSD_RETURN_IF_ERROR(Launched(
        LaunchScaleRows(static_cast<uint16_t*>(scaled.x.data), scaled.x.stride, rows.x,
                        rows.x_stride, chunk.rows, head_.hidden_size, rows.factor, stream_),
        "scale hidden rows"));
    LOSSD_RETURN_IF_ERROR(AddWeightGradient(scaled));
  }
  const RowsView& hidden = pass_.gradients.hidden;
  if (!hidden) return absl::OkStatus();
  for (int64_t first = 0; first < chunk.rows; first += kDxRows) {
    const int64_t count = std::min(kDxRows, chunk.rows - first);
    const PackedRows tile = {late_, DType::kF32, x_stride_, count, head_.hidden_size};
    if (columns_ > 0) LOSSD_RETURN_IF_ERROR(MultiplyByWeight(scaled, first, count, tile));
    LOSSD_RETURN_IF_ERROR(
        Launched(LaunchScatterScaledRows(hidden, static_cast<const float*>(tile.data), tile.stride,
                                         count, index_ + chunk.begin + first, rows.factor + first,
                                         pass_.record, stream_),
                 "scatter grad_hidden"));
  }
  return absl::OkStatus();
}

}  // namespace lossd
