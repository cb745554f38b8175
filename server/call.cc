#include "server/call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/envelope.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

absl::Time Earlier(absl::Time deadline, uint32_t timeout_ms) {
  return timeout_ms == 0 ? deadline
                         : std::min(deadline, absl::Now() + absl::Milliseconds(timeout_ms));
}

}  // namespace

absl::Status NeedsSession() {
  return absl::UnauthenticatedError(
      "every call needs a session on this server: its token is missing");
}

Call::Call(const CallContext& context, std::shared_ptr<Session> session,
           const v1::RunRequest* request, v1::RunReply* reply, absl::Time deadline,
           std::function<void(const absl::Status&)> done)
    : context_(context),
      session_(std::move(session)),
      request_(request),
      reply_(reply),
      deadline_(Earlier(deadline, request->timeout_ms())),
      done_(std::move(done)) {}

void Call::Start() {
  if (session_ == nullptr && context_.needs_session) {
    return Answer(NeedsSession());
  }
  if (session_ != nullptr && session_->closed()) {
    return Answer(ReasonError(absl::StatusCode::kUnauthenticated, "STALE_SESSION",
                              "the session has ended; open a new one"));
  }
  const absl::Status status = CheckEnvelope(*request_, session_ != nullptr, context_.is_host);
  if (!status.ok()) return Answer(status);
  completion_ = request_->completion();
  if (request_->request_id().empty()) return StartFirst();

  PastResult past;
  auto self = shared_from_this();
  const auto waiter = [self](const PastResult* result) {
    if (result == nullptr) return self->StartFirst();
    if (result->status.ok()) *self->reply_ = *result->reply;
    self->windowed_ = false;
    self->Answer(result->status);
  };
  // Before Begin: a waiter may be called before it returns.
  windowed_ = true;
  switch (session_->window().Begin(request_->request_id(), waiter, &past)) {
    case RequestWindow::Turn::kFirst:
      return StartFirst();
    case RequestWindow::Turn::kWaiting:
      return;
    case RequestWindow::Turn::kKnown:
      windowed_ = false;
      if (past.status.ok()) *reply_ = *past.reply;
      return Answer(past.status);
  }
}

void Call::StartFirst() {
  // The answer may come on another thread, and with it the end of whoever holds this call.
  const auto self = shared_from_this();
  if (session_ != nullptr) session_->calls().fetch_add(1);
  absl::Status status = AdmitAll();
  if (status.ok()) {
    status = context_.dispatcher->Submit(session_ == nullptr ? 0 : session_->id(), self);
    // Ended between the look-up and the queue: whoever ended it did not see this call.
    if (status.ok() && session_ != nullptr && session_->closed()) {
      context_.dispatcher->Drop(session_->id(), CheckStillWanted());
    }
    if (status.ok()) return;
  }
  Settle(status, false);
}

absl::Status Call::AdmitAll() {
  LOSSD_RETURN_IF_ERROR(CheckStillWanted());
  LOSSD_RETURN_IF_ERROR(CheckDonated(*request_, *context_.registry));
  const std::vector<std::string> donated(request_->donate().begin(), request_->donate().end());
  const CallRegions regions(session_ == nullptr ? nullptr : &session_->regions());
  ops_.reserve(request_->ops_size());
  for (int i = 0; i < request_->ops_size(); ++i) {
    absl::StatusOr<AdmittedOp> admitted =
        Admit(*context_.registry, request_->ops(i), regions, donated);
    if (!admitted.ok()) {
      if (session_ == nullptr && absl::IsUnauthenticated(admitted.status())) {
        return ReasonError(
            absl::StatusCode::kUnauthenticated, "NO_SESSION",
            absl::StrCat("ops[", i,
                         "] has a tensor in a region, which needs a session: its token "
                         "(metadata x-lossd-session-bin) is missing"));
      }
      const google::protobuf::Message* message = nullptr;
      const auto op = context_.registry->Select(request_->ops(i), &message);
      return AnnotateOp(admitted.status(), op.ok() ? (*op)->name() : "Op", i);
    }
    ops_.push_back(*std::move(admitted));
  }
  if (request_->has_ready()) {
    if (session_ == nullptr) return absl::UnauthenticatedError("ready: an event needs a session");
    LOSSD_ASSIGN_OR_RETURN(ready_, session_->ReadyEvent(request_->ready().event()));
  }
  if (request_->has_done_event()) {
    if (session_ == nullptr)
      return absl::UnauthenticatedError("done_event: an event needs a session");
    LOSSD_ASSIGN_OR_RETURN(done_event_, session_->DoneEvent(request_->done_event()));
  }
  if (request_->has_result_record()) LOSSD_RETURN_IF_ERROR(BindRecord(regions));
  return CheckInlineBytes();
}

