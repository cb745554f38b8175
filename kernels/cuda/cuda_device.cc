#include "kernels/cuda/cuda_device.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/event.h"
#include "kernels/cuda/host_registration.h"
#include "kernels/cuda/process_exit.h"

namespace lossd {
namespace {

absl::Status CheckHandle(absl::string_view handle, size_t bytes) {
  if (handle.size() == bytes) return absl::OkStatus();
  return FieldError("handle", absl::StrCat(bytes, " bytes"), absl::StrCat(handle.size(), " bytes"));
}

// What the driver calls a bad handle is the caller's mistake, unless the GPU is gone.
absl::Status HandleStatus(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kInternal) return status;
  return FieldError("handle", "exported by another living process on this GPU",
                    std::string(status.message()));
}

// FNV-1a: names a table, protects nothing.
std::string HashOf(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

absl::StatusOr<bool> IsCaptured(cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  LOSSD_RETURN_IF_CUDA_ERROR(cudaStreamIsCapturing(stream, &capture), "look at a stream");
  return capture != cudaStreamCaptureStatusNone;
}

// Owner of an instantiated graph. One that still runs is freed by the driver when it has ended.
struct CudaGraph final : Recording {
  cudaGraphExec_t launchable = nullptr;

  CudaGraph() = default;
  ~CudaGraph() override {
    if (launchable != nullptr && !CudaIsUnloading()) cudaGraphExecDestroy(launchable);
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(int device,
                                                               uint64_t workspace_bytes) {
  auto result = std::unique_ptr<CudaDevice>(new CudaDevice());
  result->device_ = device;
  LOSSD_RETURN_IF_ERROR(result->MakeCurrent());
  LOSSD_RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&result->properties_, device),
                             "read the device's properties");
  int mps = 0;
  // Older drivers do not know the question.
  if (cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, device) != cudaSuccess)
    cudaGetLastError();
  result->mps_ = mps != 0;
  LOSSD_ASSIGN_OR_RETURN(result->stream_, Stream::Create());
  LOSSD_ASSIGN_OR_RETURN(result->staging_,
                         PinnedBuffer::Create(kStagingBytes, "allocate pinned memory"));
  LOSSD_ASSIGN_OR_RETURN(result->memory_,
                         DeviceBuffer::Create(workspace_bytes, "allocate the workspace"));
  result->workspace_ = Arena(result->memory_.data(), workspace_bytes);
  return result;
}

absl::Status CudaDevice::MakeCurrent() const {
  return CudaStatus(cudaSetDevice(device_), "select the device");
}

void CudaDevice::SetAlgorithmTable(absl::string_view description) {
  algorithm_table_ = HashOf(absl::StrCat(properties_.name, "; ", description));
}

std::string CudaDevice::uuid() const {
  return std::string(properties_.uuid.bytes, sizeof(properties_.uuid.bytes));
}

absl::StatusOr<std::byte*> CudaDevice::Stage(uint64_t bytes) {
  const uint64_t rounded = (bytes + 63) / 64 * 64;
  if (staged_ + rounded > staging_.bytes()) LOSSD_RETURN_IF_ERROR(Synchronize());
  std::byte* memory = staging_.data() + staged_;
  staged_ += rounded;
  return memory;
}

absl::Status CudaDevice::CopyIn(void* device, const void* host, uint64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  const void* from = host;
  if (bytes <= kStagedBytes) {
    LOSSD_ASSIGN_OR_RETURN(std::byte * staged, Stage(bytes));
    std::memcpy(staged, host, bytes);
    from = staged;
  }
  return CudaStatus(cudaMemcpyAsync(device, from, bytes, cudaMemcpyHostToDevice, stream()),
                    "copy to the device");
}

absl::Status CudaDevice::CopyOut(void* host, const void* device, uint64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  void* to = host;
  if (bytes <= kStagedBytes) {
    LOSSD_ASSIGN_OR_RETURN(std::byte * staged, Stage(bytes));
    pending_.push_back({host, staged, bytes});
    to = staged;
  }
  return CudaStatus(cudaMemcpyAsync(to, device, bytes, cudaMemcpyDeviceToHost, stream()),
                    "copy from the device");
}

absl::Status CudaDevice::Zero(void* device, uint64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  return CudaStatus(cudaMemsetAsync(device, 0, bytes, stream()), "clear device memory");
}

absl::Status CudaDevice::BeginRecording() {
  // Relaxed: other threads' calls have nothing to do with this stream.
  return CudaStatus(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed),
                    "record launches");
}

