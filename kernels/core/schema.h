// The rules of an operation, compiled once from its message descriptor, and the checks that follow from them alone.
#ifndef LOSSD_KERNELS_CORE_SCHEMA_H_
#define LOSSD_KERNELS_CORE_SCHEMA_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "kernels/core/dtype.h"
#include "lossd/v1/options.pb.h"
#include "lossd/v1/tensor.pb.h"

namespace lossd {

// A dimension as a rule writes it: "N", "B+1", "2P+1", or a number: then the name is empty and `plus` is the extent.
struct DimTerm {
  int64_t factor = 1;
  std::string name;
  int64_t plus = 0;

  int64_t Extent(int64_t of_name) const { return factor * of_name + plus; }
};
DimTerm ParseDim(absl::string_view text);

// One field of an operation, sub-messages marked flat opened.
struct FieldRule {
  std::string name;  // leaf name: unique in the operation
  int index = 0;     // position in OpSchema::fields()
  // The way from the operation's message to the field; the last is the field itself.
  std::vector<const google::protobuf::FieldDescriptor*> path;
  const google::protobuf::FieldDescriptor* descriptor = nullptr;  // path.back()

  bool is_tensor = false;
  v1::TensorRule tensor;          // if is_tensor
  v1::ScalarRule scalar;          // otherwise
  std::vector<std::string> dims;  // a tensor's dimensions as the rule writes them
  std::vector<DimTerm> extents;   // the same, taken apart
  // Options of one entry, if the field is a list of sub-messages; errors name them "terms[2].beta". No lists in lists, no tensors.
  std::vector<FieldRule> elements;

  bool is_output() const { return is_tensor && tensor.role() == v1::OUTPUT; }
  bool is_input() const { return is_tensor && tensor.role() == v1::INPUT; }
  bool is_option() const { return !is_tensor; }
};

// Extents by dimension name, as the request's tensors agree on them. Absent names are 0.
class Dims {
 public:
  int64_t operator[](absl::string_view name) const;
  bool Has(absl::string_view name) const;
  void Set(absl::string_view name, int64_t extent);

 private:
  const int64_t* Find(absl::string_view name) const;

  std::vector<std::pair<std::string, int64_t>> extents_;  // a handful
};

// Immutable after Create; thread-safe.
class OpSchema {
 public:
  // Errors: INTERNAL if the message's options are inconsistent (two fields of one name, unknown dtype set).
  static absl::StatusOr<OpSchema> Create(const google::protobuf::Descriptor* message);

  const google::protobuf::Descriptor* message() const { return message_; }
  const std::string& name() const { return message_->name(); }
  const v1::OpInfo& info() const { return info_; }
  const std::vector<FieldRule>& fields() const { return fields_; }
  // nullptr if there is none of that name.
  const FieldRule* Find(absl::string_view name) const;
  // Whether an output may take the memory of this input.
  bool CanDonate(absl::string_view input) const;

  // What the descriptor alone can tell: no unknown field or enum value, required fields, dtypes, ranks, equal dimensions,
  // no overflow, strides, finite reals within bounds, nothing that is unimplemented. Returns the dimensions.
  // Errors: INVALID_ARGUMENT, UNIMPLEMENTED, each with the field.
  absl::StatusOr<Dims> Check(const google::protobuf::Message& request) const;

 private:
  const google::protobuf::Descriptor* message_ = nullptr;
  v1::OpInfo info_;
  std::vector<FieldRule> fields_;
};

// Access by rule, through flat sub-messages. Has and Get never create anything.
bool HasField(const google::protobuf::Message& request, const FieldRule& rule);
const v1::Tensor& GetTensor(const google::protobuf::Message& request, const FieldRule& rule);
v1::Tensor* MutableTensor(google::protobuf::Message* request, const FieldRule& rule);
// The innermost message that holds the field; created if need be.
google::protobuf::Message* MutableHolder(google::protobuf::Message* request, const FieldRule& rule);

// "PPO" for POLICY_KIND_PPO: the enum value's name without the enum's own.
std::string ShortEnumName(const google::protobuf::EnumValueDescriptor* value);
// By short or full name; nullptr if there is none.
const google::protobuf::EnumValueDescriptor* FindEnumValue(
    const google::protobuf::EnumDescriptor* type, absl::string_view name);

// Element types of a set, in order of preference.
const std::vector<DType>& DTypesOf(v1::DTypeSet set);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CORE_SCHEMA_H_