absl::Status Call::BindRecord(const RegionResolver& regions) {
  const v1::RegionRef& place = request_->result_record().region();
  LOSSD_ASSIGN_OR_RETURN(record_, regions.Resolve(place.region()));
  record_offset_ = place.byte_offset();
  const uint64_t bytes = sizeof(ResultRecord) * ops_.size();
  if (record_offset_ > record_.bytes || bytes > record_.bytes - record_offset_) {
    return FieldError("result_record",
                      absl::StrCat("inside its region of ", record_.bytes, " bytes"),
                      absl::StrCat("at byte ", record_offset_, " with ", bytes, " bytes"));
  }
  if (!record_.writable) {
    v1::ErrorDetail detail;
    detail.set_field("result_record");
    detail.set_must_be("in a writable region");
    detail.set_is("in a read-only one");
    return DetailError(absl::StatusCode::kPermissionDenied, detail);
  }
  const std::byte* begin = record_.base + record_offset_;
  for (const AdmittedOp& op : ops_) {
    for (const BoundTensor& bound : op.binding.tensors()) {
      const auto* other = static_cast<const std::byte*>(bound.view.data);
      if (bound.in_message || begin >= other + bound.bytes || other >= begin + bytes) continue;
      return FieldError("result_record", "apart from every tensor of the call",
                        absl::StrCat("overlapping ", bound.rule->name));
    }
  }
  return absl::OkStatus();
}

absl::Status Call::CheckInlineBytes() {
  uint64_t in = 0, out = 0;
  for (size_t i = 0; i < ops_.size(); ++i) {
    for (const BoundTensor& bound : ops_[i].binding.tensors()) {
      if (!bound.in_message) continue;
      if (enqueued()) {
        return AnnotateOp(
            FieldError(bound.rule->name, "in a region with completion ENQUEUED", "in the message"),
            ops_[i].op->name(), static_cast<int>(i));
      }
      uint64_t& sum = bound.rule->is_output() ? out : in;
      // Each term is at most the limit, so that the sum cannot wrap.
      if (bound.bytes <= context_.inline_limit_bytes) sum += bound.bytes;
      if (bound.bytes > context_.inline_limit_bytes || sum > context_.inline_limit_bytes) {
        v1::ErrorDetail detail;
        detail.set_field(bound.rule->name);
        detail.set_reason("INLINE_LIMIT");
        detail.set_must_be(absl::StrCat("in a region, or with at most ",
                                        context_.inline_limit_bytes,
                                        " bytes of tensors in the message"));
        detail.set_is(absl::StrCat("of ", bound.bytes, " bytes"));
        return AnnotateOp(DetailError(absl::StatusCode::kResourceExhausted, detail),
                          ops_[i].op->name(), static_cast<int>(i));
      }
    }
  }
  return TakeInlineQuota(in + out);
}

absl::Status Call::TakeInlineQuota(uint64_t bytes) {
  ByteQuota& quota =
      session_ == nullptr ? *context_.anonymous_inline_quota : *session_->inline_quota();
  if (!quota.Take(bytes)) {
    v1::ErrorDetail detail;
    detail.set_reason("QUOTA_INLINE");
    detail.set_retry_after_ms(10);
    return DetailError(
        absl::StatusCode::kResourceExhausted, detail,
        absl::StrCat("calls in flight may hold ", quota.limit(), " bytes of inline tensors, ",
                     quota.used(), " are held and this call has ", bytes));
  }
  inline_bytes_ = bytes;
  return absl::OkStatus();
}