absl::StatusOr<std::shared_ptr<Recording>> CudaDevice::EndRecording() {
  cudaGraph_t graph = nullptr;
  LOSSD_RETURN_IF_CUDA_ERROR(cudaStreamEndCapture(stream(), &graph), "record launches");
  auto recording = std::make_shared<CudaGraph>();
  const cudaError_t error = cudaGraphInstantiate(&recording->launchable, graph, 0);
  cudaGraphDestroy(graph);
  LOSSD_RETURN_IF_CUDA_ERROR(error, "instantiate launches");
  return std::shared_ptr<Recording>(std::move(recording));
}

absl::Status CudaDevice::Replay(Recording& recording) {
  return CudaStatus(cudaGraphLaunch(static_cast<CudaGraph&>(recording).launchable, stream()),
                    "repeat launches");
}

absl::StatusOr<int> CudaDevice::Enter(cudaStream_t next) {
  int current = device_;
  LOSSD_RETURN_IF_CUDA_ERROR(cudaGetDevice(&current), "read the current device");
  if (current != device_) LOSSD_RETURN_IF_ERROR(MakeCurrent());
  if (entered_ && next == callers_) return current;
  LOSSD_ASSIGN_OR_RETURN(const bool next_is_captured, IsCaptured(next));
  // Asked only then: while another stream is captured, the default stream cannot be asked.
  bool is_ordered = !next_is_captured;
  if (is_ordered) {
    LOSSD_ASSIGN_OR_RETURN(const bool former_is_captured, IsCaptured(stream()));
    is_ordered = !former_is_captured;
  }
  if (is_ordered && handover_ == nullptr) {
    LOSSD_ASSIGN_OR_RETURN(handover_, CreateEvent());
  }
  if (is_ordered) LOSSD_RETURN_IF_ERROR(RecordEvent(*handover_));
  callers_ = next;
  entered_ = true;
  if (is_ordered) LOSSD_RETURN_IF_ERROR(WaitEvent(*handover_));
  return current;
}

void CudaDevice::Leave(int device) {
  // A failure would be the thread's next call's too.
  if (device != device_) cudaSetDevice(device);
}

absl::Status CudaDevice::Synchronize() {
  const absl::Status status = CudaStatus(cudaStreamSynchronize(stream()), "wait for the device");
  if (status.ok()) {
    for (const PendingCopy& copy : pending_) std::memcpy(copy.host, copy.staged, copy.bytes);
  }
  pending_.clear();
  staged_ = 0;
  return status;
}

absl::StatusOr<uint64_t> CudaDevice::AllocationBytes(const void* base) const {
  // By the runtime's table, so that the program does not link the driver and starts where there is none.
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  LOSSD_RETURN_IF_CUDA_ERROR(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &entry, 3020,
                                                              cudaEnableDefault, &found),
                             "find cuMemGetAddressRange");
  if (found != cudaDriverEntryPointSuccess || entry == nullptr) {
    return absl::InternalError("the CUDA driver has no cuMemGetAddressRange");
  }
  CUdeviceptr start = 0;
  size_t bytes = 0;
  const CUresult result = reinterpret_cast<PFN_cuMemGetAddressRange_v3020>(entry)(
      &start, &bytes, reinterpret_cast<CUdeviceptr>(base));
  if (result != CUDA_SUCCESS) {
    return absl::InternalError(
        absl::StrCat("cuMemGetAddressRange: CUDA driver error ", static_cast<int>(result)));
  }
  return bytes - (reinterpret_cast<CUdeviceptr>(base) - start);
}

