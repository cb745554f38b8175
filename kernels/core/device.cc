#include "kernels/core/device.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"

namespace lossd {
namespace {

absl::Status NoTransport(const Device& device, absl::string_view what) {
  return ReasonError(absl::StatusCode::kUnimplemented, "NO_TRANSPORT",
                     absl::StrCat("the ", device.backend(), " backend has no ", what));
}

}  // namespace

absl::Status Device::BeginRecording() { return NoTransport(*this, "recordings"); }

absl::StatusOr<std::shared_ptr<Recording>> Device::EndRecording() {
  return NoTransport(*this, "recordings");
}

absl::Status Device::Replay(Recording&) { return NoTransport(*this, "recordings"); }

absl::StatusOr<SharedMemory> Device::OpenHandle(absl::string_view) {
  return NoTransport(*this, "device memory handles");
}

absl::StatusOr<SharedMemory> Device::AllocateShared(uint64_t) {
  return NoTransport(*this, "device memory handles");
}

absl::StatusOr<SharedMemory> Device::MapHost(void*, uint64_t, std::shared_ptr<const void>) {
  return NoTransport(*this, "host memory");
}

absl::StatusOr<std::shared_ptr<DeviceEvent>> Device::OpenEvent(absl::string_view) {
  return NoTransport(*this, "events");
}

absl::StatusOr<std::shared_ptr<DeviceEvent>> Device::CreateEvent() {
  return NoTransport(*this, "events");
}

absl::Status Device::WaitEvent(DeviceEvent&) { return NoTransport(*this, "events"); }

absl::Status Device::RecordEvent(DeviceEvent&) { return NoTransport(*this, "events"); }

absl::StatusOr<bool> Device::QueryEvent(DeviceEvent&) { return NoTransport(*this, "events"); }

}  // namespace lossd
