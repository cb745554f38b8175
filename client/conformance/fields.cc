#include "client/conformance/fields.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "lossd/v1/options.pb.h"
#include "lossd/v1/service.pb.h"

namespace lossd::conformance {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

void Collect(const Descriptor* message, FieldPath* prefix, std::vector<FieldPath>* all) {
  for (int i = 0; i < message->field_count(); ++i) {
    prefix->push_back(message->field(i));
    if (message->field(i)->options().GetExtension(v1::flat)) {
      Collect(message->field(i)->message_type(), prefix, all);
    } else {
      all->push_back(*prefix);
    }
    prefix->pop_back();
  }
}

}  // namespace

std::vector<FieldPath> AllFields(const Descriptor* message) {
  std::vector<FieldPath> all;
  FieldPath prefix;
  Collect(message, &prefix, &all);
  return all;
}

FieldPath FindField(const Descriptor* message, absl::string_view name) {
  for (FieldPath& path : AllFields(message)) {
    if (path.back()->name() == name) return std::move(path);
  }
  return {};
}

bool IsTensor(const FieldPath& path) {
  return path.back()->message_type() == v1::Tensor::descriptor();
}

bool IsOutput(const FieldPath& path) {
  return IsTensor(path) && path.back()->options().GetExtension(v1::tensor).role() == v1::OUTPUT;
}

Message* MutableHolder(Message* op, const FieldPath& path) {
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    op = op->GetReflection()->MutableMessage(op, path[i]);
  }
  return op;
}

v1::Tensor* MutableTensor(Message* op, const FieldPath& path) {
  Message* holder = MutableHolder(op, path);
  return static_cast<v1::Tensor*>(holder->GetReflection()->MutableMessage(holder, path.back()));
}

const v1::Tensor* FindTensor(const Message& op, const FieldPath& path) {
  const Message* message = &op;
  for (const FieldDescriptor* field : path) {
    if (!message->GetReflection()->HasField(*message, field)) return nullptr;
    message = &message->GetReflection()->GetMessage(*message, field);
  }
  return static_cast<const v1::Tensor*>(message);
}

std::string ShortEnumName(const EnumValueDescriptor* value) {
  std::string prefix;  // KlEstimator -> KL_ESTIMATOR_
  for (const char letter : value->type()->name()) {
    if (absl::ascii_isupper(letter) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(letter);
  }
  prefix += '_';
  return std::string(absl::StripPrefix(value->name(), prefix));
}

const EnumValueDescriptor* FindEnumValue(const EnumDescriptor* type, absl::string_view name) {
  for (int i = 0; i < type->value_count(); ++i) {
    const EnumValueDescriptor* value = type->value(i);
    // In either case: Python writes "count", the vectors "COUNT".
    if (absl::EqualsIgnoreCase(value->name(), name) ||
        absl::EqualsIgnoreCase(ShortEnumName(value), name)) {
      return value;
    }
  }
  return nullptr;
}

const FieldDescriptor* FindOp(absl::string_view name) {
  const auto* oneof = v1::Op::descriptor()->oneof_decl(0);
  for (int i = 0; i < oneof->field_count(); ++i) {
    if (oneof->field(i)->message_type()->name() == name) return oneof->field(i);
  }
  return nullptr;
}

}  // namespace lossd::conformance
