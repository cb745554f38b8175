// One RunStream call on a completion queue, in the shape of gRPC's reactors: start a step, get a callback. The callback API itself costs
// several times as much for each message (README, figures), and this is the hot path.
#ifndef LOSSD_SERVER_QUEUED_STREAM_H_
#define LOSSD_SERVER_QUEUED_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "lossd/v1/service.grpc.pb.h"

namespace lossd {

// The callbacks come on the thread that polls the queue; the Start functions and Finish may be called on any. Deleted by OnDone or, if no
// call came before the queue's end, by OnUnused.
class QueuedStream {
 public:
  QueuedStream(const QueuedStream&) = delete;
  QueuedStream& operator=(const QueuedStream&) = delete;

  // Waits for a call. The service is any of whose methods RunStream is an asynchronous one.
  template <class S>
  void Accept(S& service, grpc::ServerCompletionQueue* queue) {
    context_.AsyncNotifyWhenDone(&ended_);
    service.RequestRunStream(&context_, &stream_, queue, queue, &accepted_);
  }

  // What the queue returned.
  static void Handle(void* tag, bool ok) {
    const auto* step = static_cast<Step*>(tag);
    (step->stream->*step->handle)(ok);
  }

 protected:
  QueuedStream() = default;
  virtual ~QueuedStream() = default;

  // At most one read and one write at a time; none after Finish, which is called once.
  void StartRead(v1::StreamRequest* request);
  void StartWrite(v1::StreamReply* reply);
  void Finish(const grpc::Status& status);

  grpc::ServerContext& context() { return context_; }

  virtual void OnAccepted() = 0;
  // ok is false at the end of the stream.
  virtual void OnReadDone(bool ok) = 0;
  virtual void OnWriteDone(bool ok) = 0;
  // The client is gone. May come at any time, before Finish or after it.
  virtual void OnCancel() = 0;
  // The last callback.
  virtual void OnDone() = 0;
  virtual void OnUnused() { delete this; }

 private:
  struct Step {
    QueuedStream* stream;
    void (QueuedStream::*handle)(bool ok);
  };

  void HandleAccepted(bool ok);
  void HandleRead(bool ok);
  void HandleWritten(bool ok);
  void HandleEnded(bool ok);
  void HandleFinished(bool ok);
  void Drop();

  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<v1::StreamReply, v1::StreamRequest> stream_{&context_};
  // Steps under way, the end of the call and Finish among them.
  std::atomic<int> steps_{2};
  Step accepted_{this, &QueuedStream::HandleAccepted};
  Step read_{this, &QueuedStream::HandleRead};
  Step written_{this, &QueuedStream::HandleWritten};
  Step ended_{this, &QueuedStream::HandleEnded};
  Step finished_{this, &QueuedStream::HandleFinished};
};

}  // namespace lossd

#endif  // LOSSD_SERVER_QUEUED_STREAM_H_
