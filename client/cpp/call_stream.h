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
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "lossd/v1/service.grpc.pb.h"

namespace lossd::client {

// Thread-safe. One thread of its own moves the frames; a caller's write starts in the caller's thread and never blocks, so that a
// server that stops reading costs no more than the caller's deadline.
class CallStream {
 public:
  struct Outcome {
    // Whether the server answered this very call. If not, `status` says why, and the call may or may not have run.
    bool answered = false;
    absl::Status status;
    v1::RunReply reply;
  };

  // Starts the stream; does not wait for the server.
  CallStream(std::unique_ptr<v1::Losses::Stub> stub, const std::string& token);
  CallStream(const CallStream&) = delete;
  CallStream& operator=(const CallStream&) = delete;
  // Ends the stream at once. No call may be under way.
  ~CallStream();

  // Errors beside the server's: UNAVAILABLE or what the stream ended with, DEADLINE_EXCEEDED.
  Outcome Call(const v1::RunRequest& request, absl::Time deadline);

  // No further call can succeed.
  bool ended() const;

 private:
  struct Pending {
    std::condition_variable arrived;
    bool done = false;
    absl::Time deadline;
    Outcome outcome;
  };

  void Loop();
  void OnStart(bool ok);
  void OnRead(bool ok);
  void OnWrite(bool ok);
  void OnFinish();
  // Starts the next write if none is under way.
  void WriteNextLocked();

  const std::unique_ptr<v1::Losses::Stub> stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::StreamRequest, v1::StreamReply>> stream_;
  v1::StreamReply incoming_;    // of the thread
  grpc::Status finish_status_;  // of the thread

  mutable std::mutex mu_;
  // Guarded by mu_.
  std::map<uint64_t, Pending*> pending_;
  std::deque<v1::StreamRequest> unsent_;
  uint64_t next_tag_ = 1;
  bool started_ = false;
  bool writing_ = false;
  bool ended_ = false;
  absl::Status end_status_;

  std::thread thread_;
};

}  // namespace lossd::client

#endif  // LOSSD_CLIENT_CPP_CALL_STREAM_H_
