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

CallStream::CallStream(std::unique_ptr<v1::Losses::Stub> stub, const std::string& token)
    : stub_(std::move(stub)) {
  context_.AddMetadata("x-lossd-session-bin", token);
  stream_ = stub_->PrepareAsyncRunStream(&context_, &queue_);
  stream_->StartCall(AsPointer(kStart));
  thread_ = std::thread([this] { Loop(); });
}

CallStream::~CallStream() {
  context_.TryCancel();
  thread_.join();
}

bool CallStream::ended() const {
  std::lock_guard<std::mutex> lock(mu_);
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
  const auto is_done = [&] { return call.done; };
  if (deadline == absl::InfiniteFuture()) {
    call.arrived.wait(lock, is_done);
  } else if (!call.arrived.wait_until(lock, absl::ToChronoTime(deadline), is_done)) {
    pending_.erase(tag);
    return {false,
            absl::DeadlineExceededError("no reply before the deadline; the call may still run"),
            {}};
  }
  return std::move(call.outcome);
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

void CallStream::Loop() {
  void* pointer;
  bool ok;
  while (queue_.Next(&pointer, &ok)) {
    switch (static_cast<Tag>(reinterpret_cast<intptr_t>(pointer))) {
      case kStart:
        OnStart(ok);
        break;
      case kRead:
        OnRead(ok);
        break;
      case kWrite:
        OnWrite(ok);
        break;
      case kFinish:
        OnFinish();
        queue_.Shutdown();
        break;
    }
  }
}

void CallStream::OnStart(bool ok) {
  if (!ok) {
    stream_->Finish(&finish_status_, AsPointer(kFinish));
    return;
  }
  stream_->Read(&incoming_, AsPointer(kRead));
  std::lock_guard<std::mutex> lock(mu_);
  started_ = true;
  WriteNextLocked();
}

void CallStream::OnRead(bool ok) {
  if (!ok) {
    stream_->Finish(&finish_status_, AsPointer(kFinish));
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = pending_.find(incoming_.tag());
    if (found != pending_.end()) {  // else its caller has gone
      Pending& call = *found->second;
      pending_.erase(found);
      call.outcome.answered = true;
      call.outcome.status = FromRich(incoming_.status());
      call.outcome.reply = std::move(*incoming_.mutable_run());
      call.done = true;
      call.arrived.notify_one();
    }
  }
  incoming_.Clear();
  stream_->Read(&incoming_, AsPointer(kRead));
}

void CallStream::OnWrite(bool ok) {
  std::lock_guard<std::mutex> lock(mu_);
  writing_ = false;
  if (ok) WriteNextLocked();  // else the read fails too, and ends the stream
}

void CallStream::OnFinish() {
  absl::Status status = FromGrpc(finish_status_);
  if (status.ok()) status = absl::UnavailableError("the server ended the stream");
  std::lock_guard<std::mutex> lock(mu_);
  ended_ = true;
  end_status_ = status;
  for (auto& [tag, call] : pending_) {
    call->outcome.status = status;
    call->done = true;
    call->arrived.notify_one();
  }
  pending_.clear();
  unsent_.clear();
}

}  // namespace lossd::client
