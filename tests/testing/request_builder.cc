#include "tests/testing/request_builder.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/core/dtype.h"

namespace lossd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

[[noreturn]] void Fail(const std::string& text) {
  std::cerr << "request builder: " << text << std::endl;
  std::abort();
}

const FieldRule& FindOrFail(const OpSchema& schema, absl::string_view name) {
  const FieldRule* rule = schema.Find(name);
  if (rule == nullptr) Fail(schema.name() + " has no " + std::string(name));
  return *rule;
}

// Sets the option `field` of `holder`.
void SetValue(const FieldDescriptor* field, const std::string& text, Message* holder) {
  const auto* reflection = holder->GetReflection();
  double number = 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      if (!absl::SimpleAtod(text, &number)) Fail("no number: " + text);
      return reflection->SetDouble(holder, field, number);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->SetInt64(holder, field, std::atoll(text.c_str()));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->SetBool(holder, field, text == "true");
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->SetString(holder, field, text);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto* value = FindEnumValue(field->enum_type(), text);
      if (value == nullptr) Fail(field->name() + " has no value " + text);
      return reflection->SetEnum(holder, field, value);
    }
    default:
      Fail("no way to set " + field->name());
  }
}

// "terms[1].beta": the entry of the list, added if it is the next one.
void SetElement(const FieldRule& list, int index, const std::string& name, const std::string& text,
                Message* request) {
  Message* holder = MutableHolder(request, list);
  const auto* reflection = holder->GetReflection();
  const int size = reflection->FieldSize(*holder, list.descriptor);
  if (index > size) Fail(list.name + " has no entry before " + std::to_string(index));
  Message* entry = index == size
                       ? reflection->AddMessage(holder, list.descriptor)
                       : reflection->MutableRepeatedMessage(holder, list.descriptor, index);
  const FieldDescriptor* field = entry->GetDescriptor()->FindFieldByName(name);
  if (field == nullptr) Fail(list.name + " has no " + name);
  SetValue(field, text, entry);
}

void SetOption(const OpSchema& schema, absl::string_view assignment, Message* request) {
  const std::vector<std::string> parts = absl::StrSplit(assignment, absl::MaxSplits('=', 1));
  if (parts.size() != 2) Fail("not name=value: " + std::string(assignment));
  const size_t bracket = parts[0].find('[');
  const FieldRule& rule = FindOrFail(schema, parts[0].substr(0, bracket));
  if (bracket != std::string::npos) {
    const size_t end = parts[0].find("].");
    if (rule.elements.empty() || end == std::string::npos) Fail("not list[i].name: " + parts[0]);
    const int index = std::atoi(parts[0].c_str() + bracket + 1);
    return SetElement(rule, index, parts[0].substr(end + 2), parts[1], request);
  }
  SetValue(rule.descriptor, parts[1], MutableHolder(request, rule));
}

uint16_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits += 0x7fff + ((bits >> 16) & 1);
  return static_cast<uint16_t>(bits >> 16);
}

float FromBf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

template <class T, class F>
void ForEach(const std::string& bytes, const F& f) {
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    f(value);
  }
}

