// The one place outside kernels/cuda that knows whether CUDA was compiled.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"

#if defined(LOSSD_HAVE_CUDA)
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_planner.h"
#include "kernels/cuda/tune.h"
#endif

namespace lossd {

#if defined(LOSSD_HAVE_CUDA)
namespace {

constexpr uint64_t kCudaWorkspaceBytes = 2200000000;
constexpr int kComputeCapability = 90;  // that of a plan

class CudaHolder final : public BackendHolder {
 public:
  CudaHolder(std::unique_ptr<CudaBackend> cuda, uint64_t workspace_bytes)
      : cuda_(std::move(cuda)), workspace_bytes_(workspace_bytes) {}
  Backend backend() override { return cuda_->backend(); }
  absl::StatusOr<int> Enter(void* stream) override {
    return cuda_->device().Enter(static_cast<cudaStream_t>(stream));
  }
  void Leave(int entered) override { cuda_->device().Leave(entered); }
  DeviceDescription Describe() override {
    const CudaFacts facts = cuda_->device().facts();
    DeviceDescription device;
    device.backend = cuda_->device().backend();
    device.workspace_bytes = workspace_bytes_;
    device.compute_capability = 10 * facts.major + facts.minor;
    return device;
  }

 private:
  const std::unique_ptr<CudaBackend> cuda_;
  const uint64_t workspace_bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BackendHolder>> CreateCudaBackend(const BackendOptions& options) {
  LOSSD_ASSIGN_OR_RETURN(const int devices, CudaBackend::CountDevices());
  if (devices == 0) return absl::NotFoundError("--backend: no GPU that this process can use");
  CudaOptions cuda;
  cuda.device = options.device;
  cuda.workspace_bytes =
      options.workspace_bytes == 0 ? kCudaWorkspaceBytes : options.workspace_bytes;
  cuda.algorithms = options.algorithms;
  LOSSD_ASSIGN_OR_RETURN(std::unique_ptr<CudaBackend> backend, CudaBackend::Create(cuda));
  return std::make_unique<CudaHolder>(std::move(backend), cuda.workspace_bytes);
}

absl::Status Tune(const std::vector<TunedShape>& shapes, int rounds, const std::string& file) {
  TuneOptions options;
  options.rounds = rounds;
  for (const TunedShape& shape : shapes) {
    options.shapes.push_back({shape.rows, shape.hidden, shape.vocab, shape.model});
  }
  options.progress = [](const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  };
  // Beside the file, so that it is there whole or not at all, and opened first: measuring takes minutes.
  const std::string partial = absl::StrCat(file, ".partial");
  std::ofstream out(partial, std::ios::trunc);
  const auto cannot = [&] {
    return absl::PermissionDeniedError(absl::StrCat(file, ": ", std::strerror(errno)));
  };
  if (!out.is_open()) return cannot();
  const auto table = Tune(options);
  if (table.ok()) out << table->ToText();
  out.close();
  const bool written = table.ok() && out.good() && std::rename(partial.c_str(), file.c_str()) == 0;
  if (written) return absl::OkStatus();
  const absl::Status status = table.ok() ? cannot() : table.status();
  std::remove(partial.c_str());
  return status;
}

absl::StatusOr<std::unique_ptr<Planner>> CreateCudaPlanner(DeviceDescription* device) {
  if (device->threads != 0) {
    return FieldError("threads", "absent for the cuda backend", absl::StrCat(device->threads));
  }
  if (device->workspace_bytes == 0) device->workspace_bytes = kCudaWorkspaceBytes;
  if (device->compute_capability == 0) device->compute_capability = kComputeCapability;
  return CudaPlanner::Create(*device);
}
#else
absl::StatusOr<std::unique_ptr<BackendHolder>> CreateCudaBackend(const BackendOptions&) {
  return UnimplementedError("--backend", "cpu or auto in this build, which has no CUDA", "cuda");
}

absl::Status Tune(const std::vector<TunedShape>&, int, const std::string& file) {
  return UnimplementedError("--tune", "absent in this build, which has no CUDA", file);
}

absl::StatusOr<std::unique_ptr<Planner>> CreateCudaPlanner(DeviceDescription*) {
  return UnimplementedError("backend", "cpu in this build, which has no CUDA", "cuda");
}
#endif

}  // namespace lossd
