// Where a server listens.
#ifndef LOSSD_CLIENT_CPP_ADDRESS_H_
#define LOSSD_CLIENT_CPP_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lossd::client {

struct Address {
  std::string text;          // as gRPC wants it
  std::string session_path;  // of the session socket; empty for TCP

  bool is_unix() const { return !session_path.empty(); }

  // "unix:/path", "/path" or "host:port". Errors: INVALID_ARGUMENT with the field "address".
  static absl::StatusOr<Address> Parse(absl::string_view text);
};

}  // namespace lossd::client

#endif  // LOSSD_CLIENT_CPP_ADDRESS_H_
