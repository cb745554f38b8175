#include "server/buffer_service.h"

#include <utility>

#include "absl/time/clock.h"
#include "server/caller.h"
#include "server/grpc_status.h"
#include "server/session_memory.h"

namespace lossd {

grpc::Status BufferService::Answer(const absl::Status& status) {
  if (IsDeviceLost(status)) dispatcher_.ReportLost(status);
  return ToGrpcStatus(status);
}

grpc::Status BufferService::Register(grpc::ServerContext* context,
                                     const v1::RegisterRegionRequest* request,
                                     v1::RegisterRegionReply* reply) {
  if (!IsUnixCaller(*context)) {
    return ToGrpcStatus(
        absl::PermissionDeniedError("memory handles are accepted on the Unix socket only"));
  }
  const auto session = RequireSession(*context, sessions_);
  if (!session.ok()) return ToGrpcStatus(session.status());
  auto result = RegisterRegion(device_, **session, *request, UniqueFd());
  if (result.ok()) *reply = *std::move(result);
  return Answer(result.status());
}

grpc::Status BufferService::Unregister(grpc::ServerContext* context,
                                       const v1::UnregisterRegionRequest* request,
                                       v1::UnregisterRegionReply*) {
  const auto session = RequireSession(*context, sessions_);
  if (!session.ok()) return ToGrpcStatus(session.status());
  return ToGrpcStatus(UnregisterRegion(**session, *request).status());
}

grpc::Status BufferService::Allocate(grpc::ServerContext* context,
                                     const v1::AllocateRegionRequest* request,
                                     v1::AllocateRegionReply* reply) {
  const auto session = RequireSession(*context, sessions_);
  if (!session.ok()) return ToGrpcStatus(session.status());
  auto result = AllocateRegion(device_, **session, *request, nullptr);
  if (result.ok()) *reply = *std::move(result);
  if (!IsUnixCaller(*context)) reply->clear_cuda_ipc();
  return Answer(result.status());
}

grpc::Status BufferService::List(grpc::ServerContext* context, const v1::ListRegionsRequest*,
                                 v1::ListRegionsReply* reply) {
  const auto session = RequireSession(*context, sessions_);
  if (!session.ok()) return ToGrpcStatus(session.status());
  *reply = ListRegions(**session);
  return grpc::Status::OK;
}

grpc::ServerReadReactor<v1::UploadChunk>* BufferService::Upload(
    grpc::CallbackServerContext* context, v1::UploadReply* reply) {
  return StartUpload({dispatcher_, idle_}, RequireSession(*context, sessions_), context, reply);
}

grpc::ServerWriteReactor<v1::DownloadChunk>* BufferService::Download(
    grpc::CallbackServerContext* context, const v1::DownloadRequest* request) {
  return StartDownload({dispatcher_, idle_}, RequireSession(*context, sessions_), context,
                       *request);
}

void BufferService::Tick() { idle_.ExpireBefore(absl::Now() - stream_timeout_); }

}  // namespace lossd
