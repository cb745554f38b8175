#include "client/cpp/address.h"

#include <sys/un.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cpp/status.h"

namespace lossd::client {
namespace {

constexpr char kSessionSuffix[] = ".session";

}  // namespace

absl::StatusOr<Address> Address::Parse(absl::string_view text) {
  Address address;
  absl::string_view path = text;
  if (absl::ConsumePrefix(&path, "unix:") || absl::StartsWith(path, "/")) {
    absl::ConsumePrefix(&path, "//");  // unix:///path is the same
    address.text = absl::StrCat("unix:", path);
    address.session_path = absl::StrCat(path, kSessionSuffix);
    if (path.empty() || address.session_path.size() >= sizeof(sockaddr_un::sun_path)) {
      return FieldError(
          "address",
          absl::StrCat("a socket path of 1 to ",
                       sizeof(sockaddr_un::sun_path) - sizeof kSessionSuffix, " bytes"),
          absl::StrCat("\"", path, "\""));
    }
    return address;
  }
  const size_t colon = text.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return FieldError("address", "unix:/path or host:port", absl::StrCat("\"", text, "\""));
  }
  address.text = std::string(text);
  return address;
}

}  // namespace lossd::client
