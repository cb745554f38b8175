// The settings of lossd. Every one is a flag; nothing is read from the environment.
#ifndef LOSSD_SERVER_OPTIONS_H_
#define LOSSD_SERVER_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "kernels/backend.h"
#include "server/log.h"

namespace lossd {

// Where the server listens: a Unix socket, or a loopback TCP port.
struct ListenAddress {
  bool is_unix = false;
  std::string path;  // of a Unix socket
  std::string host;  // of TCP: a numeric loopback address, IPv6 without brackets
  int port = 0;      // 0: the system chooses

  // As gRPC and clients write it: "unix:/path" or "127.0.0.1:50051".
  std::string ToString() const;
};

// "unix:/path", "/path" or "host:port". Errors: INVALID_ARGUMENT if the path does not fit a socket address (with ".session" added), or if
// the host is not loopback: without TLS nothing else is safe.
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text);

// "512M" = 512 * 2^20 bytes; suffixes K, M, G, T, or none. "2.2e9" is allowed.
absl::StatusOr<uint64_t> ParseBytes(absl::string_view text);

struct Options {
  std::vector<ListenAddress> listen;
  std::string backend = "auto";
  uint64_t workspace_bytes = 0;  // 0: 512M on the cpu, 2.2e9 on cuda
  int threads = 0;               // of the cpu backend; 0: all cores
  std::string algorithms;        // file; empty: the build's alone
  uint64_t inline_limit_bytes = uint64_t{64} << 20;
  int queue_depth = 64;
  int max_sessions = 1024;
  int max_regions = 256;
  uint64_t session_memory_bytes = uint64_t{16} << 30;
  uint64_t session_inline_bytes = uint64_t{256} << 20;
  std::vector<uint32_t> allow_uids;  // empty: own uid and root
  absl::Duration lease = absl::Seconds(60);
  absl::Duration ready_timeout = absl::Seconds(30);
  absl::Duration stream_timeout = absl::Seconds(30);
  absl::Duration drain_timeout = absl::Seconds(10);
  absl::optional<absl::Duration> spin;  // not set: by the backend
  bool parent_death = false;
  int64_t parent_pid = 0;  // with parent_death: the parent's id, where it was given
  LogLevel log_level = LogLevel::kInfo;
  // In place of serving: measures and writes that file.
  std::string tune;
  std::vector<TunedShape> tune_shapes;
  int tune_rounds = 0;
  bool help = false;
  bool version = false;

  // Whether somebody else than this process's user and root may open sessions.
  bool AllowsOtherUsers() const;
};

// "8192x4096x128256:bf16": rows, hidden size, vocabulary, type of the model.
absl::StatusOr<TunedShape> ParseTunedShape(absl::string_view text);

// Flags are "--name value" or "--name=value". Errors: INVALID_ARGUMENT naming the flag.
absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments);

// Every flag with its unit, default and meaning.
std::string HelpText();

}  // namespace lossd

#endif  // LOSSD_SERVER_OPTIONS_H_
