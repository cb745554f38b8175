// The CPU as a device: memory is host memory, and work is done by the time that a call returns.
#ifndef LOSSD_KERNELS_CPU_CPU_DEVICE_H_
#define LOSSD_KERNELS_CPU_CPU_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/thread_pool.h"

namespace lossd {

struct CpuOptions {
  uint64_t workspace_bytes = uint64_t{256} << 20;
  int threads = 0;  // 0: all that the process may run on
};

class CpuDevice final : public Device {
 public:
  // Maps the workspace, starts the threads, loads the library for products.
  // Errors: RESOURCE_EXHAUSTED if the workspace cannot be mapped.
  static absl::StatusOr<std::unique_ptr<CpuDevice>> Create(const CpuOptions& options);
  ~CpuDevice() override;
  // How many threads Create starts for CpuOptions::threads.
  static int ThreadsFor(int threads);

  const char* backend() const override { return "cpu"; }
  std::string name() const override { return name_; }
  Arena& workspace() override { return workspace_; }

  absl::Status CopyIn(void* device, const void* host, uint64_t bytes) override;
  absl::Status CopyOut(void* host, const void* device, uint64_t bytes) override;
  absl::Status Zero(void* device, uint64_t bytes) override;
  absl::Status Synchronize() override { return absl::OkStatus(); }
  bool is_host() const override { return true; }
  // Name and version of the library for products.
  std::string algorithm_table() const override { return gemm_.name(); }

  absl::StatusOr<SharedMemory> MapHost(void* host, uint64_t bytes,
                                       std::shared_ptr<const void> owner) override;

  ThreadPool& pool() { return pool_; }
  const Gemm& gemm() const { return gemm_; }

 private:
  CpuDevice(void* memory, uint64_t bytes, int threads);

  void* memory_;
  uint64_t bytes_;
  Arena workspace_;
  ThreadPool pool_;
  Gemm gemm_;
  std::string name_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_CPU_DEVICE_H_
