#include "tests/testing/local_runner.h"

#include <cstdlib>
#include <iostream>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_head.h"
#include "kernels/cpu/cpu_layers.h"

namespace lossd {
namespace {

template <class T>
T OrDie(absl::StatusOr<T> result) {
  if (!result.ok()) {
    std::cerr << result.status() << std::endl;
    std::abort();
  }
  return *std::move(result);
}

class TestRegions final : public RegionResolver {
 public:
  absl::StatusOr<Region> Resolve(uint64_t region) const override {
    if (region == 0 || region > regions_.size()) return absl::NotFoundError("no such region");
    return regions_[region - 1];
  }
  uint64_t Add(void* memory, uint64_t bytes) {
    Region region;
    region.base = static_cast<std::byte*>(memory);
    region.bytes = bytes;
    region.writable = true;
    regions_.push_back(std::move(region));
    return regions_.size();
  }

 private:
  std::vector<Region> regions_;
};

}  // namespace

struct LocalRunner::Machine {
  explicit Machine(uint64_t workspace_bytes)
      : device(OrDie(CpuDevice::Create({.workspace_bytes = workspace_bytes}))),
        head(*device),
        layers(*device) {
    backend.device = device.get();
    backend.head = &head;
    backend.layers = &layers;
  }
  std::unique_ptr<CpuDevice> device;
  CpuHead head;
  CpuLayers layers;
  Backend backend;
  TestRegions regions;
};

LocalRunner::LocalRunner(uint64_t workspace_bytes)
    : machine_(std::make_unique<Machine>(workspace_bytes)), registry_(OrDie(Registry::Create())) {}

LocalRunner::~LocalRunner() = default;

Backend& LocalRunner::backend() { return machine_->backend; }

uint64_t LocalRunner::AddRegion(void* memory, uint64_t bytes) {
  return machine_->regions.Add(memory, bytes);
}

absl::StatusOr<v1::OpReply> LocalRunner::Run(const v1::Op& op, const RunOptions& options,
                                             const std::vector<std::string>& donated) {
  auto admitted = Admit(registry_, op, machine_->regions, donated);
  if (!admitted.ok()) return std::move(admitted).status();
  v1::OpReply reply;
  const absl::Status status = RunOp(*admitted, options, machine_->backend, &reply);
  if (!status.ok()) return status;
  return reply;
}

}  // namespace lossd