absl::StatusOr<SharedMemory> CudaDevice::OpenHandle(absl::string_view handle) {
  LOSSD_RETURN_IF_ERROR(CheckHandle(handle, sizeof(cudaIpcMemHandle_t)));
  LOSSD_RETURN_IF_ERROR(MakeCurrent());
  std::shared_ptr<const IpcMapping> mapping;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::weak_ptr<const IpcMapping>& known = mappings_[std::string(handle)];
    mapping = known.lock();
    if (mapping == nullptr) {
      auto opened = IpcMapping::Open(handle);
      if (!opened.ok()) {
        mappings_.erase(std::string(handle));
        return HandleStatus(opened.status());
      }
      mapping = *std::move(opened);
      known = mapping;
    }
    for (auto it = mappings_.begin(); it != mappings_.end();) {
      it = it->second.expired() ? mappings_.erase(it) : std::next(it);
    }
  }
  SharedMemory memory;
  memory.base = mapping->base();
  LOSSD_ASSIGN_OR_RETURN(memory.bytes, AllocationBytes(mapping->base()));
  memory.owner = std::move(mapping);
  return memory;
}

absl::StatusOr<SharedMemory> CudaDevice::AllocateShared(uint64_t bytes) {
  const uint64_t rounded = (bytes + kSharedMultiple - 1) / kSharedMultiple * kSharedMultiple;
  if (bytes == 0 || rounded < bytes) {
    return FieldError("bytes", "above 0 and below 2^64 - 2^21", absl::StrCat(bytes));
  }
  LOSSD_RETURN_IF_ERROR(MakeCurrent());
  LOSSD_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                         DeviceBuffer::Create(rounded, "allocate memory for a client"));
  // What an earlier owner of the memory left must not reach the client.
  LOSSD_ASSIGN_OR_RETURN(const Stream stream, Stream::Create());
  LOSSD_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(buffer.data(), 0, rounded, stream.get()),
                             "clear memory for a client");
  LOSSD_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream.get()), "clear memory for a client");
  cudaIpcMemHandle_t handle;
  LOSSD_RETURN_IF_CUDA_ERROR(cudaIpcGetMemHandle(&handle, buffer.data()), "export memory");
  SharedMemory memory;
  memory.base = buffer.data();
  memory.bytes = rounded;
  memory.handle.assign(reinterpret_cast<const char*>(&handle), sizeof(handle));
  memory.owner = std::make_shared<const DeviceBuffer>(std::move(buffer));
  return memory;
}

absl::StatusOr<SharedMemory> CudaDevice::MapHost(void* host, uint64_t bytes,
                                                 std::shared_ptr<const void> owner) {
  LOSSD_RETURN_IF_ERROR(MakeCurrent());
  LOSSD_ASSIGN_OR_RETURN(std::shared_ptr<const HostRegistration> registration,
                         HostRegistration::Create(host, bytes, std::move(owner)));
  SharedMemory memory;
  memory.base = registration->device();
  memory.bytes = bytes;
  memory.owner = std::move(registration);
  return memory;
}

absl::StatusOr<std::shared_ptr<DeviceEvent>> CudaDevice::OpenEvent(absl::string_view handle) {
  LOSSD_RETURN_IF_ERROR(CheckHandle(handle, sizeof(cudaIpcEventHandle_t)));
  LOSSD_RETURN_IF_ERROR(MakeCurrent());
  auto event = CudaEvent::Open(handle);
  if (!event.ok()) return HandleStatus(event.status());
  return std::shared_ptr<DeviceEvent>(*std::move(event));
}

absl::StatusOr<std::shared_ptr<DeviceEvent>> CudaDevice::CreateEvent() {
  LOSSD_RETURN_IF_ERROR(MakeCurrent());
  LOSSD_ASSIGN_OR_RETURN(std::shared_ptr<CudaEvent> event, CudaEvent::Create());
  return std::shared_ptr<DeviceEvent>(std::move(event));
}

absl::Status CudaDevice::WaitEvent(DeviceEvent& event) {
  return CudaStatus(cudaStreamWaitEvent(stream(), static_cast<CudaEvent&>(event).get(), 0),
                    "wait for an event");
}

absl::Status CudaDevice::RecordEvent(DeviceEvent& event) {
  return CudaStatus(cudaEventRecord(static_cast<CudaEvent&>(event).get(), stream()),
                    "record an event");
}

absl::StatusOr<bool> CudaDevice::QueryEvent(DeviceEvent& event) {
  const cudaError_t error = cudaEventQuery(static_cast<CudaEvent&>(event).get());
  if (error == cudaErrorNotReady) return false;
  LOSSD_RETURN_IF_CUDA_ERROR(error, "query an event");
  return true;
}

}  // namespace lossd
