// Whether a reply is what a vector expects.
#ifndef LOSSD_CLIENT_CONFORMANCE_COMPARE_H_
#define LOSSD_CLIENT_CONFORMANCE_COMPARE_H_

#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "lossd/v1/service.pb.h"
#include "nlohmann/json.hpp"

namespace lossd::conformance {

// Compares `reply`, the answer to the operation `op`, with the members expect, rtol, atol, tol and exact of `vector`. Appends one
// sentence for each output, number or metric that differs. Throws what nlohmann::json throws on a malformed vector.
void CompareReply(const nlohmann::json& vector, const google::protobuf::Message& op,
                  const v1::OpReply& reply, std::vector<std::string>* differences);

}  // namespace lossd::conformance

#endif  // LOSSD_CLIENT_CONFORMANCE_COMPARE_H_
