// Shapes and element types that follow from an operation's descriptor.
#ifndef LOSSD_CLIENT_CONFORMANCE_EXTENTS_H_
#define LOSSD_CLIENT_CONFORMANCE_EXTENTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "lossd/v1/tensor.pb.h"

namespace lossd::conformance {

// Extents of named dimensions, as the inputs have them; N keeps its several leading extents. What is known first stays.
class Extents {
 public:
  void Learn(const google::protobuf::FieldDescriptor* field, const v1::Tensor& tensor);
  void Set(const std::string& name, int64_t extent);
  // 1 for a dimension that is not known.
  std::vector<int64_t> ShapeOf(const google::protobuf::FieldDescriptor* field) const;

 private:
  std::map<std::string, std::vector<int64_t>> known_;
};

// Names of the dimensions in the rules of an operation's tensors: "N", "H", "B", ...
std::vector<std::string> DimensionNames(const google::protobuf::Descriptor* message);

// The dtype of a tensor that nobody has chosen: of a gradient that of the input, else the first of its rule. `model`: where the rule allows
// every real type and the tensor is no gradient of an input that is there.
v1::DType DefaultDType(const google::protobuf::Message& op,
                       const google::protobuf::FieldDescriptor* field, v1::DType model);

}  // namespace lossd::conformance

#endif  // LOSSD_CLIENT_CONFORMANCE_EXTENTS_H_
