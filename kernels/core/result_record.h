// What a call leaves in device memory beside its tensors. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_CORE_RESULT_RECORD_H_
#define LOSSD_KERNELS_CORE_RESULT_RECORD_H_

#include <cstdint>

namespace lossd {

inline constexpr int kMaxMetrics = 40;

struct MetricRecord {
  double sum = 0;
  double min = 0;
  double max = 0;
  int64_t count = 0;
};

// The layout is part of the protocol (RunRequest.result_record): little endian, no padding.
struct ResultRecord {
  // Status code of the data check (0 = ok), the number of the wrong field in OpSchema::fields(), and the first wrong row or element.
  int32_t code = 0;
  int32_t field = 0;
  int64_t row = -1;
  int64_t count = 0;            // rows (or pairs, sequences) that count
  int64_t degenerate_rows = 0;  // rows with a NaN or +infinity logit, or with none above -infinity
  int64_t sequence_count = 0;
  double sum = 0;
  double weight_sum = 0;
  double z_sum = 0;
  double nll_sum = 0;  // negative log-likelihood beside a preference loss, and its tokens
  int64_t nll_count = 0;
  MetricRecord metrics[kMaxMetrics];  // by the operation's list of metric names
};

static_assert(sizeof(ResultRecord) == 80 + kMaxMetrics * 32, "the layout is part of the protocol");

}  // namespace lossd

#endif  // LOSSD_KERNELS_CORE_RESULT_RECORD_H_
