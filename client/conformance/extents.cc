#include "client/conformance/extents.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/conformance/elements.h"
#include "client/conformance/fields.h"
#include "lossd/v1/options.pb.h"

namespace lossd::conformance {
namespace {

using google::protobuf::FieldDescriptor;

// "B+1", "2P+1": factor times the named dimension, plus 0 or 1.
struct Dim {
  int64_t factor = 1;
  std::string name;  // empty: a number
  int64_t plus = 0;
};

Dim ParseDim(absl::string_view text) {
  Dim dim;
  if (absl::ConsumeSuffix(&text, "+1")) dim.plus = 1;
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits > 0 && !absl::SimpleAtoi(text.substr(0, digits), &dim.factor)) dim.factor = 1;
  dim.name = std::string(text.substr(digits));
  return dim;
}

std::vector<std::string> DimsOf(const FieldDescriptor* field) {
  return absl::StrSplit(field->options().GetExtension(v1::tensor).shape(), ' ', absl::SkipEmpty());
}

}  // namespace

void Extents::Learn(const FieldDescriptor* field, const v1::Tensor& tensor) {
  const std::vector<std::string> dims = DimsOf(field);
  const int lead = tensor.shape_size() - static_cast<int>(dims.size()) + 1;
  if (lead < 1) return;
  for (size_t d = 0; d < dims.size(); ++d) {
    const int first = d == 0 ? 0 : lead + static_cast<int>(d) - 1;
    std::vector<int64_t> extents(tensor.shape().begin() + first,
                                 tensor.shape().begin() + (d == 0 ? lead : first + 1));
    const Dim dim = ParseDim(dims[d]);
    extents.back() = (extents.back() - dim.plus) / dim.factor;
    known_.emplace(dim.name, std::move(extents));
  }
}

void Extents::Set(const std::string& name, int64_t extent) {
  known_.emplace(name, std::vector<int64_t>{extent});
}

std::vector<int64_t> Extents::ShapeOf(const FieldDescriptor* field) const {
  std::vector<int64_t> shape;
  for (const std::string& dim : DimsOf(field)) {
    const Dim parsed = ParseDim(dim);
    if (parsed.name.empty()) {
      shape.push_back(parsed.factor);
      continue;
    }
    const auto found = known_.find(parsed.name);
    std::vector<int64_t> extents = found == known_.end() ? std::vector<int64_t>{1} : found->second;
    extents.back() = extents.back() * parsed.factor + parsed.plus;
    shape.insert(shape.end(), extents.begin(), extents.end());
  }
  return shape;
}

std::vector<std::string> DimensionNames(const google::protobuf::Descriptor* message) {
  std::vector<std::string> names;
  for (const FieldPath& path : AllFields(message)) {
    if (!IsTensor(path)) continue;
    for (const std::string& dim : DimsOf(path.back())) {
      const std::string name = ParseDim(dim).name;
      const bool known = std::find(names.begin(), names.end(), name) != names.end();
      if (!name.empty() && !known) names.push_back(name);
    }
  }
  return names;
}

v1::DType DefaultDType(const google::protobuf::Message& op, const FieldDescriptor* field,
                       v1::DType model) {
  switch (field->options().GetExtension(v1::tensor).dtypes()) {
    case v1::INT32:
      return v1::I32;
    case v1::INDEX:
      return v1::I64;
    case v1::MASK:
      return v1::U8;
    case v1::MODEL: {
      absl::string_view name = field->name();
      const FieldPath input =
          absl::ConsumePrefix(&name, "grad_") ? FindField(op.GetDescriptor(), name) : FieldPath();
      const v1::Tensor* tensor = input.empty() ? nullptr : FindTensor(op, input);
      return tensor != nullptr && IsReal(tensor->dtype()) ? tensor->dtype() : model;
    }
    default:
      return v1::F32;
  }
}

}  // namespace lossd::conformance
