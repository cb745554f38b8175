// Losses.RunStream: many calls over one stream, answered in the order of their completion.
#ifndef LOSSD_SERVER_RUN_STREAM_H_
#define LOSSD_SERVER_RUN_STREAM_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "lossd/v1/service.pb.h"
#include "server/call.h"
#include "server/queued_stream.h"
#include "server/session_table.h"

namespace lossd {

class RunStream;

// The open streams, so that they can be ended when the server stops. Thread-safe.
class StreamSet {
 public:
  // Lets every stream answer what it has accepted, then ends it with `status`; also those that come later.
  void Close(const absl::Status& status);
  // Until the last stream is gone, those that wait for a call included: after the server's Shutdown.
  void WaitUntilEmpty();

 private:
  friend class RunStream;
  std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  std::set<RunStream*> streams_;  // that have a call
  int alive_ = 0;                 // all
  absl::Status closing_;
};

// Deletes itself when the stream is done. The queue's thread and the dispatcher call it; nothing in it waits.
class RunStream final : public QueuedStream {
 public:
  // A stream with so many unanswered calls is not read from: flow control then stops the client.
  static constexpr int kMaxInFlight = 256;

  // `accept_next` is called when this one has a call: the queue needs another to wait for the next.
  RunStream(const CallContext& context, const SessionTable& sessions, StreamSet& streams,
            std::function<void()> accept_next);

 private:
  friend class StreamSet;

  // Messages of one call. Kept for the next one: clearing a message keeps its memory.
  struct Frame {
    v1::StreamRequest request;
    v1::StreamReply reply;
    std::shared_ptr<Call> call;
  };

  ~RunStream() override;

  void OnAccepted() override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void BeginFrame(Frame* frame);
  void EndFrame(Frame* frame, const absl::Status& status);
  void CloseWith(const absl::Status& status);
  Frame* NewFrameLocked();
  // The frame to read into, if it is time to read; null otherwise.
  Frame* TakeReadLocked();
  // True for the one who must call Finish(*status): all is answered and nothing more comes.
  bool TakeFinishLocked(absl::Status* status);

  const CallContext& context_;
  const SessionTable& sessions_;
  StreamSet& streams_;
  const std::function<void()> accept_next_;
  std::shared_ptr<Session> session_;  // from OnAccepted on

  std::mutex mu_;
  // Guarded by mu_.
  std::set<Frame*> active_;      // read and not yet answered
  std::deque<Frame*> answered_;  // of those: waiting for the write; the first is being written
  std::vector<std::unique_ptr<Frame>> free_;
  Frame* next_ = nullptr;  // being read into
  bool beginning_ =
      false;  // a frame is between its read and its place in the queue: the next must not overtake it
  bool no_more_reads_ = false;
  bool broken_ = false;  // the client is gone: answers are dropped
  bool finished_ = false;
  absl::Status status_;  // what the stream ends with
};

}  // namespace lossd

#endif  // LOSSD_SERVER_RUN_STREAM_H_
