#include "client/c/report.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "lossd/v1/error.pb.h"

namespace lossd::c {
namespace {

using v1::ErrorDetail;

constexpr char kDetailUrl[] = "type.googleapis.com/lossd.v1.ErrorDetail";

static_assert(sizeof(lossd_status) == 2048, "the layout is part of the ABI");

template <size_t kSize>
void CopyText(absl::string_view text, char (&to)[kSize]) {
  size_t size = std::min(text.size(), kSize - 1);
  // Never cut inside a UTF-8 sequence.
  if (size < text.size()) {
    while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  }
  if (size > 0) std::memcpy(to, text.data(), size);
  to[size] = '\0';
}

}  // namespace

int32_t Report(const absl::Status& from, lossd_status* to) {
  const auto code = static_cast<int32_t>(from.code());
  if (to == nullptr) return code;
  *to = lossd_status LOSSD_STATUS_INIT;
  to->code = code;
  if (from.ok()) return code;
  CopyText(from.message(), to->message);
  const absl::optional<absl::Cord> payload = from.GetPayload(kDetailUrl);
  ErrorDetail detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) return code;
  CopyText(detail.field(), to->field);
  CopyText(detail.must_be(), to->must_be);
  CopyText(detail.is(), to->is);
  CopyText(detail.op(), to->op);
  CopyText(detail.reason(), to->reason);
  if (detail.has_op_index()) to->op_index = detail.op_index();
  if (detail.has_row()) to->row = detail.row();
  to->retry_after_ms = detail.retry_after_ms();
  to->cuda_error = detail.cuda_error();
  return code;
}

absl::Status ArgumentError(absl::string_view field, absl::string_view must_be,
                           absl::string_view is) {
  ErrorDetail detail;
  detail.set_field(std::string(field));
  detail.set_must_be(std::string(must_be));
  detail.set_is(std::string(is));
  absl::Status status =
      absl::InvalidArgumentError(absl::StrCat(field, ": must be ", must_be, ", is ", is));
  status.SetPayload(kDetailUrl, absl::Cord(detail.SerializeAsString()));
  return status;
}

absl::Status Given(absl::string_view field, const void* pointer) {
  return pointer != nullptr ? absl::OkStatus() : ArgumentError(field, "given", "NULL");
}

absl::Status CopyOut(const google::protobuf::MessageLite& message, lossd_bytes* to) {
  const size_t size = message.ByteSizeLong();
  if (size > std::numeric_limits<int>::max()) {
    return absl::ResourceExhaustedError("the reply is larger than 2 GiB");
  }
  // malloc(0) may be NULL, which would look like a failure.
  auto* data = static_cast<uint8_t*>(std::malloc(std::max<size_t>(size, 1)));
  if (data == nullptr) return absl::ResourceExhaustedError("out of memory for the reply");
  if (!message.SerializeToArray(data, static_cast<int>(size))) {
    std::free(data);
    return absl::InternalError("the reply could not be serialized");
  }
  *to = {data, size};
  return absl::OkStatus();
}

absl::Status ParseRequest(const uint8_t* request, size_t request_bytes, v1::RunRequest* to) {
  if (request_bytes > 0) LOSSD_C_RETURN_IF_ERROR(Given("request", request));
  if (request_bytes > std::numeric_limits<int>::max() ||
      !to->ParseFromArray(request, static_cast<int>(request_bytes))) {
    return ArgumentError("request", "a serialized lossd.v1.RunRequest",
                         absl::StrCat(request_bytes, " other bytes"));
  }
  return absl::OkStatus();
}

}  // namespace lossd::c
