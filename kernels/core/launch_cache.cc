#include "kernels/core/launch_cache.h"

#include <bit>
#include <cstdint>
#include <utility>

#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

void Append(uint64_t number, std::string* key) {
  key->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

// Everything that an enqueued call depends on.
std::string KeyOf(const Op& op, const OpCall& call, Device& device) {
  std::string key = op.name();
  key.push_back('\0');
  for (const BoundTensor& bound : call.binding->tensors()) {
    Append(reinterpret_cast<uintptr_t>(bound.view.data), &key);
  }
  Append(reinterpret_cast<uintptr_t>(call.options.record_copy), &key);
  Append(call.options.batch_invariant ? 1 : 0, &key);
  Append(std::bit_cast<uint32_t>(call.options.gradient_filter), &key);
  Append(device.workspace().used(), &key);
  Append(device.workspace().available(), &key);
  call.request->AppendToString(&key);
  return key;
}

}  // namespace

absl::StatusOr<PendingResult> LaunchCache::Enqueue(const Op& op, const OpCall& call,
                                                   Backend& backend) {
  Device& device = *backend.device;
  if (launches_.size() >= kMaxLaunches) launches_.clear();
  const auto [place, is_new] = launches_.try_emplace(KeyOf(op, call, device));
  Launch& launch = place->second;
  // The first time what a library chooses for a shape may still allocate.
  if (is_new || launch.refused) return op.Enqueue(call, backend);
  if (launch.recording == nullptr) {
    const uint64_t used = device.workspace().used();
    LOSSD_RETURN_IF_ERROR(device.BeginRecording());
    absl::StatusOr<PendingResult> pending = op.Enqueue(call, backend);
    absl::StatusOr<std::shared_ptr<Recording>> recording = device.EndRecording();
    if (!pending.ok()) return pending;
    if (!recording.ok()) {
      launch.refused = true;
      device.workspace().ReleaseTo(used);
      return op.Enqueue(call, backend);
    }
    launch.recording = *std::move(recording);
    launch.pending = *std::move(pending);
  }
  LOSSD_RETURN_IF_ERROR(device.Replay(*launch.recording));
  return launch.pending;
}

}  // namespace lossd
