// How one sweep over a head is cut: chunks of rows by the workspace, tiles of columns by the shape alone.
#ifndef LOSSD_KERNELS_CPU_HEAD_PLAN_H_
#define LOSSD_KERNELS_CPU_HEAD_PLAN_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/linear/head_backend.h"

namespace lossd {

// Rows of a tile of the batch-invariant products.
inline constexpr int64_t kInvariantRows = 32;

struct HeadPlan {
  int64_t chunk_rows = 0;  // rows of logits in memory at a time
  int64_t chunks = 0;
  int64_t column_tile =
      0;  // columns of one product; depends on H alone, so that no bit of a logit depends on the workspace
  int64_t logits_stride = 0;        // elements between rows of logits
  bool convert_weight = false;      // weight is read through tiles of fp32
  bool weight_accumulator = false;  // grad_weight adds up in the workspace, [valid_columns, H]
  bool tiles = false;               // one fp32 tile [column_tile, H] for each thread
};

// `free` is what the workspace has left, `rows` the number that count.
// Chunks have at most `max_rows` rows (0: any number).
// Errors: RESOURCE_EXHAUSTED if it does not hold a chunk of the smallest size.
absl::StatusOr<HeadPlan> PlanHead(const HeadPass& pass, int64_t rows, int threads, uint64_t free,
                                  int64_t max_rows = 0);

// As the reply has it. `sweeps`: what they are compiled for.
std::string DescribePlan(const HeadPlan& plan, const HeadPass& pass, int64_t rows,
                         const char* sweeps);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_HEAD_PLAN_H_
