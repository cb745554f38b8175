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

// Chunks are whole pairs of tiles, but for the last.
constexpr int64_t kRowMultiple = 2 * kExpTileRows;
// What a row takes beside e, x and the sums.
constexpr int64_t kRowBytes = 72;
// Chunks of this many rows use the GPU as well as larger ones, and an accumulator costs them little.
constexpr int64_t kSmallChunk = 1024;

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
  if (ProductType() != DType::kBF16) return {"hidden, weight", "are not multiplied in bf16"};
  if (step_ != nullptr) return {"teacher", "is compared logit by logit"};
  if (head_.valid_columns == 0) return {"valid_vocab", "leaves no column here"};
  if (head_.softcap > 0) return {"softcap", "bends the logits before the exponential"};
  if (head_.hidden_size % 8 != 0) return {"hidden", "is not a multiple of 8 wide"};
  if (!IsAligned(head_.weight)) return {"weight", "has rows that do not start at 16 bytes"};
  const char* field = FieldBeyondExp(pass_);
  if (field == nullptr && first_ != nullptr) field = FieldBeyondExp(*first_);
  if (field != nullptr) return {field, "needs the logits again"};
  if (!exp_allowed_) return {"workspace", "does not hold the exponentials of a few rows"};
  return {};
}

HeadPass HeadRun::StatisticsOnly(const HeadPass& pass) {
  HeadPass statistics = pass;
  statistics.gradients = HeadGradients();
  statistics.columns = RowColumns();
  return statistics;
}

bool HeadRun::TakesStatistics() const {
  if (!pass_.batch_invariant || IsKnown(pass_.program) || WhyNotExp().what == nullptr) return false;
  const HeadPass statistics = StatisticsOnly(pass_);
  const HeadRun forward(statistics, CudaMachine{facts_, &arena_});
  return forward.WhyNotExp().what == nullptr;
}

// The sums are dead when the rows are scaled, and these when grad_hidden is made.
int64_t HeadRun::ExpLateBytes(int64_t rows) const {
  int64_t bytes = rows * kExpSumsCount[static_cast<int>(exp_rows_.which)] * exp_rows_.tiles * 4;
  const bool scales = pass_.gradients.weight && weight_path_ != WeightPath::kSlices;
  if (scales && (!gather_ || DropsRows())) bytes = std::max(bytes, rows * x_stride_ * 2);
  if (pass_.gradients.hidden) bytes = std::max(bytes, std::min(rows, kExpDxRows) * x_stride_ * 4);
  return RoundUp(bytes, static_cast<int64_t>(Arena::kAlignment));
}

// Whether the first sweep keeps e.
bool HeadRun::StoresExp() const {
  const HeadGradients& gradients = pass_.gradients;
  return gradients.hidden || gradients.bias ||
         (gradients.weight && weight_path_ != WeightPath::kSlices);
}

// Of a chunk, beside the arrays of its rows.
int64_t HeadRun::ExpBytes(int64_t rows) const {
  int64_t bytes = ExpLateBytes(rows);
  if (StoresExp()) bytes += rows * stride_ * 2;
  if (filters_) bytes += FilterBytes(rows);
  return bytes;
}

// Of a slice of the vocabulary over all rows: e, its sums, the scaled rows.
int64_t HeadRun::ExpSliceBytes(int64_t columns) const {
  const int64_t tiles = (columns + kExpTileColumns - 1) / kExpTileColumns;
  return rows_ * (columns * 2 + x_stride_ * 2 + tiles * 4) + 2 * int64_t{Arena::kAlignment};
}

// What is left for chunks and slices when everything else has its place.
int64_t HeadRun::ExpRoom() const {
  // Each allocation may lose an alignment.
  constexpr int64_t kAllocations = 24;
  int64_t bytes = kAllocations * static_cast<int64_t>(Arena::kAlignment);
  if (head_.bias) bytes += int64_t{exp_rows_.tiles} * kExpTileColumns * 4;
  if (pass_.gradients.bias) bytes += (kBiasParts + 1) * head_.vocab * 4;
  return static_cast<int64_t>(arena_.available()) - bytes;
}

