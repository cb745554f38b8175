#include "client/cpp/op_scan.h"

#include "lossd/v1/head.pb.h"
#include "lossd/v1/tensor.pb.h"

namespace lossd::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Calls `visit(field, submessage)` for each message directly in `message`.
template <class Visit>
void ForEachMessage(const Message& message, const Visit& visit) {
  const auto* reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      visit(*field, reflection->GetMessage(message, field));
      continue;
    }
    for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
      visit(*field, reflection->GetRepeatedMessage(message, field, i));
    }
  }
}

}  // namespace

bool Accumulates(const Message& message) {
  const auto* reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->enum_type() == v1::GradMode_descriptor() && !field->is_repeated() &&
        reflection->GetEnumValue(message, field) == v1::GRAD_MODE_ACCUMULATE) {
      return true;
    }
  }
  bool found = false;
  ForEachMessage(message, [&](const FieldDescriptor&, const Message& part) {
    found = found || Accumulates(part);
  });
  return found;
}

void FindRegions(const Message& message, std::vector<RegionUse>* uses) {
  ForEachMessage(message, [&](const FieldDescriptor& field, const Message& part) {
    if (part.GetDescriptor() != v1::Tensor::descriptor()) return FindRegions(part, uses);
    const auto& tensor = static_cast<const v1::Tensor&>(part);
    if (tensor.has_region()) uses->push_back({field.name(), tensor.region().region()});
  });
}

}  // namespace lossd::client
