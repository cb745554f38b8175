// From the JSON of a vector, or of `lossctl eval`, to the operation's message.
#ifndef LOSSD_CLIENT_CONFORMANCE_REQUEST_H_
#define LOSSD_CLIENT_CONFORMANCE_REQUEST_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "lossd/v1/service.pb.h"
#include "nlohmann/json.hpp"

namespace lossd::conformance {

// An output that the request asks for. Without a dtype or shape they follow from the inputs and the field's rule.
struct WantedOutput {
  std::string name;
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  std::vector<int64_t> shape;
};

// A JSON tensor: dtype, shape, and data or formula. Errors: INVALID_ARGUMENT that says what is wrong with it.
absl::Status ParseTensor(const nlohmann::json& json, v1::Tensor* tensor);
// dtype and shape only.
absl::Status ParseTensorHead(const nlohmann::json& json, v1::DType* dtype,
                             std::vector<int64_t>* shape);
// A JSON number, or "nan", "inf", "-inf".
absl::StatusOr<double> ParseNumber(const nlohmann::json& json);

// Sets one option by its leaf name. An enum name that does not exist becomes a number that the enum does not have.
absl::Status SetOption(const nlohmann::json& json, absl::string_view name,
                       google::protobuf::Message* op);

// The operation with all tensors inline. An input that has the name of an output is that destination's old value.
// Errors: INVALID_ARGUMENT; NOT_FOUND if the operation is not part of lossd.v1.Op.
absl::StatusOr<v1::Op> BuildOp(const std::string& op_name, const nlohmann::json& inputs,
                               const nlohmann::json& options,
                               const std::vector<WantedOutput>& outputs);

// The one message that is set in `op`; nullptr if none is.
const google::protobuf::Message* SelectedOp(const v1::Op& op);
google::protobuf::Message* MutableSelectedOp(v1::Op* op);

}  // namespace lossd::conformance

#endif  // LOSSD_CLIENT_CONFORMANCE_REQUEST_H_
