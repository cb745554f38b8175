// What a pass over the caller's logits has in the workspace.
#ifndef LOSSD_KERNELS_CPU_LOGITS_ROWS_H_
#define LOSSD_KERNELS_CPU_LOGITS_ROWS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/cpu/row_buffers.h"
#include "kernels/linear/head_backend.h"

namespace lossd {

struct LogitsRows {
  RowBuffers logits;
  RowBuffers column_weight;  // one, of the columns held here; with class weights
};

absl::Status AllocateLogitsRows(const HeadPass& pass, Arena& arena, int threads, LogitsRows* rows);
std::string DescribeLogits(const HeadPass& pass, int64_t count, const char* sweeps);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_LOGITS_ROWS_H_
