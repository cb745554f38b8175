// The Buffers service: memory of a session over gRPC. Descriptors cannot travel here; handles only by the Unix socket.
#ifndef LOSSD_SERVER_BUFFER_SERVICE_H_
#define LOSSD_SERVER_BUFFER_SERVICE_H_

#include <cstdint>

#include "kernels/core/device.h"
#include "lossd/v1/service.grpc.pb.h"
#include "server/dispatcher.h"
#include "server/session_table.h"

namespace lossd {

// Every method needs a session. Methods may wait: gRPC gives each a thread.
class BufferService final : public v1::Buffers::Service {
 public:
  // Bytes of a chunk of Download.
  static constexpr uint64_t kChunkBytes = 1 << 20;

  // All is borrowed.
  BufferService(SessionTable& sessions, Device& device, Dispatcher& dispatcher)
      : sessions_(sessions), device_(device), dispatcher_(dispatcher) {}

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
  grpc::Status Upload(grpc::ServerContext* context, grpc::ServerReader<v1::UploadChunk>* reader,
                      v1::UploadReply* reply) override;
  grpc::Status Download(grpc::ServerContext* context, const v1::DownloadRequest* request,
                        grpc::ServerWriter<v1::DownloadChunk>* writer) override;

 private:
  absl::Status Receive(grpc::ServerContext& context, grpc::ServerReader<v1::UploadChunk>& reader,
                       v1::UploadReply& reply);
  absl::Status Send(grpc::ServerContext& context, const v1::DownloadRequest& request,
                    grpc::ServerWriter<v1::DownloadChunk>& writer);
  // Copies between the host and a mapping; device memory by way of the dispatcher. The range has been checked.
  absl::Status CopyIn(const Session& session, const Mapping& mapping, uint64_t offset,
                      const std::string& data);
  absl::Status CopyOut(const Session& session, const Mapping& mapping, uint64_t offset,
                       std::string* data);

  SessionTable& sessions_;
  Device& device_;
  Dispatcher& dispatcher_;
};

}  // namespace lossd

#endif  // LOSSD_SERVER_BUFFER_SERVICE_H_
