// Fields of an operation by their own names: sub-messages marked flat are opened.
#ifndef LOSSD_CLIENT_CONFORMANCE_FIELDS_H_
#define LOSSD_CLIENT_CONFORMANCE_FIELDS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "lossd/v1/tensor.pb.h"

namespace lossd::conformance {

// The way from an operation's message to a field; the last is the field itself. Empty: there is no such field.
using FieldPath = std::vector<const google::protobuf::FieldDescriptor*>;

// All fields, in the order of the messages.
std::vector<FieldPath> AllFields(const google::protobuf::Descriptor* message);
FieldPath FindField(const google::protobuf::Descriptor* message, absl::string_view name);

bool IsTensor(const FieldPath& path);
bool IsOutput(const FieldPath& path);

// The innermost message that holds the field; created if need be.
google::protobuf::Message* MutableHolder(google::protobuf::Message* op, const FieldPath& path);
v1::Tensor* MutableTensor(google::protobuf::Message* op, const FieldPath& path);
// nullptr if the field is absent. Creates nothing.
const v1::Tensor* FindTensor(const google::protobuf::Message& op, const FieldPath& path);

// "PPO" for POLICY_KIND_PPO.
std::string ShortEnumName(const google::protobuf::EnumValueDescriptor* value);
// By short or full name; nullptr if there is none.
const google::protobuf::EnumValueDescriptor* FindEnumValue(
    const google::protobuf::EnumDescriptor* type, absl::string_view name);

// Field of lossd.v1.Op for the message of that name ("LinearCrossEntropy"); nullptr if there is none.
const google::protobuf::FieldDescriptor* FindOp(absl::string_view name);

}  // namespace lossd::conformance

#endif  // LOSSD_CLIENT_CONFORMANCE_FIELDS_H_
