// Launches that came before: a trainer asks the same of the same buffers step after step, and a recording of it is one call to the driver
// instead of a dozen.
#ifndef LOSSD_KERNELS_CORE_LAUNCH_CACHE_H_
#define LOSSD_KERNELS_CORE_LAUNCH_CACHE_H_

#include <memory>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "kernels/core/op.h"

namespace lossd {

// Of one device; used by its dispatcher's thread.
class LaunchCache {
 public:
  static constexpr size_t kMaxLaunches = 256;  // beyond it all are forgotten

  // As op.Enqueue(call, backend) does it. A launch that is seen for the second time is recorded, later ones replay it: same request, same
  // addresses, same place in the workspace. Only for calls whose host does not wait (host_may_wait is false), on a device that can record.
  absl::StatusOr<PendingResult> Enqueue(const Op& op, const OpCall& call, Backend& backend);

  size_t size() const { return launches_.size(); }

 private:
  struct Launch {
    bool refused = false;  // the device could not record it
    std::shared_ptr<Recording> recording;
    PendingResult pending;
  };

  std::unordered_map<std::string, Launch> launches_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CORE_LAUNCH_CACHE_H_
