#include "client/conformance/request.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "client/conformance/elements.h"
#include "client/conformance/extents.h"
#include "client/conformance/fields.h"
#include "client/conformance/formula.h"

namespace lossd::conformance {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::json;

// Larger ones are a mistake in the file.
constexpr int64_t kMaxElements = int64_t{1} << 28;

absl::Status Wrong(absl::string_view what, absl::string_view must_be, const json& is) {
  std::string text = is.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return absl::InvalidArgumentError(absl::StrCat(what, ": must be ", must_be, ", is ", text));
}

absl::Status AppendJson(const json& value, v1::DType dtype, std::string* bytes) {
  if (!IsReal(dtype) && value.is_number_integer()) {
    AppendInteger(dtype, value.get<int64_t>(), bytes);
    return absl::OkStatus();
  }
  const auto number = ParseNumber(value);
  if (!number.ok()) return number.status();
  AppendElement(dtype, *number, bytes);
  return absl::OkStatus();
}

void AppendFormula(const Formula& formula, v1::DType dtype, const std::vector<int64_t>& shape,
                   std::string* bytes) {
  const int64_t last[3] = {shape.size() > 0 ? shape[0] : 1, shape.size() > 1 ? shape[1] : 1,
                           shape.size() > 2 ? shape[2] : 1};
  for (int64_t i = 0; i < last[0]; ++i) {
    for (int64_t j = 0; j < last[1]; ++j) {
      for (int64_t k = 0; k < last[2]; ++k) {
        AppendElement(dtype, formula.At(i, j, k), bytes);
      }
    }
  }
}

// A value that is not in the enum, as another version of the protocol might send it: proto2 keeps it among the unknown fields.
void AddUnknownEnum(const FieldDescriptor* field, int number, Message* holder) {
  holder->GetReflection()->MutableUnknownFields(holder)->AddVarint(field->number(), number);
}

absl::Status SetEnum(const json& value, const FieldDescriptor* field, Message* holder) {
  const auto* type = field->enum_type();
  if (value.is_string()) {
    const auto* known = FindEnumValue(type, value.get<std::string>());
    if (known != nullptr) {
      holder->GetReflection()->SetEnum(holder, field, known);
      return absl::OkStatus();
    }
    int free = 0;
    for (int i = 0; i < type->value_count(); ++i) free = std::max(free, type->value(i)->number());
    AddUnknownEnum(field, free + 1000, holder);
    return absl::OkStatus();
  }
  if (!value.is_number_integer()) return Wrong(field->name(), "a name of the enum", value);
  const auto* known = type->FindValueByNumber(value.get<int>());
  if (known != nullptr) {
    holder->GetReflection()->SetEnum(holder, field, known);
  } else {
    AddUnknownEnum(field, value.get<int>(), holder);
  }
  return absl::OkStatus();
}

absl::Status SetInteger(const json& value, const FieldDescriptor* field, Message* holder) {
  int64_t number = 0;
  if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number() && std::trunc(value.get<double>()) == value.get<double>() &&
             std::fabs(value.get<double>()) < 9e18) {
    number = static_cast<int64_t>(value.get<double>());
  } else {
    return Wrong(field->name(), "an integer", value);
  }
  holder->GetReflection()->SetInt64(holder, field, number);
  return absl::OkStatus();
}

absl::Status SetOne(const json& value, const FieldDescriptor* field, Message* holder) {
  const Reflection* reflection = holder->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_ENUM:
      return SetEnum(value, field, holder);
    case FieldDescriptor::CPPTYPE_INT64:
      return SetInteger(value, field, holder);
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      const auto number = ParseNumber(value);
      if (!number.ok()) return Wrong(field->name(), "a number", value);
      reflection->SetDouble(holder, field, *number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      if (!value.is_boolean()) return Wrong(field->name(), "true or false", value);
      reflection->SetBool(holder, field, value.get<bool>());
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_STRING:
      if (!value.is_string()) return Wrong(field->name(), "a string", value);
      reflection->SetString(holder, field, value.get<std::string>());
      return absl::OkStatus();
    default:
      return Wrong(field->name(), "an option of a known kind", value);
  }
}