// As few chunks as fit, about equal.
bool HeadRun::PlanExpChunks() {
  const bool slices = weight_path_ == WeightPath::kSlices;
  const int64_t row_bytes = kRowBytes + (gather_ ? x_stride_ * 2 : 0);
  const int64_t room = ExpRoom() - (slices ? rows_ * row_bytes : 0);
  const auto fits = [&](int64_t rows) {
    return ExpBytes(rows) + (slices ? 0 : rows * row_bytes) <= room;
  };
  plan_ = ChunkPlan();
  int64_t rows = rows_;
  for (int64_t chunks = 2; !fits(rows); ++chunks) {
    if (rows <= kExpTileRows) return false;
    // Whole pairs of tiles, unless the chunks are so small that half a pair matters.
    const int64_t each = (rows_ + chunks - 1) / chunks;
    rows = RoundUp(each, each > kSmallChunk ? kRowMultiple : kExpTileRows);
  }
  for (int64_t done = 0; done < rows_; done += rows) {
    plan_.chunks.push_back(std::min(rows, rows_ - done));
  }
  plan_.slices.resize(plan_.chunks.size());
  return true;
}

// The largest slice that fits beside all rows.
bool HeadRun::PlanExpSlices() {
  weight_path_ = WeightPath::kSlices;
  const int64_t row_bytes = kRowBytes + (gather_ ? x_stride_ * 2 : 0);
  const int64_t room = ExpRoom() - rows_ * row_bytes;
  int64_t low = 0;
  int64_t high = exp_rows_.tiles;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (ExpSliceBytes(middle * kExpTileColumns) <= room) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  if (low == 0) return false;
  // About equal slices.
  const int64_t count = (exp_rows_.tiles + low - 1) / low;
  slice_columns_ = (exp_rows_.tiles + count - 1) / count * kExpTileColumns;
  return PlanExpChunks();
}

absl::StatusOr<bool> HeadRun::PlanExp() {
  const RowsView& weight = pass_.gradients.weight;
  const uint64_t used = arena_.used();
  const HeadPass& reader = first_ != nullptr ? *first_ : pass_;
  index_ = pass_.rows.index;
  exp_rows_.which = SumsFor(reader.program);
  exp_rows_.tiles = static_cast<int32_t>((columns_ + kExpTileColumns - 1) / kExpTileColumns);
  if (weight) {
    weight_path_ = IsDirect(weight) ? WeightPath::kDirect : WeightPath::kTiles;
    if (weight_path_ == WeightPath::kTiles) LOSSD_RETURN_IF_ERROR(AllocateWeightPath());
  }
  filters_ = CanFilter();
  bool fits = PlanExpChunks();
  if (first_ != nullptr && plan_.chunks.size() > 1) fits = false;
  const bool adds_up = !weight || (IsDirect(weight) && weight.dtype == DType::kF32);
  if (fits && plan_.chunks.size() > 1 && !adds_up) {
    // Several chunks: an accumulator where it leaves room for large ones, else slices of the vocabulary.
    arena_.ReleaseTo(used);
    weight_path_ = WeightPath::kAccumulator;
    fits = AllocateWeightPath().ok() && PlanExpChunks();
    if (IsDirect(weight) && !(fits && plan_.LargestChunk() >= std::min(kSmallChunk, rows_))) {
      arena_.ReleaseTo(used);
      filters_ = false;
      fits = PlanExpSlices();
      if (!fits) {
        weight_path_ = WeightPath::kAccumulator;
        fits = AllocateWeightPath().ok() && PlanExpChunks();
      }
    }
  }
  if (!fits) {
    arena_.ReleaseTo(used);
    plan_ = ChunkPlan();
    weight_path_ = WeightPath::kNone;
    return false;
  }
  LOSSD_RETURN_IF_ERROR(AllocateExp());
  return true;
}

