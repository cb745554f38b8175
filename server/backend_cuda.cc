// The one place of the server that knows whether CUDA was compiled.
#include <utility>

#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "server/backend.h"

#if defined(LOSSD_HAVE_CUDA)
#include "kernels/cuda/cuda_backend.h"
#endif

namespace lossd {

#if defined(LOSSD_HAVE_CUDA)
namespace {

constexpr uint64_t kCudaWorkspaceBytes = 2200000000;

class CudaHolder final : public BackendHolder {
 public:
  explicit CudaHolder(std::unique_ptr<CudaBackend> cuda) : cuda_(std::move(cuda)) {}
  Backend backend() override { return cuda_->backend(); }

 private:
  const std::unique_ptr<CudaBackend> cuda_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BackendHolder>> CreateCudaBackend(const BackendOptions& options) {
  LOSSD_ASSIGN_OR_RETURN(const int devices, CudaBackend::CountDevices());
  if (devices == 0) return absl::NotFoundError("--backend: no GPU that this process can use");
  CudaOptions cuda;
  cuda.workspace_bytes =
      options.workspace_bytes == 0 ? kCudaWorkspaceBytes : options.workspace_bytes;
  LOSSD_ASSIGN_OR_RETURN(std::unique_ptr<CudaBackend> backend, CudaBackend::Create(cuda));
  return std::make_unique<CudaHolder>(std::move(backend));
}
#else
absl::StatusOr<std::unique_ptr<BackendHolder>> CreateCudaBackend(const BackendOptions&) {
  return UnimplementedError("--backend", "cpu or auto in this build, which has no CUDA", "cuda");
}
#endif

}  // namespace lossd
