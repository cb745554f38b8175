// Valid requests made from nothing but an operation's descriptor, for tests that hold for every operation.
#ifndef LOSSD_TESTS_TESTING_REQUEST_BUILDER_H_
#define LOSSD_TESTS_TESTING_REQUEST_BUILDER_H_

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "kernels/core/schema.h"
#include "lossd/v1/service.pb.h"

namespace lossd {

// What a request shall hold beside its required fields.
struct RequestSpec {
  std::string op;       // message name
  std::string inputs;   // names of optional inputs, separated by blanks
  std::string options;  // "softcap=5 kl_estimator=K3 terms[0].beta=0.1"
  std::string outputs;  // names
  uint64_t seed = 1;
  v1::DType model = v1::F32;  // of tensors that may have any real type
};

// Builds the op message inside a lossd.v1.Op; all tensors are inline. Small extents: N 7, H 5, V 11, B 3, P 2, K 4, TeacherH 6,
// TeacherV 11, A 2, D 8, R 3, F 6, C 9. A tensor x for which the options say x_kind=PROBS or LOGPROBS has such elements.
// Targets and ids are valid, logarithms lie between -3 and -0.3, weights between 0.2 and 1.5, cu_seqlens cover the rows,
// positions are below P.
class RequestBuilder {
 public:
  // Aborts the test on a name that the operation does not have.
  v1::Op Build(const OpSchema& schema, const RequestSpec& spec);

  std::map<std::string, int64_t> dims = {{"N", 7},           {"H", 5},        {"V", 11},
                                         {"B", 3},           {"K", 4},        {"P", 2},
                                         {"VocabTotal", 11}, {"TopK", 3},     {"Upstream", 1},
                                         {"RefH", 3},        {"TeacherH", 6}, {"TeacherV", 11},
                                         {"A", 2},           {"D", 8},        {"R", 3},
                                         {"F", 6},           {"C", 9}};

 private:
  v1::Tensor MakeInput(const FieldRule& rule, const RequestSpec& spec);
  std::vector<int64_t> ShapeOf(const FieldRule& rule) const;

  std::mt19937_64 random_;
};

// The op message of a lossd.v1.Op, for reading and writing.
google::protobuf::Message* MutableRequest(v1::Op* op);

// Elements of an inline tensor as doubles, and back.
std::vector<double> Elements(const v1::Tensor& tensor);
void SetElements(const std::vector<double>& values, v1::Tensor* tensor);

}  // namespace lossd

#endif  // LOSSD_TESTS_TESTING_REQUEST_BUILDER_H_
