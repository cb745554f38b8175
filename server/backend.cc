#include "server/backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_head.h"

#if defined(LOSSD_HAVE_CUDA)
#include "kernels/cuda/cuda_backend.h"
#endif

namespace lossd {
namespace {

constexpr uint64_t kCpuWorkspaceBytes = uint64_t{512} << 20;

class CpuHolder final : public BackendHolder {
 public:
  explicit CpuHolder(std::unique_ptr<CpuDevice> device)
      : device_(std::move(device)), head_(*device_) {}
  Backend backend() override { return {device_.get(), &head_}; }

 private:
  const std::unique_ptr<CpuDevice> device_;
  CpuHead head_;
};

absl::StatusOr<std::unique_ptr<BackendHolder>> CreateCpu(const BackendOptions& options) {
  CpuOptions cpu;
  cpu.workspace_bytes = options.workspace_bytes == 0 ? kCpuWorkspaceBytes : options.workspace_bytes;
  cpu.threads = options.threads;
  LOSSD_ASSIGN_OR_RETURN(std::unique_ptr<CpuDevice> device, CpuDevice::Create(cpu));
  return std::make_unique<CpuHolder>(std::move(device));
}

#if defined(LOSSD_HAVE_CUDA)
constexpr uint64_t kCudaWorkspaceBytes = 2200000000;

class CudaHolder final : public BackendHolder {
 public:
  explicit CudaHolder(std::unique_ptr<CudaBackend> cuda) : cuda_(std::move(cuda)) {}
  Backend backend() override { return cuda_->backend(); }

 private:
  const std::unique_ptr<CudaBackend> cuda_;
};

absl::StatusOr<std::unique_ptr<BackendHolder>> CreateCuda(const BackendOptions& options) {
  LOSSD_ASSIGN_OR_RETURN(const int devices, CudaBackend::CountDevices());
  if (devices == 0) return absl::NotFoundError("--backend: no GPU that this process can use");
  CudaOptions cuda;
  cuda.workspace_bytes =
      options.workspace_bytes == 0 ? kCudaWorkspaceBytes : options.workspace_bytes;
  LOSSD_ASSIGN_OR_RETURN(std::unique_ptr<CudaBackend> backend, CudaBackend::Create(cuda));
  return std::make_unique<CudaHolder>(std::move(backend));
}
#else
absl::StatusOr<std::unique_ptr<BackendHolder>> CreateCuda(const BackendOptions&) {
  return UnimplementedError("--backend", "cpu or auto in this build, which has no CUDA", "cuda");
}
#endif

}  // namespace

absl::StatusOr<std::unique_ptr<BackendHolder>> CreateBackend(const BackendOptions& options) {
  if (options.name == "cpu") return CreateCpu(options);
  if (options.name == "cuda") return CreateCuda(options);
  if (options.name != "auto") return FieldError("--backend", "cpu, cuda or auto", options.name);
  auto cuda = CreateCuda(options);
  // A GPU that is there but cannot be used is no reason to compute elsewhere in silence.
  const absl::StatusCode code = cuda.status().code();
  if (code == absl::StatusCode::kUnimplemented || code == absl::StatusCode::kNotFound)
    return CreateCpu(options);
  return cuda;
}

}  // namespace lossd
