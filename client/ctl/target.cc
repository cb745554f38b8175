#include "client/ctl/target.h"

#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lossd::ctl {

absl::StatusOr<Target> OpenTarget(const Arguments& arguments) {
  Target target;
  target.address = arguments.Get("target");
  if (target.address.empty()) {
    auto server = PrivateServer::Start(PrivateServer::Options());
    if (!server.ok()) return server.status();
    target.server = *std::move(server);
    target.address = target.server->address();
  }
  ClientOptions options;
  options.address = target.address;
  options.name = "lossctl";
  auto client = Client::Connect(options);
  if (!client.ok()) return client.status();
  target.client = *std::move(client);
  return target;
}

int Report(const char* command, const absl::Status& status) {
  std::cerr << "lossctl " << command << ": " << absl::StatusCodeToString(status.code()) << ": "
            << absl::StrCat(status.message()) << "\n";
  return 1;
}

}  // namespace lossd::ctl