template <class T>
void Append(T value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace

Message* MutableRequest(v1::Op* op) {
  const auto* reflection = op->GetReflection();
  const auto* field = reflection->GetOneofFieldDescriptor(*op, v1::Op::descriptor()->oneof_decl(0));
  return reflection->MutableMessage(op, field);
}

std::vector<double> Elements(const v1::Tensor& tensor) {
  std::vector<double> values;
  const std::string& bytes = tensor.inline_data();
  const auto push = [&](auto value) { values.push_back(static_cast<double>(value)); };
  switch (tensor.dtype()) {
    case v1::F32:
      ForEach<float>(bytes, push);
      break;
    case v1::BF16:
      ForEach<uint16_t>(bytes, [&](uint16_t half) { values.push_back(FromBf16(half)); });
      break;
    case v1::F16:
      ForEach<_Float16>(bytes, [&](_Float16 half) { values.push_back(static_cast<float>(half)); });
      break;
    case v1::I32:
      ForEach<int32_t>(bytes, push);
      break;
    case v1::I64:
      ForEach<int64_t>(bytes, push);
      break;
    case v1::U8:
      ForEach<uint8_t>(bytes, push);
      break;
    default:
      Fail("tensor without a type");
  }
  return values;
}

void SetElements(const std::vector<double>& values, v1::Tensor* tensor) {
  std::string* bytes = tensor->mutable_inline_data();
  bytes->clear();
  for (const double value : values) {
    switch (tensor->dtype()) {
      case v1::F32:
        Append(static_cast<float>(value), bytes);
        break;
      case v1::BF16:
        Append(ToBf16(static_cast<float>(value)), bytes);
        break;
      case v1::F16:
        Append(static_cast<_Float16>(static_cast<float>(value)), bytes);
        break;
      case v1::I32:
        Append(static_cast<int32_t>(value), bytes);
        break;
      case v1::I64:
        Append(static_cast<int64_t>(value), bytes);
        break;
      case v1::U8:
        Append(static_cast<uint8_t>(value), bytes);
        break;
      default:
        Fail("tensor without a type");
    }
  }
}

std::vector<int64_t> RequestBuilder::ShapeOf(const FieldRule& rule) const {
  std::vector<int64_t> shape;
  for (const DimTerm& dim : rule.extents) {
    const auto found = dims.find(dim.name);
    if (!dim.name.empty() && found == dims.end()) Fail("no extent for dimension " + dim.name);
    shape.push_back(dim.Extent(dim.name.empty() ? 0 : found->second));
  }
  return shape;
}

v1::Tensor RequestBuilder::MakeInput(const FieldRule& rule, const RequestSpec& spec) {
  const v1::DType model = spec.model;
  const bool probs = absl::StrContains(spec.options, rule.name + "_kind=PROBS");
  const bool logprobs = absl::StrContains(spec.options, rule.name + "_kind=LOGPROBS");
  v1::Tensor tensor;
  const v1::DTypeSet set = rule.tensor.dtypes();
  tensor.set_dtype(set == v1::MODEL ? model : static_cast<v1::DType>(DTypesOf(set).front()));
  int64_t count = 1;
  for (const int64_t extent : ShapeOf(rule)) {
    tensor.add_shape(extent);
    count *= extent;
  }
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> unit;
  std::vector<double> values(count);
  for (int64_t i = 0; i < count; ++i) {
    double& value = values[i];
    if (rule.name == "cu_seqlens") {
      value = static_cast<double>(i * dims.at("N") / std::max<int64_t>(count - 1, 1));
    } else if (rule.name == "position") {
      value = std::floor(unit(random_) * static_cast<double>(dims.at("P")));
    } else if (set == v1::INDEX) {
      value = std::floor(unit(random_) * static_cast<double>(dims.at("V")));
    } else if (set == v1::MASK) {
      value = i == 1 ? 0 : 1;
    } else if (rule.name == "entropy") {
      value = 0.3 + 2.7 * unit(random_);
    } else if (probs) {
      value = 0.02 + 0.3 * unit(random_);
    } else if (rule.tensor.units() == "nats" || logprobs) {
      value = -0.3 - 2.7 * unit(random_);
    } else if (set == v1::FLOAT32 && rule.tensor.units() == "1") {
      value = 0.2 + 1.3 * unit(random_);
    } else {
      value = normal(random_);
    }
  }
  SetElements(values, &tensor);
  return tensor;
}

v1::Op RequestBuilder::Build(const OpSchema& schema, const RequestSpec& spec) {
  random_.seed(spec.seed);
  v1::Op op;
  const auto* oneof = v1::Op::descriptor()->oneof_decl(0);
  Message* request = nullptr;
  for (int i = 0; i < oneof->field_count(); ++i) {
    if (oneof->field(i)->message_type() != schema.message()) continue;
    request = op.GetReflection()->MutableMessage(&op, oneof->field(i));
  }
  if (request == nullptr) Fail("lossd.v1.Op has no " + schema.name());
  const std::vector<std::string> inputs = absl::StrSplit(spec.inputs, ' ', absl::SkipEmpty());
  for (const std::string& name : inputs) FindOrFail(schema, name);
  for (const FieldRule& rule :
       schema.fields()) {  // in the order of the message, so that seeds mean the same everywhere
    if (!rule.is_input()) continue;
    const bool wanted = std::find(inputs.begin(), inputs.end(), rule.name) != inputs.end();
    if (wanted || rule.tensor.required()) *MutableTensor(request, rule) = MakeInput(rule, spec);
  }
  for (const absl::string_view option : absl::StrSplit(spec.options, ' ', absl::SkipEmpty())) {
    SetOption(schema, option, request);
  }
  for (const absl::string_view name : absl::StrSplit(spec.outputs, ' ', absl::SkipEmpty())) {
    const FieldRule& rule = FindOrFail(schema, name);
    v1::Tensor* tensor = MutableTensor(request, rule);
    const v1::DTypeSet set = rule.tensor.dtypes();
    tensor->set_dtype(set == v1::MODEL ? v1::F32 : static_cast<v1::DType>(DTypesOf(set).front()));
    for (const int64_t extent : ShapeOf(rule)) tensor->add_shape(extent);
  }
  return op;
}

}  // namespace lossd
