// One client: what it owns and how much it may use.
#ifndef LOSSD_SERVER_SESSION_H_
#define LOSSD_SERVER_SESSION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/core/device.h"
#include "server/region_table.h"
#include "server/request_window.h"

namespace lossd {

// A counted allowance of bytes. Thread-safe.
class ByteQuota {
 public:
  explicit ByteQuota(uint64_t limit) : limit_(limit) {}
  // False if it does not fit.
  bool Take(uint64_t bytes);
  void Give(uint64_t bytes) { used_.fetch_sub(bytes); }
  uint64_t limit() const { return limit_; }
  uint64_t used() const { return used_.load(); }

 private:
  const uint64_t limit_;
  std::atomic<uint64_t> used_{0};
};

struct SessionLimits {
  int max_regions = 256;
  int max_events = 64;
  uint64_t memory_bytes = uint64_t{16} << 30;   // allocated by the server
  uint64_t inline_bytes = uint64_t{256} << 20;  // of tensors in messages in flight
};

// Thread-safe. Shared by the transport that opened it and by its calls; ended once, by whoever sees the client's end.
class Session {
 public:
  // kSocket lives as long as a session socket connection, kLease until Close or until its lease runs out.
  enum class Kind { kSocket, kLease };

  Session(uint64_t id, Kind kind, std::string token, std::string client_name,
          const SessionLimits& limits)
      : id_(id),
        kind_(kind),
        token_(std::move(token)),
        client_name_(std::move(client_name)),
        max_events_(limits.max_events),
        regions_(limits.max_regions),
        inline_quota_(std::make_shared<ByteQuota>(limits.inline_bytes)),
        memory_quota_(std::make_shared<ByteQuota>(limits.memory_bytes)) {}

  uint64_t id() const { return id_; }
  Kind kind() const { return kind_; }
  const std::string& token() const { return token_; }
  const std::string& client_name() const { return client_name_; }

  RegionTable& regions() { return regions_; }
  RequestWindow& window() { return window_; }
  // Shared, since calls and mappings give back to them after the session may be gone.
  const std::shared_ptr<ByteQuota>& inline_quota() const { return inline_quota_; }
  const std::shared_ptr<ByteQuota>& memory_quota() const { return memory_quota_; }

  // Events, by the index that calls name. Errors: RESOURCE_EXHAUSTED with reason QUOTA_EVENTS.
  absl::Status AddEvents(std::vector<std::shared_ptr<DeviceEvent>> ready,
                         std::vector<std::shared_ptr<DeviceEvent>> done);
  // Errors: INVALID_ARGUMENT with the field if there is none of that index.
  absl::StatusOr<std::shared_ptr<DeviceEvent>> ReadyEvent(uint32_t index) const;
  absl::StatusOr<std::shared_ptr<DeviceEvent>> DoneEvent(uint32_t index) const;

  // The client's process id is the server's own, seen from another namespace: CUDA refuses handles between such processes.
  void set_pid_collision(bool collision) { pid_collision_ = collision; }
  bool pid_collision() const { return pid_collision_; }

  // Leases: every look-up and the end of every call renews.
  void Touch(absl::Time now) {
    last_used_.store(absl::ToUnixNanos(now), std::memory_order_relaxed);
  }
  absl::Time last_used() const {
    return absl::FromUnixNanos(last_used_.load(std::memory_order_relaxed));
  }
  // Calls that are admitted and not yet answered.
  std::atomic<int>& calls() { return calls_; }

  bool closed() const { return closed_.load(std::memory_order_acquire); }
  // No new work; regions and events are let go. Calls that were launched keep what they use.
  void Close();

 private:
  const uint64_t id_;
  const Kind kind_;
  const std::string token_;
  const std::string client_name_;
  const int max_events_;
  RegionTable regions_;
  RequestWindow window_;
  const std::shared_ptr<ByteQuota> inline_quota_;
  const std::shared_ptr<ByteQuota> memory_quota_;
  std::atomic<bool> pid_collision_{false};
  std::atomic<bool> closed_{false};
  std::atomic<int64_t> last_used_{0};
  std::atomic<int> calls_{0};

  mutable std::mutex mu_;
  // Guarded by mu_.
  std::vector<std::shared_ptr<DeviceEvent>> ready_;
  std::vector<std::shared_ptr<DeviceEvent>> done_;
};

}  // namespace lossd

#endif  // LOSSD_SERVER_SESSION_H_
