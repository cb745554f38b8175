#include "client/conformance/vectors.h"

#include <dirent.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/conformance/compare.h"
#include "client/conformance/fields.h"
#include "client/conformance/request.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "lossd/v1/error.pb.h"
#include "nlohmann/json.hpp"

namespace lossd::conformance {
namespace {

using nlohmann::json;

constexpr char kDetailUrl[] = "type.googleapis.com/lossd.v1.ErrorDetail";

v1::ErrorDetail DetailOf(const absl::Status& status) {
  v1::ErrorDetail detail;
  const auto payload = status.GetPayload(kDetailUrl);
  if (payload) detail.ParseFromString(std::string(*payload));
  return detail;
}

// The reply but for what may differ between equal calls, in a form whose equality is that of every bit.
std::string Fingerprint(const v1::OpReply& reply) {
  v1::OpReply copy = reply;
  copy.clear_plan();
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    copy.SerializeToCodedStream(&coded);
  }
  return bytes;
}

std::vector<WantedOutput> WantedOutputs(const json& vector, const std::string& op) {
  std::vector<WantedOutput> wanted;
  if (!vector.contains("expect")) {
    for (const json& name : vector.value("outputs", json::array())) {
      wanted.push_back({name.get<std::string>()});
    }
    return wanted;
  }
  for (const auto& [name, value] : vector["expect"].items()) {
    WantedOutput output = {name, v1::F32, {1}};
    if (value.is_object() && value.contains("dtype")) {
      const absl::Status status = ParseTensorHead(value, &output.dtype, &output.shape);
      if (!status.ok()) throw json::other_error::create(501, std::string(status.message()), &value);
    } else {
      // A number is a scalar output if the operation has one of that name, else a number of the reply.
      const auto* field = FindOp(op);
      const FieldPath path = FindField(field->message_type(), name);
      if (path.empty() || !IsOutput(path)) continue;
    }
    wanted.push_back(std::move(output));
  }
  return wanted;
}

Outcome& Fail(Outcome& outcome, absl::string_view text) {
  outcome.kind = Outcome::kFailed;
  outcome.text = std::string(text);
  return outcome;
}

Outcome& Skip(Outcome& outcome, absl::string_view text) {
  outcome.kind = Outcome::kSkipped;
  outcome.text = std::string(text);
  return outcome;
}

Outcome& CheckRefusal(const json& vector, const absl::Status& status, Outcome& outcome) {
  const std::string want_code = vector["expect_error"].at("code").get<std::string>();
  const std::string want_field = vector["expect_error"].value("field", "");
  const std::string code = absl::StatusCodeToString(status.code());
  const v1::ErrorDetail detail = DetailOf(status);
  if (status.ok()) {
    return Fail(outcome, absl::StrCat("was computed, must be refused with ", want_code, " for ",
                                      want_field));
  }
  if (code != want_code || detail.field() != want_field) {
    return Fail(outcome, absl::StrCat("was refused with ", code, " for \"", detail.field(), "\" (",
                                      status.message(), "), must be ", want_code, " for \"",
                                      want_field, "\""));
  }
  outcome.kind = Outcome::kPassed;
  return outcome;
}

Outcome& RunParsed(const json& vector, const RunFunction& run, Outcome& outcome) {
  if (!vector.contains("expect") && !vector.contains("expect_error") &&
      !vector.contains("expect_ranks")) {
    return Fail(outcome, "the vector has no expect, expect_error or expect_ranks");
  }
  if (FindOp(outcome.op) == nullptr) {
    return Skip(outcome, absl::StrCat("no operation ", outcome.op, " in this build"));
  }
  if (vector.contains("shards") || vector.contains("expect_ranks")) {
    return Skip(outcome, "needs a group of shards");
  }
  const auto built =
      BuildOp(outcome.op, vector.at("inputs"), vector.value("options", json::object()),
              WantedOutputs(vector, outcome.op));
  if (!built.ok())
    return Fail(outcome, absl::StrCat("cannot be built: ", built.status().message()));
  const std::string before = built->SerializeAsString();

  std::string first;
  std::vector<std::string> differences;
  const int repeat = std::max(1, vector.value("repeat", 1));
  for (int i = 0; i < repeat; ++i) {
    const auto reply = run(*built);
    if (built->SerializeAsString() != before)
      differences.push_back("an input was changed by the call");
    const bool wants_unimplemented =
        vector.contains("expect_error") && vector["expect_error"].at("code") == "UNIMPLEMENTED";
    if (reply.status().code() == absl::StatusCode::kUnimplemented && !wants_unimplemented) {
      if (DetailOf(reply.status()).field().empty()) {
        return Fail(outcome,
                    absl::StrCat("UNIMPLEMENTED without a field: ", reply.status().message()));
      }
      return Skip(outcome, absl::StrCat("unimplemented: ", reply.status().message()));
    }
    if (vector.contains("expect_error")) {
      if (CheckRefusal(vector, reply.status(), outcome).kind == Outcome::kFailed) return outcome;
      continue;
    }
    if (!reply.ok()) {
      return Fail(outcome, absl::StrCat("was refused: ", reply.status().ToString()));
    }
    if (i == 0) {
      first = Fingerprint(*reply);
      CompareReply(vector, *SelectedOp(*built), *reply, &differences);
    } else if (Fingerprint(*reply) != first) {
      differences.push_back(absl::StrCat("call ", i + 1, " gives other bits than the first"));
    }
  }
  if (!differences.empty()) return Fail(outcome, absl::StrJoin(differences, "; "));
  outcome.kind = Outcome::kPassed;
  return outcome;
}

void IdentifyParsed(const json& vector, std::string* id, std::string* op) {
  if (!vector.is_object()) return;
  if (vector.contains("id") && vector["id"].is_string()) *id = vector["id"].get<std::string>();
  if (vector.contains("op") && vector["op"].is_string()) *op = vector["op"].get<std::string>();
}

}  // namespace

Outcome RunVector(absl::string_view line, const RunFunction& run) {
  Outcome outcome;
  // A file that is not what it should be is a failure with a text, whatever the JSON library throws about it.
  try {
    const json vector = json::parse(line.begin(), line.end(), nullptr, false);
    IdentifyParsed(vector, &outcome.id, &outcome.op);
    if (outcome.id.empty() || outcome.op.empty()) {
      Fail(outcome, "not a JSON object with id and op");
    } else {
      RunParsed(vector, run, outcome);
    }
  } catch (const json::exception& error) {
    Fail(outcome, absl::StrCat("malformed vector: ", error.what()));
  }
  return outcome;
}

void Identify(absl::string_view line, std::string* id, std::string* op) {
  IdentifyParsed(json::parse(line.begin(), line.end(), nullptr, false), id, op);
}

absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) lines.push_back(std::move(line));
  }
  return lines;
}

absl::StatusOr<std::vector<std::string>> FindFiles(const std::string& directory) {
  DIR* opened = opendir(directory.c_str());
  if (opened == nullptr) return absl::NotFoundError(absl::StrCat(directory, ": no such directory"));
  std::vector<std::string> paths;
  while (const dirent* entry = readdir(opened)) {
    if (absl::EndsWith(entry->d_name, ".jsonl")) {
      paths.push_back(absl::StrCat(directory, "/", entry->d_name));
    }
  }
  closedir(opened);
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace lossd::conformance