absl::Status Call::CheckStillWanted() {
  if (cancelled_.load(std::memory_order_relaxed))
    return absl::CancelledError("cancelled before the launch");
  if (session_ != nullptr && session_->closed()) {
    return ReasonError(absl::StatusCode::kAborted, "SESSION_CLOSED",
                       "the session ended before the launch");
  }
  if (deadline_ != absl::InfiniteFuture() && absl::Now() >= deadline_) {
    return absl::DeadlineExceededError("the deadline passed before the launch");
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Call::CheckReady(Backend& backend) {
  if (ready_ == nullptr || enqueued()) return true;
  LOSSD_ASSIGN_OR_RETURN(const bool reached, backend.device->QueryEvent(*ready_));
  if (reached) return true;
  const absl::Time now = absl::Now();
  if (ready_deadline_ == absl::InfiniteFuture()) ready_deadline_ = now + context_.ready_timeout;
  if (now < ready_deadline_) return false;
  v1::ErrorDetail detail;
  detail.set_field("ready.event");
  detail.set_reason("READY_TIMEOUT");
  detail.set_must_be(absl::StrCat("reached within ", absl::FormatDuration(context_.ready_timeout)));
  detail.set_is("not reached; nothing was launched");
  return DetailError(absl::StatusCode::kDeadlineExceeded, detail);
}

absl::Status Call::Run(Backend& backend, bool* pending) {
  Device& device = *backend.device;
  device.workspace().SetLimit(request_->workspace_limit());
  absl::Status status = enqueued() ? RunEnqueued(backend) : RunDone(backend);
  device.workspace().SetLimit(0);
  if (!status.ok()) {
    // Copies that were enqueued before the error still use memory of the call.
    if (absl::Status waited = IsDeviceLost(status) ? absl::OkStatus() : device.Synchronize();
        !waited.ok()) {
      status = waited;
    }
    return status;
  }
  *pending = enqueued();
  return status;
}

absl::Status Call::RunDone(Backend& backend) {
  Device& device = *backend.device;
  RunOptions options;
  options.batch_invariant = request_->batch_invariant();
  options.gradient_filter = static_cast<float>(request_->gradient_filter());
  const absl::Time start = absl::Now();
  // The ready event has been reached: CheckReady. To let the device wait for it again would let a client that has recorded it anew meanwhile
  // stop the device.
  for (size_t i = 0; i < ops_.size(); ++i) {
    device.workspace().Reset();
    LaunchedOp launched;
    absl::Status status = Launch(ops_[i], options, backend, &launched);
    // Also after an error: copies to `launched` may be under way.
    LOSSD_RETURN_IF_ERROR(device.Synchronize());
    if (status.ok()) status = Collect(ops_[i], launched, reply_->add_ops());
    if (!status.ok()) return AnnotateOp(status, ops_[i].op->name(), static_cast<int>(i));
  }
  if (done_event_ != nullptr) LOSSD_RETURN_IF_ERROR(device.RecordEvent(*done_event_));
  // On the host the call is the work; elsewhere the time would include waiting for the client.
  if (device.is_host()) reply_->set_device_seconds(absl::ToDoubleSeconds(absl::Now() - start));
  return absl::OkStatus();
}

absl::Status Call::RunEnqueued(Backend& backend) {
  Device& device = *backend.device;
  RunOptions options;
  options.batch_invariant = request_->batch_invariant();
  options.gradient_filter = static_cast<float>(request_->gradient_filter());
  options.host_may_wait = false;
  if (ready_ != nullptr) LOSSD_RETURN_IF_ERROR(device.WaitEvent(*ready_));
  for (size_t i = 0; i < ops_.size(); ++i) {
    // The device works in order, so the next op may use the workspace again.
    device.workspace().Reset();
    LaunchedOp launched;
    if (record_.base != nullptr) {
      std::byte* place = record_.base + record_offset_ + i * sizeof(ResultRecord);
      options.record_copy = reinterpret_cast<ResultRecord*>(place);
    }
    const absl::Status status = Launch(ops_[i], options, backend, &launched);
    if (!status.ok()) return AnnotateOp(status, ops_[i].op->name(), static_cast<int>(i));
    reply_->add_ops()->set_plan(launched.pending.plan);
  }
  return device.RecordEvent(*done_event_);
}

void Call::Settle(const absl::Status& status, bool launched) {
  ByteQuota& quota =
      session_ == nullptr ? *context_.anonymous_inline_quota : *session_->inline_quota();
  quota.Give(std::exchange(inline_bytes_, 0));
  // A call that is left on the device is kept by the dispatcher, and with it its regions; any other lets go of them before the reply.
  if (!enqueued() || !status.ok()) {
    ops_.clear();
    record_ = Region();
    ready_ = nullptr;
    done_event_ = nullptr;
  }
  if (session_ != nullptr) {
    session_->Touch(absl::Now());
    session_->calls().fetch_sub(1);
  }
  if (std::exchange(windowed_, false)) {
    session_->window().End(request_->request_id(), launched, status, reply_);
  }
  Answer(status);
}

void Call::Answer(const absl::Status& status) {
  // Moved out, so that what it holds is freed even while the dispatcher keeps this call.
  auto done = std::exchange(done_, nullptr);
  done(status);
}

}  // namespace lossd
