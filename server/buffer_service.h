// The Buffers service: memory of a session over gRPC. Descriptors cannot travel here; handles only by the Unix socket.
#ifndef LOSSD_SERVER_BUFFER_SERVICE_H_
#define LOSSD_SERVER_BUFFER_SERVICE_H_

#include "absl/time/time.h"
#include "kernels/core/device.h"
#include "lossd/v1/service.grpc.pb.h"
#include "server/buffer_streams.h"
#include "server/dispatcher.h"
#include "server/session_table.h"

namespace lossd {

// Every method needs a session. The short ones may wait for the driver, and gRPC gives each a thread; streams hold none.
class BufferService final : public v1::Buffers::WithCallbackMethod_Upload<
                                v1::Buffers::WithCallbackMethod_Download<v1::Buffers::Service>> {
 public:
  // All is borrowed. A stream whose client moves nothing for `stream_timeout` is ended.
  BufferService(SessionTable& sessions, Device& device, Dispatcher& dispatcher,
                absl::Duration stream_timeout)
      : sessions_(sessions),
        device_(device),
        dispatcher_(dispatcher),
        stream_timeout_(stream_timeout) {}

  // Errors: PERMISSION_DENIED on TCP.
  grpc::Status Register(grpc::ServerContext* context, const v1::RegisterRegionRequest* request,
                        v1::RegisterRegionReply* reply) override;
  grpc::Status Unregister(grpc::ServerContext* context, const v1::UnregisterRegionRequest* request,
                          v1::UnregisterRegionReply* reply) override;
  // On TCP the reply has no handle: the memory can be used by Upload and Download only.
  grpc::Status Allocate(grpc::ServerContext* context, const v1::AllocateRegionRequest* request,
                        v1::AllocateRegionReply* reply) override;
  grpc::Status List(grpc::ServerContext* context, const v1::ListRegionsRequest* request,
                    v1::ListRegionsReply* reply) override;
  // Chunks without an offset follow the one before. Bytes of chunks before a wrong one have been written.
  grpc::ServerReadReactor<v1::UploadChunk>* Upload(grpc::CallbackServerContext* context,
                                                   v1::UploadReply* reply) override;
  grpc::ServerWriteReactor<v1::DownloadChunk>* Download(
      grpc::CallbackServerContext* context, const v1::DownloadRequest* request) override;

  // To be called about every second.
  void Tick();

 private:
  // The outcome of a request that used the device.
  grpc::Status Answer(const absl::Status& status);

  SessionTable& sessions_;
  Device& device_;
  Dispatcher& dispatcher_;
  const absl::Duration stream_timeout_;
  IdleStreams idle_;
};

}  // namespace lossd

#endif  // LOSSD_SERVER_BUFFER_SERVICE_H_
