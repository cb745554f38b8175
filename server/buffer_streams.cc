#include "server/buffer_streams.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "server/grpc_status.h"

namespace lossd {
namespace {

// Of a download's messages.
constexpr uint64_t kChunkBytes = 1 << 20;

// A copy on the dispatcher's thread; `done` is called there.
class CopyWork final : public Work {
 public:
  CopyWork(std::function<absl::Status(Device&)> copy, std::function<void(const absl::Status&)> done)
      : copy_(std::move(copy)), done_(std::move(done)) {}

  absl::Status CheckStillWanted() override { return absl::OkStatus(); }
  absl::Status Run(Backend& backend, bool*) override {
    const absl::Status copied = copy_(*backend.device);
    const absl::Status done = backend.device->Synchronize();
    return done.ok() ? copied : done;
  }
  void Settle(const absl::Status& status, bool) override { done_(status); }

 private:
  const std::function<absl::Status(Device&)> copy_;
  const std::function<void(const absl::Status&)> done_;
};

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

class UploadReactor final : public grpc::ServerReadReactor<v1::UploadChunk>, public IdleStream {
 public:
  UploadReactor(const BufferStreamContext& context, std::shared_ptr<Session> session,
                grpc::CallbackServerContext* call, v1::UploadReply* reply)
      : context_(context), session_(std::move(session)), call_(call), reply_(reply) {
    context_.idle.Add(this);
    ReadNext();
  }

  void OnReadDone(bool ok) override {
    {
      std::lock_guard<std::mutex> lock(mu_);
      waiting_ = false;
      if (ended_) return;
    }
    if (!ok) {
      reply_->set_bytes(bytes_);
      return End(call_->IsCancelled() ? absl::CancelledError("the upload was cut off")
                                      : absl::OkStatus());
    }
    if (const absl::Status status = Place(); !status.ok()) return End(status);
    if (mapping_->host != nullptr) {
      std::memcpy(mapping_->host + offset_, chunk_.data().data(), chunk_.data().size());
      return Copied(absl::OkStatus());
    }
    const absl::Status queued = context_.dispatcher.Submit(
        session_->id(), std::make_shared<CopyWork>(
                            [this](Device& device) {
                              return device.CopyIn(mapping_->base + offset_, chunk_.data().data(),
                                                   chunk_.data().size());
                            },
                            [this](const absl::Status& status) { Copied(status); }));
    if (!queued.ok()) End(queued);
  }
  void OnDone() override {
    context_.idle.Remove(this);
    delete this;
  }

  void ExpireBefore(absl::Time oldest) override {
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (!waiting_ || ended_ || since_ >= oldest) return;
      ended_ = true;
    }
    // The read is given up: Finish may be called beside it.
    Finish(
        ToGrpcStatus(ReasonError(absl::StatusCode::kDeadlineExceeded, "STREAM_TIMEOUT",
                                 "no chunk came for too long; what came before has been written")));
  }

 private:
  ~UploadReactor() override = default;

  void ReadNext() {
    std::lock_guard<std::mutex> lock(mu_);
    if (ended_) return;
    waiting_ = true;
    since_ = absl::Now();
    StartRead(&chunk_);
  }

  // Where the chunk goes.
  absl::Status Place() {
    LOSSD_RETURN_IF_ERROR(CheckOpen(*session_));
    if (mapping_ == nullptr) {
      region_ = chunk_.region();
      LOSSD_ASSIGN_OR_RETURN(mapping_, session_->regions().Find(region_));
      if (mapping_->access != v1::READ_WRITE) {
        return absl::PermissionDeniedError(absl::StrCat("region: ", region_, " is read-only"));
      }
    } else if (chunk_.has_region() && chunk_.region() != region_) {
      return FieldError("region", absl::StrCat(region_, " as in the first chunk, or absent"),
                        absl::StrCat(chunk_.region()));
    }
    if (chunk_.has_byte_offset()) offset_ = chunk_.byte_offset();
    return CheckRange(offset_, chunk_.data().size(), mapping_->bytes);
  }

  void Copied(const absl::Status& status) {
    if (!status.ok()) return End(status);
    offset_ += chunk_.data().size();
    bytes_ += chunk_.data().size();
    ReadNext();
  }

  void End(const absl::Status& status) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (std::exchange(ended_, true)) return;
    }
    Finish(ToGrpcStatus(status));
  }

  const BufferStreamContext context_;
  const std::shared_ptr<Session> session_;
  grpc::CallbackServerContext* const call_;
  v1::UploadReply* const reply_;
  v1::UploadChunk chunk_;
  std::shared_ptr<const Mapping> mapping_;
  uint64_t region_ = 0, offset_ = 0, bytes_ = 0;

  std::mutex mu_;
  // Guarded by mu_.
  bool waiting_ = false;
  bool ended_ = false;
  absl::Time since_;
};

