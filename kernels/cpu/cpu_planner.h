// Plans of the CPU backend.
#ifndef LOSSD_KERNELS_CPU_CPU_PLANNER_H_
#define LOSSD_KERNELS_CPU_CPU_PLANNER_H_

#include <string>
#include <vector>

#include "kernels/cpu/sweeps.h"
#include "kernels/linear/planner.h"

namespace lossd {

class CpuPlanner final : public Planner {
 public:
  // `device` has a workspace and threads.
  explicit CpuPlanner(const DeviceDescription& device);

  absl::Status RunHead(const HeadPass& pass, std::string* plan) override;
  absl::Status RunHeadTwice(const HeadPass& first, const std::vector<StageRun>& between,
                            const HeadPass& second, std::string* plan) override;
  absl::Status RunPair(const PairPass& pass, std::string* plan) override;

 private:
  int threads() { return device().description().threads; }
  absl::Status RunLogits(const HeadPass& pass);
  absl::Status RunPairOfHead(const PairPass& pass);
  absl::Status RunPairOfValues(const PairPass& pass);

  const Sweeps& sweeps_;
  bool again_ = false;  // the pass is the second of two over the same logits
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_CPU_PLANNER_H_
