// The Losses service: thin, and nothing in it waits.
#ifndef LOSSD_SERVER_LOSS_SERVICE_H_
#define LOSSD_SERVER_LOSS_SERVICE_H_

#include "kernels/core/planned_device.h"
#include "kernels/core/registry.h"
#include "lossd/v1/service.grpc.pb.h"
#include "server/call.h"
#include "server/run_stream.h"
#include "server/session_table.h"

namespace lossd {

// What ListOps and Open say of the server, for each listener.
struct ServerInfos {
  v1::ServerInfo unix_socket;
  v1::ServerInfo tcp;
};

// RunStream is served by a StreamServer, the rest by gRPC's own threads.
class LossService final
    : public v1::Losses::WithCallbackMethod_Run<
          v1::Losses::WithCallbackMethod_ListOps<v1::Losses::WithCallbackMethod_Explain<
              v1::Losses::WithAsyncMethod_RunStream<v1::Losses::Service>>>> {
 public:
  // All is borrowed. `device`: what plans are for unless the caller says otherwise.
  LossService(const CallContext& context, const SessionTable& sessions, const ServerInfos& infos,
              const DeviceDescription& device)
      : context_(context), sessions_(sessions), infos_(infos), device_(device) {}

  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext* context, const v1::RunRequest* request,
                                v1::RunReply* reply) override;
  grpc::ServerUnaryReactor* ListOps(grpc::CallbackServerContext* context,
                                    const v1::ListOpsRequest* request,
                                    v1::ListOpsReply* reply) override;
  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const v1::ExplainRequest* request,
                                    v1::ExplainReply* reply) override;

  // Waits on the queue for a RunStream, and after each for another.
  void AcceptStream(grpc::ServerCompletionQueue* queue);
  StreamSet& streams() { return streams_; }

 private:
  const CallContext& context_;
  const SessionTable& sessions_;
  const ServerInfos& infos_;
  const DeviceDescription device_;
  StreamSet streams_;
};

}  // namespace lossd

#endif  // LOSSD_SERVER_LOSS_SERVICE_H_
