// One RunRequest from its envelope to its reply, whatever transport it came by.
#ifndef LOSSD_SERVER_CALL_H_
#define LOSSD_SERVER_CALL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/core/registry.h"
#include "lossd/v1/service.pb.h"
#include "server/dispatcher.h"
#include "server/session.h"

namespace lossd {

// What every call needs; owned by the server, outlives all calls.
struct CallContext {
  const Registry* registry = nullptr;
  Dispatcher* dispatcher = nullptr;
  uint64_t inline_limit_bytes = 0;
  // Whether the device's memory is the host's: no events, no ENQUEUED.
  bool is_host = true;
  // Whether calls without tensors in regions need a session too.
  bool needs_session = false;
  // How long a call with completion DONE waits for its ready event.
  absl::Duration ready_timeout = absl::Seconds(30);
  // Of calls without a session, all of them together.
  std::shared_ptr<ByteQuota> anonymous_inline_quota;
};

// Thread-safe after Start. Refused calls end without a trace; calls that were launched end exactly once, and never run twice under one
// request_id.
class Call final : public Work, public std::enable_shared_from_this<Call> {
 public:
  // `request` and `reply` are borrowed until `done` is called, once, on any thread. `session` may be null.
  // `deadline`: dropped with DEADLINE_EXCEEDED if it has not been launched by then; the request's own timeout may end it earlier.
  Call(const CallContext& context, std::shared_ptr<Session> session, const v1::RunRequest* request,
       v1::RunReply* reply, absl::Time deadline, std::function<void(const absl::Status&)> done);

  // Checks and queues; `done` may be called before it returns.
  void Start();
  // Has an effect until the launch.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  absl::Status CheckStillWanted() override;
  // With completion DONE: whether the ready event has been reached, so that an event that never comes holds up its session alone.
  // With ENQUEUED the device waits: the reply must not, and what the device waits for cannot be taken back from it.
  absl::StatusOr<bool> CheckReady(Backend& backend) override;
  absl::Status Run(Backend& backend, bool* pending) override;
  void Settle(const absl::Status& status, bool launched) override;

 private:
  // After the request_id has been found to be the first of its kind.
  void StartFirst();
  // Binds every op. Looks at no data and needs no device.
  absl::Status AdmitAll();
  absl::Status BindRecord(const RegionResolver& regions);
  absl::Status CheckInlineBytes();
  absl::Status TakeInlineQuota(uint64_t bytes);
  absl::Status RunDone(Backend& backend);
  absl::Status RunEnqueued(Backend& backend);
  void Answer(const absl::Status& status);
  bool enqueued() const { return completion_ == v1::ENQUEUED; }

  const CallContext& context_;
  const std::shared_ptr<Session> session_;
  const v1::RunRequest* request_;
  v1::RunReply* reply_;
  const absl::Time deadline_;
  std::function<void(const absl::Status&)> done_;
  std::atomic<bool> cancelled_{false};

  v1::Completion completion_ = v1::DONE;
  bool windowed_ = false;  // the window waits for our End
  uint64_t inline_bytes_ = 0;
  std::vector<AdmittedOp> ops_;
  Region record_;
  uint64_t record_offset_ = 0;
  std::shared_ptr<DeviceEvent> ready_;
  absl::Time ready_deadline_ = absl::InfiniteFuture();  // from the first look on
  std::shared_ptr<DeviceEvent> done_event_;
};

// UNAUTHENTICATED, for a call without a token where every call needs a session.
absl::Status NeedsSession();

// What the envelope alone can tell. Errors: INVALID_ARGUMENT, UNIMPLEMENTED, each with the field.
absl::Status CheckEnvelope(const v1::RunRequest& request, bool has_session, bool is_host);

}  // namespace lossd

#endif  // LOSSD_SERVER_CALL_H_
