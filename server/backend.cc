#include "server/backend.h"

#include <utility>

#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_head.h"
#include "kernels/cpu/cpu_layers.h"

namespace lossd {
namespace {

constexpr uint64_t kCpuWorkspaceBytes = uint64_t{512} << 20;

class CpuHolder final : public BackendHolder {
 public:
  explicit CpuHolder(std::unique_ptr<CpuDevice> device)
      : device_(std::move(device)), head_(*device_), layers_(*device_) {}
  Backend backend() override { return {device_.get(), &head_, nullptr, &layers_}; }

 private:
  const std::unique_ptr<CpuDevice> device_;
  CpuHead head_;
  CpuLayers layers_;
};

absl::StatusOr<std::unique_ptr<BackendHolder>> CreateCpu(const BackendOptions& options) {
  CpuOptions cpu;
  cpu.workspace_bytes = options.workspace_bytes == 0 ? kCpuWorkspaceBytes : options.workspace_bytes;
  cpu.threads = options.threads;
  LOSSD_ASSIGN_OR_RETURN(std::unique_ptr<CpuDevice> device, CpuDevice::Create(cpu));
  return std::make_unique<CpuHolder>(std::move(device));
}

}  // namespace

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
