// Calls over one RunStream: many threads write, replies find their caller by tag.
#ifndef LOSSD_CLIENT_CPP_CALL_STREAM_H_
#define LOSSD_CLIENT_CPP_CALL_STREAM_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "lossd/v1/service.grpc.pb.h"

namespace lossd::client {

// Thread-safe, without a thread of its own: of the callers that wait for a reply one polls for all, so that a lone caller is woken by its
// reply and by nothing else. A write starts in the caller's thread and never blocks, so that a server that stops reading costs no more
// than the caller's deadline.
class CallStream {
 public:
  struct Outcome {
    // Whether the server answered this very call. If not, `status` says why, and the call may or may not have run.
    bool answered = false;
    absl::Status status;
    v1::RunReply reply;
  };

  // Starts the stream; does not wait for the server. `spin`: how long a caller looks for its reply before it sleeps.
  CallStream(std::unique_ptr<v1::Losses::Stub> stub, const std::string& token, absl::Duration spin);
  CallStream(const CallStream&) = delete;
  CallStream& operator=(const CallStream&) = delete;
  // Ends the stream at once. No call may be under way.
  ~CallStream();

  // Errors beside the server's: UNAVAILABLE or what the stream ended with, DEADLINE_EXCEEDED.
  Outcome Call(const v1::RunRequest& request, absl::Time deadline);

  // No further call can succeed.
  bool ended();

 private:
  struct Pending {
    std::condition_variable changed;
    bool done = false;
    bool polls = false;  // this caller is the one that polls
    absl::Time deadline;
    Outcome outcome;
  };

  // Until the call is done (true) or its deadline has passed.
  bool Wait(Pending& call, std::unique_lock<std::mutex>& lock);
  void Poll(Pending& call, std::unique_lock<std::mutex>& lock);
  // Handles what has happened without waiting, unless somebody polls.
  void PollOnce(std::unique_lock<std::mutex>& lock);
  // The end of a caller's polling: another one goes on. `leaver` may be null.
  void PassOnLocked(const Pending* leaver);
  void HandleLocked(void* tag, bool ok);
  void OnStartLocked(bool ok);
  void OnReadLocked(bool ok);
  void OnFinishLocked();
  // Starts the next write if none is under way.
  void WriteNextLocked();

  const std::unique_ptr<v1::Losses::Stub> stub_;
  const absl::Duration spin_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::StreamRequest, v1::StreamReply>> stream_;

  std::mutex mu_;
  // Guarded by mu_.
  bool polling_ = false;  // somebody polls, without the lock, or is about to
  v1::StreamReply incoming_;
  grpc::Status finish_status_;
  std::map<uint64_t, Pending*> pending_;
  std::deque<v1::StreamRequest> unsent_;
  uint64_t next_tag_ = 1;
  bool started_ = false;
  bool writing_ = false;
  bool ended_ = false;
  absl::Status end_status_;
};

}  // namespace lossd::client

#endif  // LOSSD_CLIENT_CPP_CALL_STREAM_H_
