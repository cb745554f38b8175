// The server that a command speaks to: the one that was named, or a private one.
#ifndef LOSSD_CLIENT_CTL_TARGET_H_
#define LOSSD_CLIENT_CTL_TARGET_H_

#include <memory>
#include <string>

#include "client/cpp/client.h"
#include "client/ctl/flags.h"

namespace lossd::ctl {

inline constexpr Flag kTargetFlag = {
    "target", "ADDRESS",
    "unix:/path or host:port of a server; without it a private one is started"};

struct Target {
  std::unique_ptr<PrivateServer> server;  // null if an address was given
  std::string address;
  std::unique_ptr<Client> client;  // ends before the server
};

// Errors: those of Client::Connect and PrivateServer::Start.
absl::StatusOr<Target> OpenTarget(const Arguments& arguments);

// Writes "lossctl COMMAND: CODE: text" to stderr, and returns the exit code 1.
int Report(const char* command, const absl::Status& status);

}  // namespace lossd::ctl

#endif  // LOSSD_CLIENT_CTL_TARGET_H_
