// lossctl eval: one operation from JSON.
#include <fstream>
#include <iostream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "client/conformance/request.h"
#include "client/ctl/commands.h"
#include "client/ctl/reply_json.h"
#include "client/ctl/target.h"
#include "nlohmann/json.hpp"

namespace lossd::ctl {
namespace {

using conformance::WantedOutput;
using nlohmann::json;

absl::StatusOr<std::string> ReadInput(const Arguments& arguments) {
  std::stringstream text;
  if (arguments.words.empty() || arguments.words[0] == "-") {
    text << std::cin.rdbuf();
  } else {
    std::ifstream file(arguments.words[0]);
    if (!file) return absl::NotFoundError(absl::StrCat(arguments.words[0], ": cannot be read"));
    text << file.rdbuf();
  }
  return text.str();
}

// Outputs are names, or objects with name, dtype and shape.
absl::StatusOr<WantedOutput> ParseOutput(const json& value) {
  WantedOutput output;
  if (value.is_string()) {
    output.name = value.get<std::string>();
    return output;
  }
  if (!value.is_object() || !value.contains("name") || !value["name"].is_string()) {
    return absl::InvalidArgumentError(
        "outputs: must be names, or objects with name, dtype and shape");
  }
  output.name = value["name"].get<std::string>();
  const absl::Status head = conformance::ParseTensorHead(value, &output.dtype, &output.shape);
  if (!head.ok()) return absl::InvalidArgumentError(absl::StrCat(output.name, ".", head.message()));
  return output;
}

absl::StatusOr<v1::Op> ParseRequest(const std::string& text) {
  json request;
  try {
    request = json::parse(text);
  } catch (const json::parse_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request must be a JSON object: ", error.what()));
  }
  if (!request.is_object()) return absl::InvalidArgumentError("the request must be a JSON object");
  for (const auto& [key, value] : request.items()) {
    if (key != "op" && key != "inputs" && key != "options" && key != "outputs") {
      return absl::InvalidArgumentError(
          absl::StrCat(key, ": must be op, inputs, options or outputs"));
    }
  }
  const auto op = request.find("op");
  if (op == request.end() || !op->is_string())
    return absl::InvalidArgumentError("op: must be a name, is absent");
  std::vector<WantedOutput> outputs;
  for (const json& value : request.value("outputs", json::array())) {
    auto output = ParseOutput(value);
    if (!output.ok()) return output.status();
    outputs.push_back(*std::move(output));
  }
  return conformance::BuildOp(op->get<std::string>(), request.value("inputs", json::object()),
                              request.value("options", json::object()), outputs);
}

int RunEval(const Arguments& arguments) {
  const auto text = ReadInput(arguments);
  if (!text.ok()) return Report("eval", text.status());
  absl::StatusOr<v1::Op> op;
  // What the JSON library throws about a request that is not what it should be.
  try {
    op = ParseRequest(*text);
  } catch (const json::exception& error) {
    op = absl::InvalidArgumentError(error.what());
  }
  if (!op.ok()) return Report("eval", op.status());
  auto target = OpenTarget(arguments);
  if (!target.ok()) return Report("eval", target.status());
  const auto reply = target->client->Run(*op);
  if (!reply.ok()) return Report("eval", reply.status());
  std::cout << ReplyToJson(*reply).dump(1, ' ', true, json::error_handler_t::replace) << "\n";
  return 0;
}

}  // namespace

Command EvalCommand() {
  return {{"eval",
           "[FILE]",
           0,
           1,
           "Runs one operation from JSON in FILE or on stdin: {\"op\": NAME, \"inputs\": {...}, "
           "\"options\": {...}, \"outputs\": [NAME, ...]}.\n"
           "  Tensors are {\"dtype\": \"f32\", \"shape\": [2, 3], \"data\": [...]} or have a "
           "\"formula\" of i, j, k. The reply is JSON.",
           {kTargetFlag}},
          RunEval};
}

}  // namespace lossd::ctl
