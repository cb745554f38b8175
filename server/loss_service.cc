#include "server/loss_service.h"

#include <memory>
#include <utility>

#include "server/caller.h"
#include "server/explain.h"
#include "server/grpc_status.h"

namespace lossd {
namespace {

// One unary call. Deletes itself when gRPC is done with it.
class RunReactor final : public grpc::ServerUnaryReactor {
 public:
  RunReactor(const CallContext& context, std::shared_ptr<Session> session,
             const v1::RunRequest* request, v1::RunReply* reply, absl::Time deadline)
      : call_(std::make_shared<Call>(
            context, std::move(session), request, reply, deadline,
            [this](const absl::Status& status) { Finish(ToGrpcStatus(status)); })) {}

  void Start() {
    // The answer may come, and this object go, before Call::Start returns.
    const std::shared_ptr<Call> call = call_;
    call->Start();
  }

  void OnCancel() override { call_->Cancel(); }
  void OnDone() override { delete this; }

 private:
  const std::shared_ptr<Call> call_;
};

}  // namespace

grpc::ServerUnaryReactor* LossService::Run(grpc::CallbackServerContext* context,
                                           const v1::RunRequest* request, v1::RunReply* reply) {
  auto session = FindSession(*context, sessions_);
  if (!session.ok()) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(session.status()));
    return reactor;
  }
  auto* reactor =
      new RunReactor(context_, *std::move(session), request, reply, DeadlineOf(*context));
  reactor->Start();
  return reactor;
}

grpc::ServerUnaryReactor* LossService::Explain(grpc::CallbackServerContext* context,
                                               const v1::ExplainRequest* request,
                                               v1::ExplainReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto session = FindSession(*context, sessions_);
  absl::Status status = session.status();
  if (status.ok() && *session == nullptr && context_.needs_session) status = NeedsSession();
  if (status.ok()) status = ExplainCall(*context_.registry, device_, *request, reply);
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

void LossService::AcceptStream(grpc::ServerCompletionQueue* queue) {
  auto* stream =
      new lossd::RunStream(context_, sessions_, streams_, [this, queue] { AcceptStream(queue); });
  stream->Accept(*this, queue);
}

grpc::ServerUnaryReactor* LossService::ListOps(grpc::CallbackServerContext* context,
                                               const v1::ListOpsRequest*, v1::ListOpsReply* reply) {
  context_.registry->List(reply);
  *reply->mutable_server() = IsUnixCaller(*context) ? infos_.unix_socket : infos_.tcp;
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace lossd
