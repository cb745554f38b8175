#include "server/rich_status.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"

namespace lossd {
namespace {

// Together with the message, the numbers and the tags below kMaxStatusDetailBytes.
v1::ErrorDetail CutDetail(v1::ErrorDetail detail) {
  if (detail.has_field()) detail.set_field(CutText(detail.field(), 512));
  if (detail.has_must_be()) detail.set_must_be(CutText(detail.must_be(), 1024));
  if (detail.has_is()) detail.set_is(CutText(detail.is(), 1024));
  if (detail.has_op()) detail.set_op(CutText(detail.op(), 128));
  if (detail.has_reason()) detail.set_reason(CutText(detail.reason(), 64));
  return detail;
}

}  // namespace

std::string CutText(absl::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  size_t end = bytes - 3;
  // Back over the rest of a character that would be cut: continuation bytes are 10xxxxxx.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "...");
}

v1::RichStatus ToRichStatus(const absl::Status& status) {
  v1::RichStatus rich;
  rich.set_code(static_cast<int>(status.code()));
  rich.set_message(CutText(status.message(), kMaxStatusMessageBytes));
  if (const auto detail = GetErrorDetail(status)) {
    google::protobuf::Any* any = rich.add_details();
    any->set_type_url(kErrorDetailUrl);
    any->set_value(CutDetail(*detail).SerializeAsString());
  }
  return rich;
}

absl::Status FromRichStatus(const v1::RichStatus& rich) {
  absl::Status status(static_cast<absl::StatusCode>(rich.code()), rich.message());
  for (const auto& any : rich.details()) {
    if (any.type_url() == kErrorDetailUrl)
      status.SetPayload(kErrorDetailUrl, absl::Cord(any.value()));
  }
  return status;
}

}  // namespace lossd
