// The head on the CPU: products by OpenBLAS, rows by vector sweeps, all threads.
#ifndef LOSSD_KERNELS_CPU_CPU_HEAD_H_
#define LOSSD_KERNELS_CPU_CPU_HEAD_H_

#include <string>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/sweeps.h"
#include "kernels/linear/head_backend.h"

namespace lossd {

// Equal calls give equal bits. With batch_invariant a row's statistics have the same bits from any sweep over the same hidden state,
// matrix and options: its products come from a tile of kInvariantRows rows by a fixed number of columns, padded with zeros.
class CpuHead final : public HeadBackend {
 public:
  explicit CpuHead(CpuDevice& device) : device_(device), sweeps_(SelectSweeps()) {}

  absl::Status StartRows(const HeadProblem& head, RowStart& start, RowSet* rows,
                         ResultRecord* found) override;
  absl::Status RunStage(const Stage& stage, int64_t count) override;
  absl::Status RunHead(const HeadPass& pass, std::string* plan) override;
  absl::Status RunPair(const PairPass& pass, std::string* plan) override;

 private:
  // cpu_logits.cc
  absl::Status RunLogits(const HeadPass& pass, std::string* plan_text);
  // cpu_pair.cc
  absl::Status RunPairOfHead(const PairPass& pass, std::string* plan_text);
  absl::Status RunPairOfValues(const PairPass& pass, std::string* plan_text);

  CpuDevice& device_;
  const Sweeps& sweeps_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_CPU_HEAD_H_
