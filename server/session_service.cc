#include "server/session_service.h"

#include "kernels/core/error.h"
#include "server/caller.h"
#include "server/grpc_status.h"
#include "server/session_memory.h"

namespace lossd {

grpc::Status SessionService::Open(grpc::ServerContext* context,
                                  const v1::OpenSessionRequest* request,
                                  v1::OpenSessionReply* reply) {
  if (IsUnixCaller(*context)) {
    return ToGrpcStatus(
        ReasonError(absl::StatusCode::kFailedPrecondition, "USE_SESSION_SOCKET",
                    "on the Unix socket a session is opened on the path with .session added"));
  }
  if (const absl::Status status = CheckOpenRequest(*request); !status.ok())
    return ToGrpcStatus(status);
  const auto session = sessions_.Open(Session::Kind::kLease, request->client_name());
  if (!session.ok()) return ToGrpcStatus(session.status());
  log_.Info("session_open", {{"session", (*session)->id()},
                             {"client", request->client_name()},
                             {"peer", context->peer()}});
  reply->set_session((*session)->id());
  reply->set_token((*session)->token());
  *reply->mutable_server() = infos_.tcp;
  return grpc::Status::OK;
}

grpc::Status SessionService::Close(grpc::ServerContext* context, const v1::SessionHandle*,
                                   v1::CloseSessionReply*) {
  const auto session = RequireSession(*context, sessions_);
  if (!session.ok()) return ToGrpcStatus(session.status());
  sessions_.End((*session)->id());
  return grpc::Status::OK;
}

}  // namespace lossd