absl::Status HeadRun::AllocateExp() {
  const int64_t chunk_rows = plan_.LargestChunk();
  const bool slices = weight_path_ == WeightPath::kSlices;
  const int64_t rows = slices ? rows_ : chunk_rows;
  const int64_t pairs = (chunk_rows + kRowMultiple - 1) / kRowMultiple;
  const int64_t counts = kExpSumsCount[static_cast<int>(exp_rows_.which)];
  const auto array = [&](auto** to, int64_t count) -> absl::Status {
    LOSSD_ASSIGN_OR_RETURN(*to, (arena_.AllocateArray<std::remove_reference_t<decltype(**to)>>(
                                    count, "the rows' statistics")));
    return absl::OkStatus();
  };
  ExpRows& r = exp_rows_;
  for (float** to : {&r.slope, &r.reference, &r.target_z, &r.target_d}) {
    LOSSD_RETURN_IF_ERROR(array(to, rows));
  }
  LOSSD_RETURN_IF_ERROR(array(&r.totals, chunk_rows * counts));
  LOSSD_RETURN_IF_ERROR(array(&r.target, rows));
  LOSSD_RETURN_IF_ERROR(array(&r.largest, chunk_rows));
  LOSSD_RETURN_IF_ERROR(array(&r.pairs, pairs));
  LOSSD_RETURN_IF_ERROR(array(&r.repaired, pairs));
  LOSSD_RETURN_IF_ERROR(array(&r.pair_count, int64_t{1}));
  if (pass_.gradients.any()) {
    LOSSD_RETURN_IF_ERROR(array(&r.factor, rows));
    LOSSD_RETURN_IF_ERROR(array(&r.entry, rows));
    LOSSD_RETURN_IF_ERROR(array(&r.broken, rows));
  }
  if (DropsRows()) {
    LOSSD_RETURN_IF_ERROR(array(&order_, chunk_rows));
    LOSSD_RETURN_IF_ERROR(array(&live_count_, int64_t{1}));
  }
  if (head_.bias) {
    LOSSD_RETURN_IF_ERROR(array(&exp_bias_, int64_t{r.tiles} * kExpTileColumns));
  }
  if (pass_.gradients.bias) LOSSD_RETURN_IF_ERROR(AllocateBiasSums());
  if (gather_) {
    LOSSD_ASSIGN_OR_RETURN(void* x, arena_.Allocate(rows * x_stride_ * 2, "gathered hidden rows"));
    x_ = static_cast<std::byte*>(x);
  }
  if (filters_) LOSSD_RETURN_IF_ERROR(AllocateFilter(chunk_rows));
  int64_t bytes = ExpBytes(chunk_rows) - (filters_ ? FilterBytes(chunk_rows) : 0);
  if (slices) bytes = std::max(bytes, ExpSliceBytes(slice_columns_));
  LOSSD_ASSIGN_OR_RETURN(void* memory, arena_.Allocate(bytes, "exponentials and their sums"));
  late_ = static_cast<std::byte*>(memory);
  region_ = late_ + ExpLateBytes(chunk_rows);
  return absl::OkStatus();
}

