#include "server/buffer_service.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "server/caller.h"
#include "server/grpc_status.h"
#include "server/session_memory.h"

namespace lossd {
namespace {

// A copy on the dispatcher's thread, waited for by the thread that asks.
class CopyWork final : public Work {
 public:
  explicit CopyWork(std::function<absl::Status(Device&)> copy) : copy_(std::move(copy)) {}

  absl::Status CheckStillWanted() override { return absl::OkStatus(); }
  absl::Status Run(Backend& backend, bool*) override {
    const absl::Status copied = copy_(*backend.device);
    const absl::Status done = backend.device->Synchronize();
    return done.ok() ? copied : done;
  }
  void Settle(const absl::Status& status, bool) override { result_.set_value(status); }

  absl::Status Wait() { return result_.get_future().get(); }

 private:
  const std::function<absl::Status(Device&)> copy_;
  std::promise<absl::Status> result_;
};

absl::Status RunCopy(Dispatcher& dispatcher, const Session& session,
                     std::function<absl::Status(Device&)> copy) {
  auto work = std::make_shared<CopyWork>(std::move(copy));
  LOSSD_RETURN_IF_ERROR(dispatcher.Submit(session.id(), work));
  return work->Wait();
}

absl::Status CheckRange(uint64_t offset, uint64_t bytes, uint64_t size) {
  if (offset <= size && bytes <= size - offset) return absl::OkStatus();
  return FieldError("byte_offset",
                    absl::StrCat("such that the bytes lie inside the region of ", size, " bytes"),
                    absl::StrCat(offset, " with ", bytes, " bytes"));
}

// Before each chunk; renews the lease.
absl::Status CheckOpen(Session& session) {
  session.Touch(absl::Now());
  if (!session.closed()) return absl::OkStatus();
  return ReasonError(absl::StatusCode::kUnauthenticated, "STALE_SESSION", "the session has ended");
}

}  // namespace

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
  return ToGrpcStatus(result.status());
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
  return ToGrpcStatus(result.status());
}

grpc::Status BufferService::List(grpc::ServerContext* context, const v1::ListRegionsRequest*,
                                 v1::ListRegionsReply* reply) {
  const auto session = RequireSession(*context, sessions_);
  if (!session.ok()) return ToGrpcStatus(session.status());
  *reply = ListRegions(**session);
  return grpc::Status::OK;
}

grpc::Status BufferService::Upload(grpc::ServerContext* context,
                                   grpc::ServerReader<v1::UploadChunk>* reader,
                                   v1::UploadReply* reply) {
  return ToGrpcStatus(Receive(*context, *reader, *reply));
}

absl::Status BufferService::Receive(grpc::ServerContext& context,
                                    grpc::ServerReader<v1::UploadChunk>& reader,
                                    v1::UploadReply& reply) {
  LOSSD_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session,
                         RequireSession(context, sessions_));
  std::shared_ptr<const Mapping> mapping;
  uint64_t region = 0, offset = 0, bytes = 0;
  v1::UploadChunk chunk;
  while (reader.Read(&chunk)) {
    LOSSD_RETURN_IF_ERROR(CheckOpen(*session));
    if (mapping == nullptr) {
      region = chunk.region();
      LOSSD_ASSIGN_OR_RETURN(mapping, session->regions().Find(region));
      if (mapping->access != v1::READ_WRITE) {
        return absl::PermissionDeniedError(absl::StrCat("region: ", region, " is read-only"));
      }
    } else if (chunk.has_region() && chunk.region() != region) {
      return FieldError("region", absl::StrCat(region, " as in the first chunk, or absent"),
                        absl::StrCat(chunk.region()));
    }
    if (chunk.has_byte_offset()) offset = chunk.byte_offset();
    LOSSD_RETURN_IF_ERROR(CheckRange(offset, chunk.data().size(), mapping->bytes));
    LOSSD_RETURN_IF_ERROR(CopyIn(*session, *mapping, offset, chunk.data()));
    offset += chunk.data().size();
    bytes += chunk.data().size();
  }
  if (context.IsCancelled()) return absl::CancelledError("the upload was cut off");
  reply.set_bytes(bytes);
  return absl::OkStatus();
}

grpc::Status BufferService::Download(grpc::ServerContext* context,
                                     const v1::DownloadRequest* request,
                                     grpc::ServerWriter<v1::DownloadChunk>* writer) {
  return ToGrpcStatus(Send(*context, *request, *writer));
}

absl::Status BufferService::Send(grpc::ServerContext& context, const v1::DownloadRequest& request,
                                 grpc::ServerWriter<v1::DownloadChunk>& writer) {
  LOSSD_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session,
                         RequireSession(context, sessions_));
  LOSSD_ASSIGN_OR_RETURN(const std::shared_ptr<const Mapping> mapping,
                         session->regions().Find(request.region()));
  uint64_t offset = request.byte_offset();
  uint64_t left = request.bytes();
  LOSSD_RETURN_IF_ERROR(CheckRange(offset, left, mapping->bytes));
  v1::DownloadChunk chunk;
  while (left > 0) {
    LOSSD_RETURN_IF_ERROR(CheckOpen(*session));
    const uint64_t bytes = std::min(left, kChunkBytes);
    chunk.set_byte_offset(offset);
    chunk.mutable_data()->resize(bytes);
    LOSSD_RETURN_IF_ERROR(CopyOut(*session, *mapping, offset, chunk.mutable_data()));
    if (!writer.Write(chunk)) return absl::CancelledError("the client is gone");
    offset += bytes;
    left -= bytes;
  }
  return absl::OkStatus();
}

absl::Status BufferService::CopyIn(const Session& session, const Mapping& mapping, uint64_t offset,
                                   const std::string& data) {
  if (mapping.host != nullptr) {
    std::memcpy(mapping.host + offset, data.data(), data.size());
    return absl::OkStatus();
  }
  return RunCopy(dispatcher_, session, [&](Device& device) {
    return device.CopyIn(mapping.base + offset, data.data(), data.size());
  });
}

absl::Status BufferService::CopyOut(const Session& session, const Mapping& mapping, uint64_t offset,
                                    std::string* data) {
  if (mapping.host != nullptr) {
    std::memcpy(data->data(), mapping.host + offset, data->size());
    return absl::OkStatus();
  }
  return RunCopy(dispatcher_, session, [&](Device& device) {
    return device.CopyOut(data->data(), mapping.base + offset, data->size());
  });
}

}  // namespace lossd
