// The call that lossctl explain asks about: shapes from flags, no numbers.
#ifndef LOSSD_CLIENT_CTL_EXPLAIN_OP_H_
#define LOSSD_CLIENT_CTL_EXPLAIN_OP_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/conformance/extents.h"
#include "lossd/v1/service.pb.h"
#include "nlohmann/json.hpp"

namespace lossd::ctl {

struct CallShape {
  std::string op;  // message name
  v1::DType model = v1::BF16;
  std::vector<std::pair<std::string, int64_t>>
      extents;  // by dimension name; of others there are defaults
  std::vector<std::pair<std::string, std::string>> options;  // name, JSON or a word
  std::vector<std::string> with;  // tensors beside those that are there anyway
  std::vector<std::string> without;
  std::vector<std::pair<std::string, v1::DType>> dtypes;  // of single tensors
};

// Builds the call: required inputs, the loss, and the gradients of the inputs that are there.
class ExplainedOp {
 public:
  // Errors: INVALID_ARGUMENT, NOT_FOUND (operation).
  static absl::StatusOr<ExplainedOp> Create(const CallShape& shape);

  const v1::Op& op() const { return op_; }
  // Adds a tensor that an error has asked for. False if the operation has none of that name, or the caller did not want it.
  bool Add(const std::string& name);
  // "N 8192, H 4096, V 128256; hidden, weight, target -> loss, grad_hidden"
  std::string Describe() const;
  // The cost of one product of all rows, N H V; 0 for an operation without a head.
  double Nhv() const;

 private:
  explicit ExplainedOp(const CallShape& shape) : shape_(shape) {}
  absl::Status Build();
  absl::Status AddTensors();
  void AddTensor(const std::string& name);
  int64_t DefaultExtent(const std::string& dimension, const nlohmann::json& options) const;
  int64_t ExtentOf(const std::string& dimension) const;

  CallShape shape_;
  v1::Op op_;
  google::protobuf::Message* message_ = nullptr;
  std::vector<std::pair<std::string, int64_t>> dimensions_;
  conformance::Extents extents_;
};

}  // namespace lossd::ctl

#endif  // LOSSD_CLIENT_CTL_EXPLAIN_OP_H_
