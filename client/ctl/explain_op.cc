#include "client/ctl/explain_op.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/conformance/fields.h"
#include "client/conformance/request.h"
#include "lossd/v1/options.pb.h"

namespace lossd::ctl {
namespace {

using conformance::FieldPath;
using nlohmann::json;

// Where nobody says otherwise: sequences of a batch, pairs, ids of a row.
constexpr int64_t kSequences = 8;
constexpr int64_t kPairs = 4;
constexpr int64_t kColumns = 8;

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A number, true, a list; anything else is a word.
json ParseValue(const std::string& text) {
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? json(text) : value;
}

}  // namespace

absl::StatusOr<ExplainedOp> ExplainedOp::Create(const CallShape& shape) {
  ExplainedOp explained(shape);
  const absl::Status status = explained.Build();
  if (!status.ok()) return status;
  // It points into the operation, which moves.
  explained.message_ = nullptr;
  return explained;
}

absl::Status ExplainedOp::Build() {
  const auto* field = conformance::FindOp(shape_.op);
  if (field == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("no operation ", shape_.op, "; lossctl ops lists them"));
  }
  message_ = op_.GetReflection()->MutableMessage(&op_, field);
  json options = json::object();
  for (const auto& [name, text] : shape_.options) {
    options[name] = ParseValue(text);
    const absl::Status status = conformance::SetOption(options[name], name, message_);
    if (!status.ok()) return status;
  }
  const std::vector<std::string> names = conformance::DimensionNames(message_->GetDescriptor());
  for (const auto& [name, extent] : shape_.extents) {
    const bool common = name == "N" || name == "H" || name == "V";
    if (!Contains(names, name) && !common) {
      return absl::InvalidArgumentError(absl::StrCat("--extent: must be of one of ",
                                                     absl::StrJoin(names, ", "), ", is of ", name));
    }
  }
  for (const std::string& name : names) {
    dimensions_.emplace_back(name, DefaultExtent(name, options));
    extents_.Set(name, dimensions_.back().second);
  }
  return AddTensors();
}

int64_t ExplainedOp::ExtentOf(const std::string& dimension) const {
  for (const auto& [name, extent] : shape_.extents) {
    if (name == dimension) return extent;
  }
  return 1;
}

int64_t ExplainedOp::DefaultExtent(const std::string& dimension, const json& options) const {
  for (const auto& [name, extent] : shape_.extents) {
    if (name == dimension) return extent;
  }
  if (dimension == "RefH" || dimension == "TeacherH") return ExtentOf("H");
  if (dimension == "TeacherV" || dimension == "VocabTotal") return ExtentOf("V");
  if (dimension == "B") return kSequences;
  if (dimension == "P") return kPairs;
  if (dimension == "K") return kColumns;
  if (dimension == "TopK") {
    const auto top_k = options.find("top_k");
    return top_k != options.end() && top_k->is_number_integer() ? top_k->get<int64_t>() : kColumns;
  }
  const auto reduction = options.find("reduction");
  const bool by_row = reduction != options.end() && *reduction == "NONE";
  return dimension == "Upstream" && by_row ? ExtentOf("N") : 1;
}

void ExplainedOp::AddTensor(const std::string& name) {
  const FieldPath path = conformance::FindField(message_->GetDescriptor(), name);
  v1::DType dtype = conformance::DefaultDType(*message_, path.back(), shape_.model);
  for (const auto& [of, given] : shape_.dtypes) {
    if (of == name) dtype = given;
  }
  v1::Tensor* tensor = conformance::MutableTensor(message_, path);
  if (tensor->dtype() != v1::DTYPE_UNSPECIFIED) return;
  tensor->set_dtype(dtype);
  for (const int64_t extent : extents_.ShapeOf(path.back())) tensor->add_shape(extent);
}

absl::Status ExplainedOp::AddTensors() {
  const auto* descriptor = message_->GetDescriptor();
  std::vector<std::string> named = shape_.with;
  named.insert(named.end(), shape_.without.begin(), shape_.without.end());
  for (const auto& [name, dtype] : shape_.dtypes) named.push_back(name);
  for (const std::string& name : named) {
    const FieldPath path = conformance::FindField(descriptor, name);
    if (path.empty() || !conformance::IsTensor(path)) {
      return absl::InvalidArgumentError(absl::StrCat(descriptor->name(), " has no tensor ", name));
    }
  }
  for (const FieldPath& path : conformance::AllFields(descriptor)) {
    if (!conformance::IsTensor(path) || conformance::IsOutput(path)) continue;
    const std::string& name = path.back()->name();
    const bool required = path.back()->options().GetExtension(v1::tensor).required();
    if (required || Contains(shape_.with, name)) AddTensor(name);
  }
  for (const FieldPath& path : conformance::AllFields(descriptor)) {
    if (!conformance::IsOutput(path)) continue;
    const std::string& name = path.back()->name();
    // A gradient of an input that is there.
    bool wanted = name == "loss" || Contains(shape_.with, name);
    if (absl::StartsWith(name, "grad_")) {
      const FieldPath input = conformance::FindField(descriptor, name.substr(5));
      wanted |= !input.empty() && conformance::FindTensor(*message_, input) != nullptr;
    }
    if (wanted && !Contains(shape_.without, name)) AddTensor(name);
  }
  return absl::OkStatus();
}

bool ExplainedOp::Add(const std::string& name) {
  message_ = conformance::MutableSelectedOp(&op_);
  const FieldPath path = conformance::FindField(message_->GetDescriptor(), name);
  const bool can = !path.empty() && conformance::IsTensor(path) &&
                   !Contains(shape_.without, name) &&
                   conformance::FindTensor(*message_, path) == nullptr;
  if (can) AddTensor(name);
  message_ = nullptr;
  return can;
}

std::string ExplainedOp::Describe() const {
  const google::protobuf::Message& message = *conformance::SelectedOp(op_);
  std::vector<std::string> dimensions;
  for (const auto& [name, extent] : dimensions_) {
    if (name == "N" || name == "H" || name == "V") {
      dimensions.push_back(absl::StrCat(name, " ", extent));
    }
  }
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  for (const FieldPath& path : conformance::AllFields(message.GetDescriptor())) {
    if (!conformance::IsTensor(path) || conformance::FindTensor(message, path) == nullptr) continue;
    (conformance::IsOutput(path) ? outputs : inputs).push_back(path.back()->name());
  }
  return absl::StrCat(absl::StrJoin(dimensions, ", "), "; ", absl::StrJoin(inputs, ", "), " -> ",
                      outputs.empty() ? "nothing" : absl::StrJoin(outputs, ", "));
}

double ExplainedOp::Nhv() const {
  double nhv = 1;
  int found = 0;
  for (const auto& [name, extent] : dimensions_) {
    if (name != "N" && name != "H" && name != "V") continue;
    nhv *= static_cast<double>(extent);
    ++found;
  }
  return found == 3 ? nhv : 0;
}

}  // namespace lossd::ctl
