// The thread that moves the frames of every RunStream.
#ifndef LOSSD_SERVER_STREAM_SERVER_H_
#define LOSSD_SERVER_STREAM_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <thread>

#include "absl/time/time.h"
#include "server/loss_service.h"

namespace lossd {

class StreamServer {
 public:
  // `queue` is one of the server that has `service`, which must have been started. Both are borrowed but the queue. `spin`: how long the
  // thread looks for the next frame before it sleeps.
  StreamServer(LossService& service, std::unique_ptr<grpc::ServerCompletionQueue> queue,
               absl::Duration spin);
  // After the server's Shutdown, and after everything that answers calls: waits until every stream has ended.
  ~StreamServer();

 private:
  void Loop();

  LossService& service_;
  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  const absl::Duration spin_;
  std::thread thread_;
};

}  // namespace lossd

#endif  // LOSSD_SERVER_STREAM_SERVER_H_
