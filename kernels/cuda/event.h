// Owner of a CUDA event that two processes can see.
#ifndef LOSSD_KERNELS_CUDA_EVENT_H_
#define LOSSD_KERNELS_CUDA_EVENT_H_

#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/core/device.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/process_exit.h"

namespace lossd {

// Thread-compatible.
class CudaEvent final : public DeviceEvent {
 public:
  // A new event with a handle for other processes.
  static absl::StatusOr<std::shared_ptr<CudaEvent>> Create() {
    auto event = std::make_shared<CudaEvent>();
    LOSSD_RETURN_IF_CUDA_ERROR(
        cudaEventCreateWithFlags(&event->event_, cudaEventDisableTiming | cudaEventInterprocess),
        "create an event");
    cudaIpcEventHandle_t handle;
    LOSSD_RETURN_IF_CUDA_ERROR(cudaIpcGetEventHandle(&handle, event->event_), "export an event");
    event->handle_.assign(reinterpret_cast<const char*>(&handle), sizeof(handle));
    return event;
  }
  // Another process's event. The handle has sizeof(cudaIpcEventHandle_t) bytes.
  static absl::StatusOr<std::shared_ptr<CudaEvent>> Open(absl::string_view bytes) {
    cudaIpcEventHandle_t handle;
    std::memcpy(&handle, bytes.data(), sizeof(handle));
    auto event = std::make_shared<CudaEvent>();
    LOSSD_RETURN_IF_CUDA_ERROR(cudaIpcOpenEventHandle(&event->event_, handle), "open an event");
    return event;
  }

  CudaEvent() = default;
  ~CudaEvent() override {
    if (event_ != nullptr && !CudaIsUnloading()) cudaEventDestroy(event_);
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  std::string handle() const override { return handle_; }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
  std::string handle_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_EVENT_H_
