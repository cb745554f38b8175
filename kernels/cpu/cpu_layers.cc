#include "kernels/cpu/cpu_layers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lossd {
namespace {

// What a thread takes at a time.
constexpr int64_t kBlockElements = 1 << 14;

}  // namespace

void CpuLayers::ForRows(int64_t rows, int64_t width,
                        const std::function<void(int64_t begin, int64_t end)>& body) {
  const int64_t block = std::max<int64_t>(kBlockElements / width, 1);
  device_.pool().For((rows + block - 1) / block,
                     [&](int64_t i, int) { body(i * block, std::min(rows, (i + 1) * block)); });
}

absl::Status CpuLayers::Finish(const std::string& how, const LayerCall& call) {
  *call.record = ResultRecord();
  if (call.record_copy != nullptr) *call.record_copy = *call.record;
  absl::StrAppend(call.plan, how);
  return absl::OkStatus();
}

}  // namespace lossd
