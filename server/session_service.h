// The Sessions service: sessions of TCP clients, which have no session socket.
#ifndef LOSSD_SERVER_SESSION_SERVICE_H_
#define LOSSD_SERVER_SESSION_SERVICE_H_

#include "lossd/v1/service.grpc.pb.h"
#include "server/log.h"
#include "server/loss_service.h"
#include "server/session_table.h"

namespace lossd {

class SessionService final : public v1::Sessions::Service {
 public:
  // All is borrowed.
  SessionService(SessionTable& sessions, const ServerInfos& infos, const Logger& log)
      : sessions_(sessions), infos_(infos), log_(log) {}

  // Errors: FAILED_PRECONDITION with reason USE_SESSION_SOCKET on the Unix socket, where the session socket tells a client's end.
  grpc::Status Open(grpc::ServerContext* context, const v1::OpenSessionRequest* request,
                    v1::OpenSessionReply* reply) override;
  grpc::Status Close(grpc::ServerContext* context, const v1::SessionHandle* request,
                     v1::CloseSessionReply* reply) override;

 private:
  SessionTable& sessions_;
  const ServerInfos& infos_;
  const Logger& log_;
};

}  // namespace lossd

#endif  // LOSSD_SERVER_SESSION_SERVICE_H_
