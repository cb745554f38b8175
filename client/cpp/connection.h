// One session at one server: how requests, session messages and bytes get there, over a Unix socket or TCP.
#ifndef LOSSD_CLIENT_CPP_CONNECTION_H_
#define LOSSD_CLIENT_CPP_CONNECTION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/cpp/address.h"
#include "client/cpp/call_stream.h"
#include "client/cpp/session_socket.h"
#include "lossd/v1/service.grpc.pb.h"

namespace lossd::client {

// Thread-safe. Never comes back once it is lost: open another.
class Connection {
 public:
  // Opens a session. Errors: UNAVAILABLE if nothing listens there, PERMISSION_DENIED, DEADLINE_EXCEEDED.
  static absl::StatusOr<std::shared_ptr<Connection>> Open(const Address& address,
                                                          const std::string& client_name,
                                                          std::optional<absl::Duration> spin,
                                                          absl::Time deadline);
  ~Connection();

  const v1::ServerInfo& server() const { return server_; }
  bool is_unix() const { return socket_ != nullptr; }
  // The session has ended: the server is gone, has restarted, or has dropped it.
  bool lost() const;

  // Runs a request: over the stream on a Unix socket, as a unary call on TCP. A stream that breaks while the session lives is replaced and
  // the request sent once more, which its request_id (or its idempotence) makes harmless.
  // *stale is set if the server does not know the session, and so has not run it.
  absl::StatusOr<v1::RunReply> Run(const v1::RunRequest& request, absl::Time deadline, bool* stale);

  // A message of the session protocol: over the session socket, or as the RPC that does the same.
  absl::StatusOr<v1::SessionReply> Control(const v1::SessionRequest& request,
                                           absl::Span<const int> fds,
                                           std::vector<UniqueFd>* reply_fds, absl::Time deadline);
  absl::StatusOr<v1::ListOpsReply> ListOps(absl::Time deadline);
  absl::StatusOr<v1::ExplainReply> Explain(const v1::ExplainRequest& request, absl::Time deadline);
  absl::Status Upload(uint64_t region, uint64_t byte_offset, absl::string_view bytes,
                      absl::Time deadline);
  absl::Status Download(uint64_t region, uint64_t byte_offset, std::byte* to, uint64_t bytes,
                        absl::Time deadline);

 private:
  explicit Connection(const Address& address) : address_(address) {}

  absl::Status OpenSession(const v1::OpenSessionRequest& request, absl::Time deadline);
  std::shared_ptr<CallStream> Stream();
  void Prepare(grpc::ClientContext* context, absl::Time deadline) const;
  // The text of an error that the transport made, and what it says of the session.
  absl::Status Judge(const grpc::Status& status);
  absl::Status Lost(absl::string_view why);
  absl::StatusOr<v1::RunReply> RunOnStream(const v1::RunRequest& request, absl::Time deadline,
                                           bool* stale);
  absl::StatusOr<v1::RunReply> RunUnary(const v1::RunRequest& request, absl::Time deadline,
                                        bool* stale);

  const Address address_;
  absl::Duration spin_;
  std::unique_ptr<SessionSocket> socket_;  // null on TCP
  std::string token_;
  v1::ServerInfo server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Losses::Stub> losses_;
  std::unique_ptr<v1::Buffers::Stub> buffers_;
  std::atomic<bool> lost_{false};

  std::mutex mu_;
  std::shared_ptr<CallStream> stream_;  // guarded by mu_
};

}  // namespace lossd::client

#endif  // LOSSD_CLIENT_CPP_CONNECTION_H_
