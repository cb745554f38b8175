#include "client/cpp/call_stream.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "client/cpp/status.h"

namespace lossd::client {
namespace {

enum Tag : intptr_t { kStart = 1, kRead, kWrite, kFinish };

void* AsPointer(Tag tag) { return reinterpret_cast<void*>(tag); }

// A stream has no deadlines of its calls: without this the server would run, and write, what nobody waits for any more.
void LimitTime(absl::Time deadline, v1::RunRequest* request) {
  if (deadline == absl::InfiniteFuture() || request->has_timeout_ms()) return;
  const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
  request->set_timeout_ms(static_cast<uint32_t>(std::clamp<int64_t>(left, 1, UINT32_MAX)));
}

}  // namespace

CallStream::CallStream(std::unique_ptr<v1::Losses::Stub> stub, const std::string& token,
                       absl::Duration spin)
    : stub_(std::move(stub)), spin_(spin) {
  context_.AddMetadata("x-lossd-session-bin", token);
  stream_ = stub_->PrepareAsyncRunStream(&context_, &queue_);
  stream_->StartCall(AsPointer(kStart));
}

CallStream::~CallStream() {
  context_.TryCancel();
  void* tag;
  bool ok;
  // OnFinish shuts the queue down.
  while (queue_.Next(&tag, &ok)) {
    const std::lock_guard<std::mutex> lock(mu_);
    HandleLocked(tag, ok);
  }
}

bool CallStream::ended() {
  std::unique_lock<std::mutex> lock(mu_);
  PollOnce(lock);
  return ended_;
}

CallStream::Outcome CallStream::Call(const v1::RunRequest& request, absl::Time deadline) {
  Pending call;
  call.deadline = deadline;
  v1::StreamRequest frame;
  *frame.mutable_run() = request;
  std::unique_lock<std::mutex> lock(mu_);
  if (ended_) return {false, end_status_, {}};
  const uint64_t tag = next_tag_++;
  frame.set_tag(tag);
  pending_[tag] = &call;
  unsent_.push_back(std::move(frame));
  WriteNextLocked();
  if (!Wait(call, lock)) {
    pending_.erase(tag);
    return {false,
            absl::DeadlineExceededError("no reply before the deadline; the call may still run"),
            {}};
  }
  return std::move(call.outcome);
}

bool CallStream::Wait(Pending& call, std::unique_lock<std::mutex>& lock) {
  if (!polling_) {
    polling_ = call.polls = true;
  } else {
    const auto woken = [&] { return call.done || call.polls; };
    if (call.deadline == absl::InfiniteFuture()) {
      call.changed.wait(lock, woken);
    } else {
      call.changed.wait_until(lock, absl::ToChronoTime(call.deadline), woken);
    }
  }
  if (call.polls) {
    Poll(call, lock);
    PassOnLocked(&call);
  }
  return call.done;
}

void CallStream::PassOnLocked(const Pending* leaver) {
  polling_ = false;
  for (const auto& [tag, call] : pending_) {
    if (call == leaver) continue;
    polling_ = call->polls = true;
    call->changed.notify_one();
    return;
  }
}

void CallStream::Poll(Pending& call, std::unique_lock<std::mutex>& lock) {
  absl::Time now = absl::Now();
  const absl::Time spin_end = now + spin_;
  while (!call.done && now < call.deadline) {
    const bool spins = now < spin_end;
    void* tag;
    bool ok;
    lock.unlock();
    const auto got = spins ? queue_.AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC))
                     : call.deadline == absl::InfiniteFuture()
                         ? queue_.AsyncNext(&tag, &ok, gpr_inf_future(GPR_CLOCK_MONOTONIC))
                         : queue_.AsyncNext(&tag, &ok, absl::ToChronoTime(call.deadline));
    lock.lock();
    if (got == grpc::CompletionQueue::GOT_EVENT) HandleLocked(tag, ok);
    now = absl::Now();
  }
}

void CallStream::PollOnce(std::unique_lock<std::mutex>& lock) {
  if (polling_) return;
  polling_ = true;
  while (!ended_) {
    void* tag;
    bool ok;
    lock.unlock();
    const auto got = queue_.AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
    lock.lock();
    if (got != grpc::CompletionQueue::GOT_EVENT) break;
    HandleLocked(tag, ok);
  }
  PassOnLocked(nullptr);
}

void CallStream::WriteNextLocked() {
  while (started_ && !writing_ && !ended_ && !unsent_.empty()) {
    v1::StreamRequest frame = std::move(unsent_.front());
    unsent_.pop_front();
    const auto call = pending_.find(frame.tag());
    if (call == pending_.end()) continue;  // its caller has gone
    LimitTime(call->second->deadline, frame.mutable_run());
    writing_ = true;
    stream_->Write(frame, AsPointer(kWrite));  // serializes at once
  }
}

void CallStream::HandleLocked(void* tag, bool ok) {
  switch (static_cast<Tag>(reinterpret_cast<intptr_t>(tag))) {
    case kStart:
      return OnStartLocked(ok);
    case kRead:
      return OnReadLocked(ok);
    case kWrite:
      writing_ = false;
      if (ok) WriteNextLocked();  // else the read fails too, and ends the stream
      return;
    case kFinish:
      OnFinishLocked();
      queue_.Shutdown();
  }
}

void CallStream::OnStartLocked(bool ok) {
  if (!ok) {
    stream_->Finish(&finish_status_, AsPointer(kFinish));
    return;
  }
  stream_->Read(&incoming_, AsPointer(kRead));
  started_ = true;
  WriteNextLocked();
}

void CallStream::OnReadLocked(bool ok) {
  if (!ok) {
    stream_->Finish(&finish_status_, AsPointer(kFinish));
    return;
  }
  const auto found = pending_.find(incoming_.tag());
  if (found != pending_.end()) {  // else its caller has gone
    Pending& call = *found->second;
    pending_.erase(found);
    call.outcome.answered = true;
    call.outcome.status = FromRich(incoming_.status());
    call.outcome.reply = std::move(*incoming_.mutable_run());
    call.done = true;
    call.changed.notify_one();
  }
  incoming_.Clear();
  stream_->Read(&incoming_, AsPointer(kRead));
}

void CallStream::OnFinishLocked() {
  absl::Status status = FromGrpc(finish_status_);
  if (status.ok()) status = absl::UnavailableError("the server ended the stream");
  ended_ = true;
  end_status_ = status;
  for (auto& [tag, call] : pending_) {
    call->outcome.status = status;
    call->done = true;
    call->changed.notify_one();
  }
  pending_.clear();
  unsent_.clear();
}

}  // namespace lossd::client
