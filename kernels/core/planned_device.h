// A device that is described, not there: calls can be planned on it, and nothing happens.
#ifndef LOSSD_KERNELS_CORE_PLANNED_DEVICE_H_
#define LOSSD_KERNELS_CORE_PLANNED_DEVICE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "kernels/core/device.h"

namespace lossd {

// 0 is the backend's default.
struct DeviceDescription {
  std::string backend;           // "cpu" or "cuda"
  uint64_t workspace_bytes = 0;  // all scratch memory, the library's included
  int threads = 0;               // cpu
  int compute_capability = 0;    // cuda: 10 times the major number plus the minor one
};

// Its workspace hands out addresses that nobody may follow. Copies and fills do nothing.
class PlannedDevice final : public Device {
 public:
  // `workspace_bytes`: what operations have of it.
  PlannedDevice(DeviceDescription description, uint64_t workspace_bytes);

  const char* backend() const override { return description_.backend.c_str(); }
  std::string name() const override { return description_.backend; }
  Arena& workspace() override { return workspace_; }
  absl::Status CopyIn(void*, const void*, uint64_t) override { return absl::OkStatus(); }
  absl::Status CopyOut(void*, const void*, uint64_t) override { return absl::OkStatus(); }
  absl::Status Zero(void*, uint64_t) override { return absl::OkStatus(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  bool is_host() const override { return false; }

  const DeviceDescription& description() const { return description_; }

 private:
  const DeviceDescription description_;
  Arena workspace_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CORE_PLANNED_DEVICE_H_
