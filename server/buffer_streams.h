// Upload and Download: bytes of a session's memory in chunks, without a thread that waits for the client.
#ifndef LOSSD_SERVER_BUFFER_STREAMS_H_
#define LOSSD_SERVER_BUFFER_STREAMS_H_

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lossd/v1/service.pb.h"
#include "server/dispatcher.h"
#include "server/session.h"

namespace lossd {

// A stream that stands still while its client moves nothing.
class IdleStream {
 public:
  virtual ~IdleStream() = default;
  // Ends the stream if it has waited for its client since before `oldest`. Any thread.
  virtual void ExpireBefore(absl::Time oldest) = 0;
};

// The streams that may stand still. Thread-safe. A stream leaves the set before it is deleted.
class IdleStreams {
 public:
  void Add(IdleStream* stream);
  void Remove(IdleStream* stream);
  void ExpireBefore(absl::Time oldest);

 private:
  std::mutex mu_;
  std::set<IdleStream*> streams_;  // guarded by mu_
};

// What a stream needs. The session is an error if the caller has none: the stream then ends with it.
struct BufferStreamContext {
  Dispatcher& dispatcher;
  IdleStreams& idle;
};

// Both delete themselves when gRPC is done with them. What an expired upload ends with is DEADLINE_EXCEEDED with reason STREAM_TIMEOUT; a
// download that nobody reads is cut off, since no status can overtake the bytes before it.
grpc::ServerReadReactor<v1::UploadChunk>* StartUpload(
    const BufferStreamContext& context, absl::StatusOr<std::shared_ptr<Session>> session,
    grpc::CallbackServerContext* call, v1::UploadReply* reply);
grpc::ServerWriteReactor<v1::DownloadChunk>* StartDownload(
    const BufferStreamContext& context, absl::StatusOr<std::shared_ptr<Session>> session,
    grpc::CallbackServerContext* call, const v1::DownloadRequest& request);

}  // namespace lossd

#endif  // LOSSD_SERVER_BUFFER_STREAMS_H_
