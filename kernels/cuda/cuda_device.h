// A CUDA device behind the seam of kernels/core/device.h.
#ifndef LOSSD_KERNELS_CUDA_CUDA_DEVICE_H_
#define LOSSD_KERNELS_CUDA_CUDA_DEVICE_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/cuda/buffer.h"
#include "kernels/cuda/cuda_facts.h"
#include "kernels/cuda/ipc_mapping.h"
#include "kernels/cuda/stream.h"

namespace lossd {

// One stream, one arena. Calls of the dispatcher make its thread's current device this one.
class CudaDevice final : public Device {
 public:
  // Allocates `workspace_bytes` of device memory. Errors: INVALID_ARGUMENT if there is no such device, RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(int device, uint64_t workspace_bytes);

  const char* backend() const override { return "cuda"; }
  std::string name() const override { return properties_.name; }
  Arena& workspace() override { return workspace_; }

  // Up to kStagedBytes go through pinned memory, so that the call returns before the GPU has come to it; larger copies may wait.
  absl::Status CopyIn(void* device, const void* host, uint64_t bytes) override;
  absl::Status CopyOut(void* host, const void* device, uint64_t bytes) override;
  absl::Status Zero(void* device, uint64_t bytes) override;
  // For a thread that shares the device with its caller, who has a stream of his own: from Enter to Leave work is enqueued there, behind all that
  // was enqueued before. A stream must live until another has been entered and left. Enter returns the thread's current device, which Leave puts
  // back. While a stream is captured into a graph, the order with work outside it is the caller's.
  absl::StatusOr<int> Enter(cudaStream_t next);
  void Leave(int device);
  absl::Status Synchronize() override;
  // Graphs of the stream's work.
  bool can_record() const override { return true; }
  absl::Status BeginRecording() override;
  absl::StatusOr<std::shared_ptr<Recording>> EndRecording() override;
  absl::Status Replay(Recording& recording) override;
  bool is_host() const override { return false; }

  std::string uuid() const override;
  bool mps() const override { return mps_; }
  std::string algorithm_table() const override { return algorithm_table_; }
  // What decides about algorithms; its hash is algorithm_table().
  void SetAlgorithmTable(absl::string_view description);

  absl::StatusOr<SharedMemory> OpenHandle(absl::string_view handle) override;
  absl::StatusOr<SharedMemory> AllocateShared(uint64_t bytes) override;
  absl::StatusOr<SharedMemory> MapHost(void* host, uint64_t bytes,
                                       std::shared_ptr<const void> owner) override;

  absl::StatusOr<std::shared_ptr<DeviceEvent>> OpenEvent(absl::string_view handle) override;
  absl::StatusOr<std::shared_ptr<DeviceEvent>> CreateEvent() override;
  absl::Status WaitEvent(DeviceEvent& event) override;
  absl::Status RecordEvent(DeviceEvent& event) override;
  absl::StatusOr<bool> QueryEvent(DeviceEvent& event) override;

  // The caller's since the first Enter.
  cudaStream_t stream() const { return entered_ ? callers_ : stream_.get(); }
  // Makes the calling thread's current device this one: the first thing that a new thread does.
  absl::Status MakeCurrent() const;
  int processors() const { return properties_.multiProcessorCount; }
  CudaFacts facts() const {
    return {properties_.major, properties_.minor,
            static_cast<int64_t>(properties_.sharedMemPerBlockOptin)};
  }
  int multiprocessors() const { return properties_.multiProcessorCount; }
  bool has_clusters() const { return properties_.major >= 9; }

 private:
  static constexpr uint64_t kStagingBytes = uint64_t{4} << 20;
  static constexpr uint64_t kStagedBytes = uint64_t{1} << 20;
  // Allocations that other processes open are whole pages of the driver: a handle always opens the page.
  static constexpr uint64_t kSharedMultiple = uint64_t{2} << 20;

  // A copy that lies in staging memory and has yet to go to its place.
  struct PendingCopy {
    void* host;
    const std::byte* staged;
    uint64_t bytes;
  };

  CudaDevice() = default;
  // Staging memory until the next Synchronize; waits if it is full.
  absl::StatusOr<std::byte*> Stage(uint64_t bytes);
  absl::StatusOr<uint64_t> AllocationBytes(const void* base) const;

  int device_ = 0;
  cudaDeviceProp properties_ = {};
  bool mps_ = false;
  std::string algorithm_table_;
  Stream stream_;
  bool entered_ = false;
  cudaStream_t callers_ = nullptr;
  std::shared_ptr<DeviceEvent> handover_;  // by which another stream follows
  DeviceBuffer memory_;
  Arena workspace_;
  PinnedBuffer staging_;
  uint64_t staged_ = 0;
  std::vector<PendingCopy> pending_;

  std::mutex mutex_;
  // By handle. The driver refuses to open a handle twice in a process.
  std::map<std::string, std::weak_ptr<const IpcMapping>> mappings_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_CUDA_DEVICE_H_
