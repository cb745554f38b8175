// The C++ client of lossd: any operation message in, its reply or a status out.
//
//   auto client = lossd::Client::Connect({.address = "unix:/run/lossd/lossd.sock"});
//   auto hidden = (*client)->CreateBuffer(bytes);              // memory that both processes see
//   lossd::v1::LinearCrossEntropy op;
//   *op.mutable_linear()->mutable_hidden() = (*hidden)->Tensor(lossd::v1::F32, {n, h});
//   auto reply = (*client)->Run(op);                           // absl::StatusOr<lossd::v1::OpReply>
//
// Errors carry lossd.v1.ErrorDetail (kernels/core/error.h is not needed: see client/cpp/status.h).
#ifndef LOSSD_CLIENT_CPP_CLIENT_H_
#define LOSSD_CLIENT_CPP_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"
#include "lossd/v1/service.pb.h"

namespace lossd {

struct ClientOptions {
  // "unix:/path/x.sock", or "host:port" of a loopback TCP address.
  std::string address;
  // Shown in the server's lists and logs.
  std::string name = "lossd-client";
  absl::Duration connect_timeout = absl::Seconds(10);
  // Deadline of a call that gives none.
  absl::Duration call_timeout = absl::Minutes(10);
  // How long a caller looks for its reply before it sleeps: short calls end sooner, at the price of a core for so long. If not given:
  // 300 us with a server on a GPU, 0 with one that needs the cores itself.
  std::optional<absl::Duration> spin;
};

struct CallOptions {
  bool batch_invariant = false;
  uint64_t workspace_limit = 0;                   // bytes, 0 = all
  std::vector<std::string> donate;                // names of inputs that outputs may overwrite
  absl::Duration timeout = absl::ZeroDuration();  // 0 = ClientOptions::call_timeout
};

class Client;

// Memory that the server reads and writes in place (Unix socket: a sealed memfd mapped here), or a copy that is kept at the server (TCP:
// Upload and Download move it). Freed at the server when destroyed. Must not outlive its client.
class Buffer {
 public:
  virtual ~Buffer() = default;

  // This process's mapping; nullptr for memory of another kind (device memory, server-held).
  virtual std::byte* data() = 0;
  virtual uint64_t bytes() const = 0;
  // Id to use in RegionRef. Stays the same when the client reconnects.
  virtual uint64_t region() const = 0;

  // Server-held buffers: copies of bytes to and from the server. For shared memory they are plain copies.
  virtual absl::Status Write(uint64_t byte_offset, absl::string_view bytes) = 0;
  virtual absl::Status Read(uint64_t byte_offset, std::byte* to, uint64_t bytes) = 0;

  // A tensor in this buffer.
  v1::Tensor Tensor(v1::DType dtype, const std::vector<int64_t>& shape,
                    uint64_t byte_offset = 0) const;
};

// Thread-safe; no call waits longer than its deadline. When the server ends, calls under way fail with UNAVAILABLE, and later ones work as
// soon as a server is there again: the client opens a new session and registers its buffers again under the same ids (contents of
// server-held buffers are lost: their use gives FAILED_PRECONDITION; events must be registered again). A call that adds to an output
// gets a request_id of its own, so that a repeat within the session does not add twice.
class Client {
 public:
  // Errors: UNAVAILABLE if nothing listens there, PERMISSION_DENIED if the server refuses this user.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  virtual ~Client() = default;

  // Runs one operation: `op` is a lossd.v1.LinearCrossEntropy or any other message of lossd.v1.Op. Waits for the result.
  virtual absl::StatusOr<v1::OpReply> Run(const google::protobuf::Message& op,
                                          const CallOptions& options = {}) = 0;
  // Runs a whole request as it is, over the stream. With completion ENQUEUED the reply means "queued".
  virtual absl::StatusOr<v1::RunReply> Run(const v1::RunRequest& request,
                                           absl::Duration timeout) = 0;

  // Zero-filled memory shared with the server.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> CreateBuffer(uint64_t bytes) = 0;
  // Memory owned by the server: device memory for a GPU server (its IPC handle in *cuda_ipc), else host memory.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> AllocateAtServer(
      uint64_t bytes, v1::MemoryKind kind, std::string* cuda_ipc = nullptr) = 0;
  // A device allocation of this process by its 64-byte CUDA IPC handle (torch's 66 bytes are accepted: the 2-byte prefix is dropped).
  // `buffer_id` tells allocations apart whose handles repeat.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> RegisterDevice(absl::string_view handle,
                                                                 uint64_t bytes,
                                                                 absl::string_view device_uuid,
                                                                 uint64_t buffer_id,
                                                                 bool writable) = 0;
  // 64-byte IPC handles of events that this process records; returns those of the server's done events, in order.
  virtual absl::StatusOr<std::vector<std::string>> RegisterEvents(
      const std::vector<std::string>& ready_events) = 0;

  virtual absl::StatusOr<v1::ListOpsReply> ListOps() = 0;
  // Which way a call would take, and what it costs: nothing is run, tensors need no memory.
  virtual absl::StatusOr<v1::ExplainReply> Explain(const v1::ExplainRequest& request) = 0;
  virtual absl::StatusOr<v1::ListRegionsReply> ListRegions() = 0;
  // Of the present session.
  virtual v1::ServerInfo server_info() const = 0;
};

// A server of this process's own, started on a private socket and stopped with the object (also when this process dies).
class PrivateServer {
 public:
  struct Options {
    std::string binary;              // path of lossd; empty: beside this executable, then on PATH
    std::vector<std::string> flags;  // further flags
    absl::Duration start_timeout = absl::Seconds(30);
  };
  // The lossd that Start would start. Errors: NOT_FOUND.
  static absl::StatusOr<std::string> FindBinary(const std::string& binary);
  // Errors: NOT_FOUND (binary), INTERNAL with the server's last words if it does not come up.
  static absl::StatusOr<std::unique_ptr<PrivateServer>> Start(const Options& options);
  virtual ~PrivateServer() = default;
  virtual const std::string& address() const = 0;
  virtual int pid() const = 0;
};

}  // namespace lossd

#endif  // LOSSD_CLIENT_CPP_CLIENT_H_
