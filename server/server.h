// lossd as an object: start, serve, drain, stop.
#ifndef LOSSD_SERVER_SERVER_H_
#define LOSSD_SERVER_SERVER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "kernels/backend.h"
#include "kernels/core/registry.h"
#include "server/buffer_service.h"
#include "server/call.h"
#include "server/dispatcher.h"
#include "server/listener.h"
#include "server/log.h"
#include "server/loss_service.h"
#include "server/options.h"
#include "server/session_service.h"
#include "server/session_socket.h"
#include "server/session_table.h"
#include "server/socket_lock.h"
#include "server/stream_server.h"

namespace grpc {
class Server;
}

namespace lossd {

// The environment of a running server. Thread-compatible; its parts have their own threads.
class Server {
 public:
  // Listens and serves when it returns. `on_lost` is called on another thread when the device has failed for good; health is
  // NOT_SERVING by then and every queued call has failed. `log` is borrowed. Without `backend`, the one that the options name.
  // Errors: those of the backend and the registry, FAILED_PRECONDITION (ADDRESS_IN_USE), UNAVAILABLE (an address cannot be bound).
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const Options& options, const Logger& log, std::function<void()> on_lost,
      std::unique_ptr<BackendHolder> backend = nullptr);
  ~Server();

  // NOT_SERVING at once, new work refused with UNAVAILABLE (DRAINING); waits for accepted calls until `timeout`, then stops.
  // False if a call still runs then: what was queued has been refused, and only Abandon may follow.
  bool Drain(absl::Duration timeout);
  // The end where a call or the device hangs: gives answers a moment to leave and removes the sockets. Only _exit may follow.
  void Abandon();
  // To be called about every second: ends sessions whose lease ran out and streams that stand still.
  void Tick();

  bool lost() const { return lost_.load(); }
  // Where it listens, with the port that the system chose.
  const std::vector<ListenAddress>& addresses() const { return options_.listen; }

 private:
  Server(const Options& options, const Logger& log, std::function<void()> on_lost);
  absl::Status Init();
  absl::Status StartSessionSocket(const std::string& path);
  absl::Status StartGrpc();
  void FillInfos();
  void SetHealth(bool serving);
  // Before the destruction of what calls and handlers use.
  void Stop(absl::Duration grace);

  Options options_;
  const Logger& log_;
  const std::function<void()> on_lost_;
  std::atomic<bool> lost_{false};

  // In the order of their dependence.
  absl::optional<SocketLock> lock_;
  std::unique_ptr<BackendHolder> backend_;
  absl::optional<Registry> registry_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::unique_ptr<SessionTable> sessions_;
  CallContext context_;
  ServerInfos infos_;
  std::unique_ptr<LossService> losses_;
  std::unique_ptr<SessionService> session_service_;
  std::unique_ptr<BufferService> buffers_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<StreamServer> stream_server_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<SessionSocket> session_socket_;
};

}  // namespace lossd

#endif  // LOSSD_SERVER_SERVER_H_
