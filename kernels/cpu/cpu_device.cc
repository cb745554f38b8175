#include "kernels/cpu/cpu_device.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"

namespace lossd {
namespace {

// OpenBLAS keeps a fixed table of buffers for concurrent callers; this is well inside it.
constexpr int kMaxThreads = 64;

int AvailableThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::clamp(CPU_COUNT(&set), 1, kMaxThreads);
}

std::string ModelName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "CPU";
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuDevice>> CpuDevice::Create(const CpuOptions& options) {
  const uint64_t bytes = std::max<uint64_t>(options.workspace_bytes, 1 << 20);
  // Pages come with their first use. A mapping is aligned far better than Arena::kAlignment.
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return ReasonError(
        absl::StatusCode::kResourceExhausted, "WORKSPACE",
        absl::StrCat("a workspace of ", bytes, " bytes cannot be mapped: ", std::strerror(errno)));
  }
  madvise(memory, bytes,
          MADV_HUGEPAGE);  // fewer page faults and TLB misses; the kernel may decline
  return absl::WrapUnique(new CpuDevice(memory, bytes, ThreadsFor(options.threads)));
}

int CpuDevice::ThreadsFor(int threads) {
  return threads > 0 ? std::min(threads, kMaxThreads) : AvailableThreads();
}

CpuDevice::CpuDevice(void* memory, uint64_t bytes, int threads)
    : memory_(memory),
      bytes_(bytes),
      workspace_(memory, bytes),
      pool_(threads),
      gemm_(Gemm::Load()),
      name_(absl::StrCat(ModelName(), ", ", threads, threads == 1 ? " thread" : " threads")) {}

CpuDevice::~CpuDevice() { munmap(memory_, bytes_); }

absl::Status CpuDevice::CopyIn(void* device, const void* host, uint64_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
  return absl::OkStatus();
}

absl::Status CpuDevice::CopyOut(void* host, const void* device, uint64_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
  return absl::OkStatus();
}

absl::Status CpuDevice::Zero(void* device, uint64_t bytes) {
  if (bytes > 0) std::memset(device, 0, bytes);
  return absl::OkStatus();
}

absl::StatusOr<SharedMemory> CpuDevice::MapHost(void* host, uint64_t bytes,
                                                std::shared_ptr<const void> owner) {
  SharedMemory memory;
  memory.base = static_cast<std::byte*>(host);
  memory.bytes = bytes;
  memory.owner = std::move(owner);
  return memory;
}

}  // namespace lossd
