#include "kernels/core/error.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace lossd {
namespace {

std::string TextOf(const v1::ErrorDetail& detail) {
  std::string text = detail.field();
  if (detail.has_row()) absl::StrAppend(&text, "[", detail.row(), "]");
  if (detail.has_must_be()) absl::StrAppend(&text, ": must be ", detail.must_be());
  if (detail.has_is() && !detail.is().empty()) absl::StrAppend(&text, ", is ", detail.is());
  return text;
}

v1::ErrorDetail MakeDetail(absl::string_view field, absl::string_view must_be,
                           absl::string_view is) {
  v1::ErrorDetail detail;
  detail.set_field(std::string(field));
  detail.set_must_be(std::string(must_be));
  detail.set_is(std::string(is));
  return detail;
}

}  // namespace

absl::Status DetailError(absl::StatusCode code, const v1::ErrorDetail& detail,
                         absl::string_view message) {
  absl::Status status(code, message.empty() ? TextOf(detail) : std::string(message));
  status.SetPayload(kErrorDetailUrl, absl::Cord(detail.SerializeAsString()));
  return status;
}

absl::Status FieldError(absl::string_view field, absl::string_view must_be, absl::string_view is) {
  return DetailError(absl::StatusCode::kInvalidArgument, MakeDetail(field, must_be, is));
}

absl::Status UnimplementedError(absl::string_view field, absl::string_view must_be,
                                absl::string_view is) {
  return DetailError(absl::StatusCode::kUnimplemented, MakeDetail(field, must_be, is));
}

absl::Status ReasonError(absl::StatusCode code, absl::string_view reason,
                         absl::string_view message) {
  v1::ErrorDetail detail;
  detail.set_reason(std::string(reason));
  return DetailError(code, detail, message);
}

absl::optional<v1::ErrorDetail> GetErrorDetail(const absl::Status& status) {
  const auto payload = status.GetPayload(kErrorDetailUrl);
  v1::ErrorDetail detail;
  if (!payload || !detail.ParseFromString(std::string(*payload))) return absl::nullopt;
  return detail;
}

absl::Status AnnotateOp(const absl::Status& status, absl::string_view op, int index) {
  v1::ErrorDetail detail = GetErrorDetail(status).value_or(v1::ErrorDetail());
  detail.set_op(std::string(op));
  detail.set_op_index(index);
  return DetailError(status.code(), detail, absl::StrCat(op, ".", status.message()));
}

}  // namespace lossd
