#include "server/session.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"

namespace lossd {
namespace {

absl::StatusOr<std::shared_ptr<DeviceEvent>> EventAt(
    const std::vector<std::shared_ptr<DeviceEvent>>& events, uint32_t index, const char* field) {
  if (index < events.size()) return events[index];
  return FieldError(field, absl::StrCat("an index of the session's ", events.size(), " events"),
                    absl::StrCat(index));
}

}  // namespace

bool ByteQuota::Take(uint64_t bytes) {
  uint64_t used = used_.load();
  do {
    if (bytes > limit_ || used > limit_ - bytes) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes));
  return true;
}

absl::Status Session::AddEvents(std::vector<std::shared_ptr<DeviceEvent>> ready,
                                std::vector<std::shared_ptr<DeviceEvent>> done) {
  std::lock_guard<std::mutex> lock(mu_);
  if (closed()) {
    return ReasonError(absl::StatusCode::kUnauthenticated, "STALE_SESSION",
                       "the session has ended");
  }
  if (ready_.size() + ready.size() > static_cast<size_t>(max_events_)) {
    return ReasonError(absl::StatusCode::kResourceExhausted, "QUOTA_EVENTS",
                       absl::StrCat("ready_events: a session may have ", max_events_));
  }
  std::move(ready.begin(), ready.end(), std::back_inserter(ready_));
  std::move(done.begin(), done.end(), std::back_inserter(done_));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<DeviceEvent>> Session::ReadyEvent(uint32_t index) const {
  std::lock_guard<std::mutex> lock(mu_);
  return EventAt(ready_, index, "ready.event");
}

absl::StatusOr<std::shared_ptr<DeviceEvent>> Session::DoneEvent(uint32_t index) const {
  std::lock_guard<std::mutex> lock(mu_);
  return EventAt(done_, index, "done_event");
}

void Session::Close() {
  closed_.store(true, std::memory_order_release);
  regions_.Close();
  std::vector<std::shared_ptr<DeviceEvent>> ready, done;  // destroyed after the lock is gone
  std::lock_guard<std::mutex> lock(mu_);
  ready.swap(ready_);
  done.swap(done_);
}

}  // namespace lossd