class DownloadReactor final : public grpc::ServerWriteReactor<v1::DownloadChunk>,
                              public IdleStream {
 public:
  DownloadReactor(const BufferStreamContext& context, std::shared_ptr<Session> session,
                  grpc::CallbackServerContext* call, const v1::DownloadRequest& request)
      : context_(context),
        session_(std::move(session)),
        call_(call),
        offset_(request.byte_offset()),
        left_(request.bytes()) {
    context_.idle.Add(this);
    absl::Status status;
    if (auto found = session_->regions().Find(request.region()); found.ok()) {
      mapping_ = *std::move(found);
      status = CheckRange(offset_, left_, mapping_->bytes);
    } else {
      status = found.status();
    }
    if (status.ok()) {
      SendNext();
    } else {
      Finish(ToGrpcStatus(status));
    }
  }

  void OnWriteDone(bool ok) override {
    {
      std::lock_guard<std::mutex> lock(mu_);
      waiting_ = false;
    }
    if (!ok) return Finish(ToGrpcStatus(absl::CancelledError("the client is gone")));
    offset_ += chunk_.data().size();
    left_ -= chunk_.data().size();
    SendNext();
  }
  void OnDone() override {
    context_.idle.Remove(this);
    delete this;
  }

  void ExpireBefore(absl::Time oldest) override {
    std::lock_guard<std::mutex> lock(mu_);
    if (waiting_ && since_ < oldest) call_->TryCancel();  // the write then fails
  }

 private:
  ~DownloadReactor() override = default;

  void SendNext() {
    if (left_ == 0) return Finish(grpc::Status::OK);
    if (const absl::Status status = CheckOpen(*session_); !status.ok()) {
      return Finish(ToGrpcStatus(status));
    }
    chunk_.set_byte_offset(offset_);
    chunk_.mutable_data()->resize(std::min(left_, kChunkBytes));
    if (mapping_->host != nullptr) {
      std::memcpy(chunk_.mutable_data()->data(), mapping_->host + offset_, chunk_.data().size());
      return Copied(absl::OkStatus());
    }
    const absl::Status queued = context_.dispatcher.Submit(
        session_->id(), std::make_shared<CopyWork>(
                            [this](Device& device) {
                              return device.CopyOut(chunk_.mutable_data()->data(),
                                                    mapping_->base + offset_, chunk_.data().size());
                            },
                            [this](const absl::Status& status) { Copied(status); }));
    if (!queued.ok()) Finish(ToGrpcStatus(queued));
  }

  void Copied(const absl::Status& status) {
    if (!status.ok()) return Finish(ToGrpcStatus(status));
    std::lock_guard<std::mutex> lock(mu_);
    waiting_ = true;
    since_ = absl::Now();
    StartWrite(&chunk_);
  }

  const BufferStreamContext context_;
  const std::shared_ptr<Session> session_;
  grpc::CallbackServerContext* const call_;
  std::shared_ptr<const Mapping> mapping_;
  uint64_t offset_;
  uint64_t left_;
  v1::DownloadChunk chunk_;

  std::mutex mu_;
  // Guarded by mu_.
  bool waiting_ = false;
  absl::Time since_;
};

class FailedUpload final : public grpc::ServerReadReactor<v1::UploadChunk> {
 public:
  explicit FailedUpload(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

class FailedDownload final : public grpc::ServerWriteReactor<v1::DownloadChunk> {
 public:
  explicit FailedDownload(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

void IdleStreams::Add(IdleStream* stream) {
  std::lock_guard<std::mutex> lock(mu_);
  streams_.insert(stream);
}

void IdleStreams::Remove(IdleStream* stream) {
  std::lock_guard<std::mutex> lock(mu_);
  streams_.erase(stream);
}

void IdleStreams::ExpireBefore(absl::Time oldest) {
  std::lock_guard<std::mutex> lock(mu_);
  for (IdleStream* stream : streams_) stream->ExpireBefore(oldest);
}

grpc::ServerReadReactor<v1::UploadChunk>* StartUpload(
    const BufferStreamContext& context, absl::StatusOr<std::shared_ptr<Session>> session,
    grpc::CallbackServerContext* call, v1::UploadReply* reply) {
  if (!session.ok()) return new FailedUpload(session.status());
  return new UploadReactor(context, *std::move(session), call, reply);
}

grpc::ServerWriteReactor<v1::DownloadChunk>* StartDownload(
    const BufferStreamContext& context, absl::StatusOr<std::shared_ptr<Session>> session,
    grpc::CallbackServerContext* call, const v1::DownloadRequest& request) {
  if (!session.ok()) return new FailedDownload(session.status());
  return new DownloadReactor(context, *std::move(session), call, request);
}

}  // namespace lossd
