#include "client/ctl/reply_json.h"

#include <cmath>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "client/conformance/elements.h"

namespace lossd::ctl {
namespace {

using google::protobuf::FieldDescriptor;
using nlohmann::ordered_json;

ordered_json Real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

// The shortest decimal that gives the same f32: not the double's 17 digits.
ordered_json Single(double value) {
  if (!std::isfinite(value)) return Real(value);
  for (int digits = 6; digits < 9; ++digits) {
    const double shorter = std::strtod(absl::StrFormat("%.*g", digits, value).c_str(), nullptr);
    if (static_cast<float>(shorter) == static_cast<float>(value)) return shorter;
  }
  return std::strtod(absl::StrFormat("%.9g", value).c_str(), nullptr);
}

ordered_json TensorToJson(const v1::Tensor& tensor) {
  ordered_json json;
  json["dtype"] = conformance::DTypeName(tensor.dtype());
  json["shape"] = std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end());
  json["data"] = ordered_json::array();
  for (const double value : conformance::DecodeElements(tensor.dtype(), tensor.inline_data())) {
    if (conformance::IsReal(tensor.dtype())) {
      json["data"].push_back(Single(value));
    } else {
      json["data"].push_back(static_cast<int64_t>(value));
    }
  }
  return json;
}

}  // namespace

ordered_json ReplyToJson(const v1::OpReply& reply) {
  ordered_json json = ordered_json::object();
  std::vector<const FieldDescriptor*> fields;
  const auto* reflection = reply.GetReflection();
  reflection->ListFields(reply, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->is_repeated()) continue;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      json[field->name()] = Real(reflection->GetDouble(reply, field));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      json[field->name()] = reflection->GetInt64(reply, field);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      json[field->name()] = reflection->GetString(reply, field);
    }
  }
  for (const auto& [name, tensor] : reply.outputs()) json["outputs"][name] = TensorToJson(tensor);
  for (const auto& [name, metric] : reply.metrics()) {
    json["metrics"][name] = {{"sum", Real(metric.sum())},
                             {"count", metric.count()},
                             {"min", Real(metric.min())},
                             {"max", Real(metric.max())}};
  }
  return json;
}

}  // namespace lossd::ctl
