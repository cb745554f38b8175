// The seam between the operations and the machine: memory and order. kernels/linear/head_backend.h adds the products.
#ifndef LOSSD_KERNELS_CORE_DEVICE_H_
#define LOSSD_KERNELS_CORE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/core/arena.h"

namespace lossd {

// Memory that lives outside the workspace. The owner closes or frees it when the last copy goes.
struct SharedMemory {
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  std::string handle;  // for other processes; empty if there is none
  std::shared_ptr<const void> owner;
};

// An event that two processes may see.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // 64 bytes for other processes; empty for an opened one.
  virtual std::string handle() const = 0;
};

// Work that was recorded and can be enqueued again as it is.
class Recording {
 public:
  virtual ~Recording() = default;
};

// One device and its queue of work. All calls are made by one thread, the device's dispatcher. "Enqueues" means: the work is done in
// the order of the calls, at once on the CPU and later on a GPU; host memory that such a call reads or writes must live until
// Synchronize returns.
class Device {
 public:
  virtual ~Device() = default;

  // "cpu" or "cuda".
  virtual const char* backend() const = 0;
  // Model of the processor or GPU.
  virtual std::string name() const = 0;

  // Scratch memory of the current request, sized at start. Never grows.
  virtual Arena& workspace() = 0;

  // Enqueue copies between host and device memory.
  virtual absl::Status CopyIn(void* device, const void* host, uint64_t bytes) = 0;
  virtual absl::Status CopyOut(void* host, const void* device, uint64_t bytes) = 0;
  // Enqueues a fill with zero bytes.
  virtual absl::Status Zero(void* device, uint64_t bytes) = 0;

  // Between the two the calls that enqueue work record it instead; nothing may wait for the device. End also ends a recording in which a call
  // has failed. Replay enqueues all of it at the price of one call; the memory that it names must be there.
  virtual bool can_record() const { return false; }
  virtual absl::Status BeginRecording();
  virtual absl::StatusOr<std::shared_ptr<Recording>> EndRecording();
  virtual absl::Status Replay(Recording& recording);

  // Waits until everything enqueued is done. Errors: UNAVAILABLE with reason GPU_LOST if the device failed for good.
  virtual absl::Status Synchronize() = 0;
  // Whether host code may read and write device memory (the CPU).
  virtual bool is_host() const = 0;

  // Facts for ServerInfo: 16-byte UUID (empty on the CPU), whether MPS serves the process, hash of the algorithm table.
  virtual std::string uuid() const { return ""; }
  virtual bool mps() const { return false; }
  virtual std::string algorithm_table() const { return ""; }

  // Memory shared with other processes. Unlike the rest of the class these are thread-safe and may take milliseconds.
  // Errors of all: UNIMPLEMENTED with reason NO_TRANSPORT where the device has no such thing, INVALID_ARGUMENT for a bad handle,
  // RESOURCE_EXHAUSTED, UNAVAILABLE (GPU_LOST).
  // Opens another process's allocation by its 64-byte IPC handle. `bytes` of the result is what the driver says.
  virtual absl::StatusOr<SharedMemory> OpenHandle(absl::string_view handle);
  // Device memory that another process can open by the result's handle.
  virtual absl::StatusOr<SharedMemory> AllocateShared(uint64_t bytes);
  // Makes host memory (a mapped memfd) usable by this device; `owner` keeps it mapped. On the CPU this is the memory itself.
  virtual absl::StatusOr<SharedMemory> MapHost(void* host, uint64_t bytes,
                                               std::shared_ptr<const void> owner);

  // Order between processes. Opened or created once (thread-safe), then used by the dispatcher.
  virtual absl::StatusOr<std::shared_ptr<DeviceEvent>> OpenEvent(absl::string_view handle);
  virtual absl::StatusOr<std::shared_ptr<DeviceEvent>> CreateEvent();
  // Enqueue: later work waits for the event's latest record / the event marks the work enqueued so far.
  virtual absl::Status WaitEvent(DeviceEvent& event);
  virtual absl::Status RecordEvent(DeviceEvent& event);
  // Whether the latest record has been reached. Errors: UNAVAILABLE (GPU_LOST).
  virtual absl::StatusOr<bool> QueryEvent(DeviceEvent& event);
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CORE_DEVICE_H_
