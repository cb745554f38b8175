#include "server/run_stream.h"

#include <utility>

#include "server/caller.h"
#include "server/grpc_status.h"
#include "server/rich_status.h"

namespace lossd {
namespace {

// Messages with tensors in them are not kept for reuse.
constexpr size_t kMaxKeptBytes = 64 << 10;
constexpr size_t kMaxKeptFrames = 16;

}  // namespace

void StreamSet::Close(const absl::Status& status) {
  std::lock_guard<std::mutex> lock(mu_);
  closing_ = status;
  // A stream leaves the set, under the lock, before it is deleted.
  for (RunStream* stream : streams_) stream->CloseWith(status);
}

void StreamSet::WaitUntilEmpty() {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [this] { return alive_ == 0; });
}

RunStream::RunStream(const CallContext& context, const SessionTable& sessions, StreamSet& streams,
                     std::function<void()> accept_next)
    : context_(context),
      sessions_(sessions),
      streams_(streams),
      accept_next_(std::move(accept_next)) {
  std::lock_guard<std::mutex> lock(streams_.mu_);
  ++streams_.alive_;
}

RunStream::~RunStream() {
  std::lock_guard<std::mutex> lock(streams_.mu_);
  // Under the lock, so that who waits does not free the set before this has let go of it.
  if (--streams_.alive_ == 0) streams_.changed_.notify_all();
}

void RunStream::OnAccepted() {
  accept_next_();
  auto session = FindSession(context(), sessions_);
  if (session.ok()) session_ = *std::move(session);
  // StreamSet::Close waits until the first read has been started.
  std::lock_guard<std::mutex> set_lock(streams_.mu_);
  streams_.streams_.insert(this);
  const absl::Status& refusal = session.ok() ? streams_.closing_ : session.status();
  if (!refusal.ok()) return CloseWith(refusal);
  Frame* read;
  {
    std::lock_guard<std::mutex> lock(mu_);
    read = TakeReadLocked();
  }
  StartRead(&read->request);
}

RunStream::Frame* RunStream::NewFrameLocked() {
  if (free_.empty()) return new Frame;
  Frame* frame = free_.back().release();
  free_.pop_back();
  return frame;
}

RunStream::Frame* RunStream::TakeReadLocked() {
  if (next_ != nullptr || beginning_ || no_more_reads_) return nullptr;
  if (broken_) {
    no_more_reads_ = true;
    return nullptr;
  }
  if (active_.size() >= kMaxInFlight) return nullptr;
  return next_ = NewFrameLocked();
}

bool RunStream::TakeFinishLocked(absl::Status* status) {
  if (finished_ || !no_more_reads_ || !active_.empty()) return false;
  *status = status_;
  return finished_ = true;
}

void RunStream::OnReadDone(bool ok) {
  Frame* frame;
  {
    std::lock_guard<std::mutex> lock(mu_);
    frame = std::exchange(next_, nullptr);
    if (ok && !no_more_reads_) {
      active_.insert(frame);
      beginning_ = true;
    } else {
      no_more_reads_ = true;
      delete std::exchange(frame, nullptr);
    }
  }
  if (frame != nullptr) BeginFrame(frame);
  Frame* read;
  bool finish;
  absl::Status status;
  {
    std::lock_guard<std::mutex> lock(mu_);
    beginning_ = false;
    read = TakeReadLocked();
    finish = TakeFinishLocked(&status);
  }
  if (read != nullptr) StartRead(&read->request);
  if (finish) Finish(ToGrpcStatus(status));
}

void RunStream::BeginFrame(Frame* frame) {
  frame->reply.set_tag(frame->request.tag());
  auto call = std::make_shared<Call>(
      context_, session_, &frame->request.run(), frame->reply.mutable_run(), absl::InfiniteFuture(),
      [this, frame](const absl::Status& status) { EndFrame(frame, status); });
  {
    std::lock_guard<std::mutex> lock(mu_);
    frame->call = call;
    if (broken_) call->Cancel();
  }
  call->Start();
}

void RunStream::EndFrame(Frame* frame, const absl::Status& status) {
  if (!status.ok()) {
    frame->reply.clear_run();
    *frame->reply.mutable_status() = ToRichStatus(status);
  }
  bool write = false, finish = false;
  absl::Status end;
  {
    std::lock_guard<std::mutex> lock(mu_);
    frame->call = nullptr;
    if (broken_) {
      active_.erase(frame);
      delete frame;
      TakeReadLocked();
      finish = TakeFinishLocked(&end);
    } else {
      write = answered_.empty();
      answered_.push_back(frame);
    }
  }
  // This thread is not the queue's: nothing here may be touched that the stream's end could have deleted.
  if (write) StartWrite(&frame->reply);
  if (finish) Finish(ToGrpcStatus(end));
}

void RunStream::OnWriteDone(bool ok) {
  Frame* write = nullptr;
  Frame* read;
  bool finish;
  absl::Status status;
  {
    std::lock_guard<std::mutex> lock(mu_);
    std::unique_ptr<Frame> written(answered_.front());
    answered_.pop_front();
    active_.erase(written.get());
    if (free_.size() < kMaxKeptFrames &&
        written->request.ByteSizeLong() + written->reply.ByteSizeLong() < kMaxKeptBytes) {
      written->request.Clear();
      written->reply.Clear();
      free_.push_back(std::move(written));
    }
    if (!ok) broken_ = true;
    if (broken_) {
      for (Frame* frame : answered_) {
        active_.erase(frame);
        delete frame;
      }
      answered_.clear();
    } else if (!answered_.empty()) {
      write = answered_.front();
    }
    read = TakeReadLocked();
    finish = TakeFinishLocked(&status);
  }
  if (write != nullptr) StartWrite(&write->reply);
  if (read != nullptr) StartRead(&read->request);
  if (finish) Finish(ToGrpcStatus(status));
}

void RunStream::OnCancel() {
  bool finish;
  absl::Status status;
  {
    std::lock_guard<std::mutex> lock(mu_);
    broken_ = true;
    for (Frame* frame : active_) {
      if (frame->call != nullptr) frame->call->Cancel();
    }
    TakeReadLocked();
    finish = TakeFinishLocked(&status);
  }
  if (finish) Finish(ToGrpcStatus(status));
}

void RunStream::CloseWith(const absl::Status& status) {
  bool finish;
  absl::Status end;
  {
    std::lock_guard<std::mutex> lock(mu_);
    status_ = status;
    // A read that is under way is given up: Finish may be called beside it.
    no_more_reads_ = true;
    finish = TakeFinishLocked(&end);
  }
  if (finish) Finish(ToGrpcStatus(end));
}

void RunStream::OnDone() {
  {
    std::lock_guard<std::mutex> lock(streams_.mu_);
    streams_.streams_.erase(this);
  }
  delete next_;
  delete this;
}

}  // namespace lossd
