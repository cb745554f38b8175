#include "server/queued_stream.h"

namespace lossd {

void QueuedStream::StartRead(v1::StreamRequest* request) {
  steps_.fetch_add(1, std::memory_order_relaxed);
  stream_.Read(request, &read_);
}

void QueuedStream::StartWrite(v1::StreamReply* reply) {
  steps_.fetch_add(1, std::memory_order_relaxed);
  stream_.Write(*reply, &written_);
}

void QueuedStream::Finish(const grpc::Status& status) { stream_.Finish(status, &finished_); }

void QueuedStream::HandleAccepted(bool ok) {
  // The queue ends: no other step of this call will be seen.
  if (!ok) return OnUnused();
  OnAccepted();
}

void QueuedStream::HandleRead(bool ok) {
  OnReadDone(ok);
  Drop();
}

void QueuedStream::HandleWritten(bool ok) {
  OnWriteDone(ok);
  Drop();
}

void QueuedStream::HandleEnded(bool) {
  if (context_.IsCancelled()) OnCancel();
  Drop();
}

void QueuedStream::HandleFinished(bool) { Drop(); }

void QueuedStream::Drop() {
  if (steps_.fetch_sub(1, std::memory_order_acq_rel) == 1) OnDone();
}

}  // namespace lossd