// A list of terms: each a JSON object of the term's own options.
absl::Status AddTerms(const json& value, const FieldDescriptor* field, Message* holder) {
  if (!value.is_array()) return Wrong(field->name(), "a list", value);
  for (const json& term : value) {
    if (!term.is_object()) return Wrong(field->name(), "a list of objects", term);
    Message* added = holder->GetReflection()->AddMessage(holder, field);
    for (const auto& [key, part] : term.items()) {
      const absl::Status status = SetOption(part, key, added);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

Extents LearnExtents(const Message& op, const json& options) {
  Extents extents;
  for (const FieldPath& path : AllFields(op.GetDescriptor())) {
    if (!IsTensor(path)) continue;
    const v1::Tensor* tensor = FindTensor(op, path);
    if (tensor != nullptr && tensor->dtype() != v1::DTYPE_UNSPECIFIED)
      extents.Learn(path.back(), *tensor);
  }
  const auto top_k = options.find("top_k");
  if (top_k != options.end() && top_k->is_number_integer())
    extents.Set("TopK", top_k->get<int64_t>());
  return extents;
}

absl::Status AddInputs(const json& inputs, Message* op) {
  if (!inputs.is_object()) return Wrong("inputs", "an object of tensors", inputs);
  for (const auto& [name, value] : inputs.items()) {
    const FieldPath path = FindField(op->GetDescriptor(), name);
    if (path.empty() || !IsTensor(path)) {
      return absl::InvalidArgumentError(
          absl::StrCat(op->GetDescriptor()->name(), " has no tensor ", name));
    }
    const absl::Status status = ParseTensor(value, MutableTensor(op, path));
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ".", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status AddOutput(const WantedOutput& output, const Extents& extents, Message* op) {
  const FieldPath path = FindField(op->GetDescriptor(), output.name);
  if (path.empty() || !IsOutput(path)) {
    return absl::InvalidArgumentError(
        absl::StrCat(op->GetDescriptor()->name(), " has no output ", output.name));
  }
  if (FindTensor(*op, path) != nullptr) return absl::OkStatus();  // brings its old value
  const bool given = output.dtype != v1::DTYPE_UNSPECIFIED;
  v1::Tensor* tensor = MutableTensor(op, path);
  tensor->set_dtype(given ? output.dtype : DefaultDType(*op, path.back(), v1::F32));
  for (const int64_t extent : given ? output.shape : extents.ShapeOf(path.back())) {
    tensor->add_shape(extent);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<double> ParseNumber(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
  }
  return Wrong("number", "a number, \"nan\", \"inf\" or \"-inf\"", value);
}

absl::Status ParseTensorHead(const json& value, v1::DType* dtype, std::vector<int64_t>* shape) {
  if (!value.is_object()) return Wrong("tensor", "an object", value);
  const auto name = value.find("dtype");
  if (name == value.end() || !name->is_string()) return Wrong("dtype", "a string", value);
  *dtype = DTypeFromName(name->get<std::string>());
  if (*dtype == v1::DTYPE_UNSPECIFIED)
    return Wrong("dtype", "f32, bf16, f16, i32, i64 or u8", *name);
  const auto extents = value.find("shape");
  if (extents == value.end() || !extents->is_array()) return Wrong("shape", "a list", value);
  shape->clear();
  int64_t elements = 1;
  for (const json& extent : *extents) {
    if (!extent.is_number_integer() || extent.get<int64_t>() < 0) {
      return Wrong("shape", "a list of integers >= 0", *extents);
    }
    shape->push_back(extent.get<int64_t>());
    if (shape->back() > 0 && elements > kMaxElements / shape->back()) {
      return Wrong("shape", "of at most 2^28 elements", *extents);
    }
    elements *= shape->back();
  }
  return absl::OkStatus();
}

absl::Status ParseTensor(const json& value, v1::Tensor* tensor) {
  v1::DType dtype;
  std::vector<int64_t> shape;
  const absl::Status head = ParseTensorHead(value, &dtype, &shape);
  if (!head.ok()) return head;
  tensor->set_dtype(dtype);
  tensor->mutable_shape()->Assign(shape.begin(), shape.end());
  std::string* bytes = tensor->mutable_inline_data();
  const auto formula = value.find("formula");
  if (formula != value.end()) {
    if (!formula->is_string()) return Wrong("formula", "a string", *formula);
    if (shape.size() > 3) return Wrong("shape", "of at most 3 axes with a formula", value["shape"]);
    const auto parsed = Formula::Parse(formula->get<std::string>());
    if (!parsed.ok()) return parsed.status();
    AppendFormula(*parsed, dtype, shape, bytes);
    return absl::OkStatus();
  }
  const auto data = value.find("data");
  if (data == value.end() || !data->is_array()) return Wrong("data", "a list", value);
  if (static_cast<int64_t>(data->size()) != ElementCount(shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: must be ", ElementCount(shape), " numbers, is ", data->size()));
  }
  for (const json& element : *data) {
    const absl::Status status = AppendJson(element, dtype, bytes);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SetOption(const json& value, absl::string_view name, Message* op) {
  const FieldPath path = FindField(op->GetDescriptor(), name);
  if (path.empty() || IsTensor(path)) {
    return absl::InvalidArgumentError(
        absl::StrCat(op->GetDescriptor()->name(), " has no option ", name));
  }
  Message* holder = MutableHolder(op, path);
  if (path.back()->is_repeated() && path.back()->message_type() != nullptr) {
    return AddTerms(value, path.back(), holder);
  }
  if (path.back()->is_repeated()) return Wrong(name, "an option of a known kind", value);
  return SetOne(value, path.back(), holder);
}

absl::StatusOr<v1::Op> BuildOp(const std::string& op_name, const json& inputs, const json& options,
                               const std::vector<WantedOutput>& outputs) {
  const FieldDescriptor* field = FindOp(op_name);
  if (field == nullptr) return absl::NotFoundError(absl::StrCat("no operation ", op_name));
  v1::Op op;
  Message* message = op.GetReflection()->MutableMessage(&op, field);
  absl::Status status = AddInputs(inputs, message);
  if (!status.ok()) return status;
  if (!options.is_object()) return Wrong("options", "an object", options);
  for (const auto& [name, value] : options.items()) {
    status = SetOption(value, name, message);
    if (!status.ok()) return status;
  }
  const Extents extents = LearnExtents(*message, options);
  for (const WantedOutput& output : outputs) {
    status = AddOutput(output, extents, message);
    if (!status.ok()) return status;
  }
  return op;
}

const Message* SelectedOp(const v1::Op& op) {
  const auto* field =
      op.GetReflection()->GetOneofFieldDescriptor(op, v1::Op::descriptor()->oneof_decl(0));
  return field == nullptr ? nullptr : &op.GetReflection()->GetMessage(op, field);
}

Message* MutableSelectedOp(v1::Op* op) {
  const auto* field =
      op->GetReflection()->GetOneofFieldDescriptor(*op, v1::Op::descriptor()->oneof_decl(0));
  return field == nullptr ? nullptr : op->GetReflection()->MutableMessage(op, field);
}

}  // namespace lossd::conformance
