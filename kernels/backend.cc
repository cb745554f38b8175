#include "kernels/backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/cpu/blas_threads.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_head.h"
#include "kernels/cpu/cpu_layers.h"
#include "kernels/cpu/cpu_planner.h"

namespace lossd {
namespace {

constexpr uint64_t kCpuWorkspaceBytes = uint64_t{512} << 20;
constexpr uint64_t kMaxPlannedBytes = uint64_t{1} << 50;

class CpuHolder final : public BackendHolder {
 public:
  explicit CpuHolder(std::unique_ptr<CpuDevice> device)
      : device_(std::move(device)), head_(*device_), layers_(*device_) {}
  Backend backend() override { return {device_.get(), &head_, nullptr, &layers_}; }
  absl::StatusOr<int> Enter(void*) override {
    const int threads = BlasThreads();
    if (threads != 1) SetBlasThreads(1);
    return threads;
  }
  void Leave(int entered) override {
    if (entered != 1) SetBlasThreads(entered);
  }
  DeviceDescription Describe() override {
    DeviceDescription device;
    device.backend = device_->backend();
    device.workspace_bytes = device_->workspace().bytes();
    device.threads = device_->pool().threads();
    return device;
  }

 private:
  const std::unique_ptr<CpuDevice> device_;
  CpuHead head_;
  CpuLayers layers_;
};

absl::StatusOr<std::unique_ptr<BackendHolder>> CreateCpu(const BackendOptions& options) {
  if (!options.algorithms.empty()) {
    return FieldError("--algorithms", "absent on the cpu backend, which has none to choose from",
                      options.algorithms);
  }
  CpuOptions cpu;
  cpu.workspace_bytes = options.workspace_bytes == 0 ? kCpuWorkspaceBytes : options.workspace_bytes;
  cpu.threads = options.threads;
  const int blas_threads = BlasThreads();
  LOSSD_ASSIGN_OR_RETURN(std::unique_ptr<CpuDevice> device, CpuDevice::Create(cpu));
  if (options.shares_process) SetBlasThreads(blas_threads);
  return std::make_unique<CpuHolder>(std::move(device));
}

absl::StatusOr<std::unique_ptr<Planner>> CreateCpuPlanner(DeviceDescription* device) {
  if (device->compute_capability != 0) {
    return FieldError("compute_capability", "absent for the cpu backend",
                      absl::StrCat(device->compute_capability));
  }
  if (device->workspace_bytes == 0) device->workspace_bytes = kCpuWorkspaceBytes;
  device->threads = CpuDevice::ThreadsFor(device->threads);
  return std::make_unique<CpuPlanner>(*device);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Planner>> CreatePlanner(DeviceDescription* device) {
  if (device->workspace_bytes > kMaxPlannedBytes) {
    return FieldError("workspace_bytes", absl::StrCat("at most ", kMaxPlannedBytes),
                      absl::StrCat(device->workspace_bytes));
  }
  if (device->backend == "cpu") return CreateCpuPlanner(device);
  if (device->backend == "cuda") return CreateCudaPlanner(device);
  return FieldError("backend", "cpu or cuda", device->backend);
}

absl::StatusOr<std::unique_ptr<BackendHolder>> CreateBackend(const BackendOptions& options) {
  if (options.name == "cpu") return CreateCpu(options);
  if (options.name == "cuda") return CreateCudaBackend(options);
  if (options.name != "auto") return FieldError("--backend", "cpu, cuda or auto", options.name);
  auto cuda = CreateCudaBackend(options);
  // A GPU that is there but cannot be used is no reason to compute elsewhere in silence.
  const absl::StatusCode code = cuda.status().code();
  if (code == absl::StatusCode::kUnimplemented || code == absl::StatusCode::kNotFound)
    return CreateCpu(options);
  return cuda;
}

}  // namespace lossd
