#include "kernels/core/planned_device.h"

namespace lossd {
namespace {

// Where no process has memory, and aligned as a workspace is.
constexpr uintptr_t kWorkspaceAddress = uintptr_t{1} << 60;

}  // namespace

PlannedDevice::PlannedDevice(DeviceDescription description, uint64_t workspace_bytes)
    : description_(std::move(description)),
      workspace_(reinterpret_cast<void*>(kWorkspaceAddress), workspace_bytes) {}

}  // namespace lossd
