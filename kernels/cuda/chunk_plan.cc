#include "kernels/cuda/chunk_plan.h"

#include <algorithm>

namespace lossd {
namespace {

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A slice of fewer rows than this makes the logits product slow: worth it to finish a call in one chunk, not otherwise.
constexpr int64_t kMinLastSlices = 128;
constexpr int64_t kMinSlice = 512;

// Slices that cover `rows` in `bytes`. False if a slice would be smaller than `min_slice`.
bool Slice(const ChunkRequest& request, int64_t rows, int64_t bytes, int64_t min_slice,
           std::vector<int64_t>* slices) {
  slices->clear();
  const int64_t logits_bytes = request.logits_bytes;
  const int64_t dz_bytes = logits_bytes / 2;
  if (rows * (dz_bytes + request.late_row_bytes) > bytes) return false;
  int64_t done = 0;
  while (done < rows) {
    const int64_t fit = (bytes - done * dz_bytes) / logits_bytes - ChunkPlan::kGapRows;
    int64_t take = std::min(fit, rows - done);
    if (take < rows - done) take = take / request.row_multiple * request.row_multiple;
    if (take <= 0 || (take < rows - done && take < min_slice)) return false;
    slices->push_back(take);
    done += take;
  }
  return true;
}

bool PlanChunk(const ChunkRequest& request, int64_t rows, int64_t min_slice,
               std::vector<int64_t>* slices) {
  const int64_t bytes = request.budget - rows * request.row_bytes;
  if (bytes <= 0) return false;
  slices->assign(1, rows);
  if (RegionBytes(request, *slices) <= bytes) return true;
  return request.sliced && !request.one_slice && Slice(request, rows, bytes, min_slice, slices);
}

}  // namespace

bool PlanOneChunk(const ChunkRequest& request, ChunkPlan* plan) {
  plan->chunks.assign(1, request.rows);
  plan->slices.resize(1);
  return PlanChunk(request, request.rows, kMinLastSlices, &plan->slices[0]);
}

bool PlanChunks(const ChunkRequest& request, int64_t min_rows, ChunkPlan* plan) {
  if (PlanOneChunk(request, plan)) return true;
  std::vector<int64_t> slices;
  // The largest chunk that fits: the function is monotone enough for a bisection over multiples.
  int64_t low = 0;
  const int64_t multiple = request.row_multiple;
  int64_t high = RoundUp(request.rows, multiple) / multiple;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (PlanChunk(request, middle * multiple, kMinSlice, &slices)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  int64_t largest = low * multiple;
  if (largest == 0) {
    const int64_t per_row = request.logits_bytes + request.row_bytes + request.late_row_bytes;
    largest = std::min(request.budget / per_row, request.rows);
    if (largest < std::min(min_rows, request.rows)) return false;
  }
  const int64_t count = (request.rows + largest - 1) / largest;
  int64_t each = (request.rows + count - 1) / count;
  if (largest >= multiple) each = std::min(RoundUp(each, multiple), largest);
  plan->chunks.clear();
  plan->slices.clear();
  for (int64_t done = 0; done < request.rows; done += plan->chunks.back()) {
    const int64_t rows = std::min(each, request.rows - done);
    plan->chunks.push_back(rows);
    plan->slices.emplace_back();
    if (!PlanChunk(request, rows, kMinSlice, &plan->slices.back())) return false;
  }
  return true;
}

int64_t RegionBytes(const ChunkRequest& request, const std::vector<int64_t>& slices) {
  const int64_t logits_bytes = request.logits_bytes;
  if (slices.size() == 1) {
    // In place, the half of each row that dz leaves free holds a late row, if it is large enough.
    const bool beside = request.sliced && request.late_row_bytes <= logits_bytes / 2;
    return slices[0] * (logits_bytes + (beside ? 0 : request.late_row_bytes));
  }
  int64_t most = 0;
  int64_t done = 0;
  for (const int64_t rows : slices) {
    most = std::max(most, done * (logits_bytes / 2) + (rows + ChunkPlan::kGapRows) * logits_bytes);
    done += rows;
  }
  return std::max(most, done * (logits_bytes / 2 + request.late_row_bytes));
}

int64_t SafeEnd(int64_t begin, int64_t slice_rows) {
  return std::min(slice_rows, 2 * (begin + ChunkPlan::kGapRows));
}

int64_t ChunkPlan::LargestChunk() const {
  int64_t most = 0;
  for (const int64_t rows : chunks) most = std::max(most, rows);
  return most;
}

std::string ChunkPlan::Describe() const {
  std::string text = "chunks=";
  text.append(std::to_string(chunks.size())).append("x").append(std::to_string(LargestChunk()));
  if (slices.empty() || slices[0].size() <= 1) return text;
  text.append(" slices=");
  for (const int64_t rows : slices[0]) text.append(std::to_string(rows)).append("+");
  text.pop_back();
  return text;
}

}  // namespace lossd
