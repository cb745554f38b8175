#include "client/cpp/status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace lossd {
namespace {

constexpr char kDetailUrl[] = "type.googleapis.com/lossd.v1.ErrorDetail";

static_assert(static_cast<int>(absl::StatusCode::kUnauthenticated) == grpc::UNAUTHENTICATED);
static_assert(static_cast<int>(absl::StatusCode::kInvalidArgument) == grpc::INVALID_ARGUMENT);
static_assert(static_cast<int>(absl::StatusCode::kUnavailable) == grpc::UNAVAILABLE);

absl::StatusCode CodeFrom(int code) {
  const bool known = code >= 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

}  // namespace

absl::optional<v1::ErrorDetail> ErrorDetailOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kDetailUrl);
  v1::ErrorDetail detail;
  if (!payload || !detail.ParseFromString(std::string(*payload))) return absl::nullopt;
  return detail;
}

namespace client {

absl::Status MakeError(absl::StatusCode code, const v1::ErrorDetail& detail,
                       absl::string_view message) {
  absl::Status status(code, message);
  status.SetPayload(kDetailUrl, absl::Cord(detail.SerializeAsString()));
  return status;
}

absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message) {
  v1::ErrorDetail detail;
  detail.set_reason(std::string(reason));
  return MakeError(code, detail, message);
}

absl::Status FieldError(absl::string_view field, absl::string_view must_be, absl::string_view is) {
  v1::ErrorDetail detail;
  detail.set_field(std::string(field));
  detail.set_must_be(std::string(must_be));
  detail.set_is(std::string(is));
  return MakeError(absl::StatusCode::kInvalidArgument, detail,
                   absl::StrCat(field, ": must be ", must_be, ", is ", is));
}

absl::Status FromRich(const v1::RichStatus& rich) {
  absl::Status status(CodeFrom(rich.code()), rich.message());
  if (status.ok()) return status;
  for (const auto& detail : rich.details()) {
    status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return status;
}

absl::Status FromGrpc(const grpc::Status& from) {
  if (from.ok()) return absl::OkStatus();
  v1::RichStatus rich;
  if (!from.error_details().empty() && !rich.ParseFromString(from.error_details())) rich.Clear();
  // The header fields are what the transport vouches for.
  rich.set_code(from.error_code());
  rich.set_message(from.error_message());
  return FromRich(rich);
}

absl::Status Prefix(absl::string_view what, const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status prefixed(status.code(), absl::StrCat(what, ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { prefixed.SetPayload(url, payload); });
  return prefixed;
}

}  // namespace client
}  // namespace lossd