// e of `columns` columns from `begin` on, and the rows' totals over them. Of a program that knows its statistics no row has the wrong
// reference.
absl::Status HeadRun::MultiplyExp(const Chunk& chunk, const ExpRows& rows, int64_t begin,
                                  int64_t columns, bool known) {
  ExpProduct product;
  const int64_t weight_stride =
      head_.weight.rows <= 1 ? head_.hidden_size : head_.weight.lead_strides[0];
  const auto* weight = static_cast<const uint16_t*>(head_.weight.data) + begin * weight_stride;
  if (MakeExpMap(chunk.x.data, chunk.rows, head_.hidden_size, chunk.x.stride, kExpHiddenBox,
                 &product.hidden) != CUDA_SUCCESS ||
      MakeExpMap(weight, columns, head_.hidden_size, weight_stride, kExpWeightBox,
                 &product.weight) != CUDA_SUCCESS) {
    return absl::InternalError("the driver cannot describe the hidden states or the weight");
  }
  product.rows = static_cast<int32_t>(chunk.rows);
  product.columns = static_cast<int32_t>(columns);
  product.hidden_size = static_cast<int32_t>(head_.hidden_size);
  product.slope = rows.slope;
  product.reference = rows.reference;
  product.target = rows.target;
  product.target_d = rows.target_d;
  product.bias = exp_bias_ == nullptr ? nullptr : exp_bias_ + begin;
  product.e = rows.e;
  product.e_stride = rows.e_stride;
  product.sums = rows.sums;
  product.sums_stride = chunk.rows;
  product.largest = known ? nullptr : rows.largest;
  product.mass = mass_;
  product.mass_stride = (columns_ + kMassColumns - 1) / kMassColumns;
  LOSSD_RETURN_IF_ERROR(
      Launched(LaunchExpProduct(product, rows.which, stream_), "multiply the hidden states"));
  // A slice: everything is known.
  if (columns < columns_) return absl::OkStatus();
  LOSSD_RETURN_IF_ERROR(Launched(LaunchExpTotals(rows, stream_), "add up exponentials"));
  if (known) return absl::OkStatus();
  product.largest = nullptr;
  product.pairs = rows.pairs;
  product.pair_count = rows.pair_count;
  return Launched(LaunchExpProduct(product, rows.which, stream_), "multiply some rows again");
}

ExpRows HeadRun::ExpRowsOf(const Chunk& chunk) const {
  ExpRows rows = exp_rows_;
  rows.head = head_;
  rows.rows = chunk.rows;
  rows.index = index_ + chunk.begin;
  rows.x = static_cast<const uint16_t*>(chunk.x.data);
  rows.x_stride = chunk.x.stride;
  rows.record = pass_.record;
  rows.sums = reinterpret_cast<float*>(late_);
  if (StoresExp()) rows.e = reinterpret_cast<uint16_t*>(region_);
  rows.e_stride = stride_;
  if (weight_path_ != WeightPath::kSlices) return rows;
  // The arrays that slices of the vocabulary read again are those of all rows.
  rows.slope += chunk.begin;
  rows.reference += chunk.begin;
  rows.target_z += chunk.begin;
  rows.target_d += chunk.begin;
  rows.target += chunk.begin;
  rows.factor += chunk.begin;
  rows.entry += chunk.begin;
  rows.broken += chunk.begin;
  return rows;
}

absl::Status HeadRun::RunExpChunk(const Chunk& chunk) {
  const HeadPass& reader = first_ != nullptr ? *first_ : pass_;
  ExpRows rows = ExpRowsOf(chunk);
  LOSSD_RETURN_IF_ERROR(
      Launched(LaunchExpReferences(rows, reader.program, stream_), "find the rows' references"));
  LOSSD_RETURN_IF_ERROR(MultiplyExp(chunk, rows, 0, columns_, IsKnown(reader.program)));
  if (first_ != nullptr) {
    ExpRows forward = rows;
    forward.factor = nullptr;
    LOSSD_RETURN_IF_ERROR(
        Launched(LaunchExpAnswers(forward, first_->program, stream_), "run the row program"));
    LOSSD_RETURN_IF_ERROR((*between_)());
  }
  LOSSD_RETURN_IF_ERROR(
      Launched(LaunchExpAnswers(rows, pass_.program, stream_), "run the row program"));
  if (rows.e == nullptr) return absl::OkStatus();
  LOSSD_RETURN_IF_ERROR(
      Launched(LaunchExpEntries(rows, 0, columns_, stream_), "put the targets' entries"));
  return filters_ ? MakeFilteredGradients(chunk, rows) : MakeExpGradients(chunk, rows);
}

}  // namespace lossd
