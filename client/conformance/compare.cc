#include "client/conformance/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/conformance/elements.h"
#include "client/conformance/fields.h"
#include "client/conformance/request.h"
#include "lossd/v1/options.pb.h"

namespace lossd::conformance {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using nlohmann::json;

struct Tolerance {
  double relative = 0;
  double absolute = 0;
  bool exact = false;
};

Tolerance ToleranceOf(const json& vector, const std::string& name) {
  Tolerance tolerance;
  tolerance.relative = vector.value("rtol", 0.0);
  tolerance.absolute = vector.value("atol", 0.0);
  if (vector.contains("tol") && vector["tol"].contains(name)) {
    tolerance.relative = vector["tol"][name].at(0).get<double>();
    tolerance.absolute = vector["tol"][name].at(1).get<double>();
  }
  for (const json& exact : vector.value("exact", json::array())) {
    if (exact == name) tolerance.exact = true;
  }
  return tolerance;
}

bool Near(double got, double want, const Tolerance& tolerance) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
  if (std::isinf(want) || std::isinf(got) || tolerance.exact) return got == want;
  return std::fabs(got - want) <= tolerance.absolute + tolerance.relative * std::fabs(want);
}

std::string Number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string Describe(const std::string& what, double got, double want, const Tolerance& tolerance) {
  std::string text = absl::StrCat(what, " is ", Number(got), ", must be ", Number(want));
  if (tolerance.exact || !std::isfinite(want)) return absl::StrCat(text, " exactly");
  return absl::StrCat(text, " within ",
                      Number(tolerance.absolute + tolerance.relative * std::fabs(want)));
}

double WantedNumber(const json& value) {
  const auto number = ParseNumber(value);
  return number.ok() ? *number : throw json::other_error::create(501, "no number", &value);
}

// Which of the N rows take part: those that mask and target do not exclude. Empty if the operation has neither.
class Rows {
 public:
  explicit Rows(const Message& op) {
    const auto mask = Values(op, "mask");
    const auto target = Values(op, "target");
    int64_t ignore_index = 0;
    const FieldPath ignore = FindField(op.GetDescriptor(), "ignore_index");
    if (!ignore.empty()) {
      const Message* holder = &op;
      for (size_t i = 0; i + 1 < ignore.size(); ++i) {
        holder = &holder->GetReflection()->GetMessage(*holder, ignore[i]);
      }
      ignore_index = holder->GetReflection()->GetInt64(*holder, ignore.back());
    }
    counted_.assign(std::max(mask.size(), target.size()), true);
    for (size_t i = 0; i < mask.size(); ++i) counted_[i] = counted_[i] && mask[i] != 0;
    for (size_t i = 0; i < target.size() && !ignore.empty(); ++i) {
      counted_[i] = counted_[i] && target[i] != static_cast<double>(ignore_index);
    }
    weight_ = Values(op, "row_weight");
  }

  // Whether elements of the output `name` in this row must be 0 (-1 for an id) to the last bit. A row of weight 0 has statistics,
  // but neither value nor gradient.
  bool MustBeExact(const std::string& name, int64_t row) const {
    const auto i = static_cast<size_t>(row);
    if (i < counted_.size() && !counted_[i]) return true;
    const bool weighed = name == "row_loss" || name == "grad_hidden";
    return weighed && i < weight_.size() && weight_[i] == 0;
  }

 private:
  static std::vector<double> Values(const Message& op, const char* name) {
    const FieldPath path = FindField(op.GetDescriptor(), name);
    const v1::Tensor* tensor = path.empty() ? nullptr : FindTensor(op, path);
    if (tensor == nullptr) return {};
    return DecodeElements(tensor->dtype(), tensor->inline_data());
  }

  std::vector<bool> counted_;
  std::vector<double> weight_;
};

// Elements for each row of N of an output that has rows; 0 if its first dimension is not N.
int64_t RowWidth(const FieldDescriptor* field, const std::vector<int64_t>& shape) {
  const std::vector<std::string> dims =
      absl::StrSplit(field->options().GetExtension(v1::tensor).shape(), ' ');
  if (dims[0] != "N" || dims.size() > shape.size()) return 0;
  int64_t width = 1;
  for (size_t d = 1; d < dims.size(); ++d) width *= shape[shape.size() - d];
  return width;
}

std::string IndexText(int64_t element, const std::vector<int64_t>& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = element % shape[d];
    element /= shape[d];
  }
  return absl::StrCat("[", absl::StrJoin(index, ", "), "]");
}

// The expected elements of one output.
struct Wanted {
  v1::DType dtype = v1::F32;
  std::vector<int64_t> shape;
  std::vector<double> data;
  std::vector<int64_t> at;  // positions of data, if only some elements are given
  bool partial = false;
};

Wanted ParseWanted(const json& value) {
  Wanted wanted;
  if (!value.is_object()) {  // a scalar output
    wanted.shape = {1};
    wanted.data = {WantedNumber(value)};
    return wanted;
  }
  const absl::Status head = ParseTensorHead(value, &wanted.dtype, &wanted.shape);
  if (!head.ok()) throw json::other_error::create(501, std::string(head.message()), &value);
  if (value.contains("formula")) {
    v1::Tensor tensor;
    const absl::Status parsed = ParseTensor(value, &tensor);
    if (!parsed.ok()) throw json::other_error::create(501, std::string(parsed.message()), &value);
    wanted.data = DecodeElements(tensor.dtype(), tensor.inline_data());
    return wanted;
  }
  for (const json& element : value.at("data")) wanted.data.push_back(WantedNumber(element));
  wanted.partial = value.contains("at");
  const int64_t elements = ElementCount(wanted.shape);
  if (wanted.partial) {
    for (const json& at : value["at"]) {
      int64_t flat = 0;
      if (at.is_array()) {
        for (size_t d = 0; d < wanted.shape.size(); ++d) {
          flat = flat * wanted.shape[d] + at.at(d).get<int64_t>();
        }
      } else {
        flat = at.get<int64_t>();
      }
      if (flat < 0 || flat >= elements) throw json::other_error::create(501, "at is outside", &at);
      wanted.at.push_back(flat);
    }
  }
  const size_t given = wanted.partial ? wanted.at.size() : static_cast<size_t>(elements);
  if (wanted.data.size() != given) {
    throw json::other_error::create(501, "data does not fit the shape", &value);
  }
  return wanted;
}

// Elements that no tolerance excuses: those of rows that do not count, where the vector expects nothing else than 0 (-1 for ids).
bool IsExactElement(const std::string& name, const Rows& rows, int64_t width, int64_t element,
                    double want) {
  return width > 0 && (want == 0 || want == -1) && rows.MustBeExact(name, element / width);
}

// A partly given output: rows that do not count must be 0 everywhere.
void CheckIgnoredRows(const std::string& name, const Wanted& wanted, const std::vector<double>& got,
                      const Rows& rows, int64_t width, std::vector<std::string>* differences) {
  if (width == 0 || !IsReal(wanted.dtype)) return;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] != 0 && rows.MustBeExact(name, static_cast<int64_t>(i) / width)) {
      differences->push_back(absl::StrCat(name, IndexText(i, wanted.shape), " is ", Number(got[i]),
                                          ", must be 0 exactly: its row does not count"));
      return;
    }
  }
}

void CompareElements(const std::string& name, const Wanted& wanted, const std::vector<double>& got,
                     const Rows& rows, int64_t width, const Tolerance& given,
                     std::vector<std::string>* differences) {
  int wrong = 0;
  std::string first;
  for (size_t i = 0; i < wanted.data.size(); ++i) {
    const int64_t element = wanted.partial ? wanted.at[i] : static_cast<int64_t>(i);
    double want = wanted.data[i];
    Tolerance tolerance = given;
    if (!IsReal(wanted.dtype) || IsExactElement(name, rows, width, element, want)) {
      tolerance.exact = true;
    }
    if (tolerance.exact) want = RoundTo(wanted.dtype, want);
    if (Near(got[element], want, tolerance)) continue;
    if (wrong++ == 0) {
      first = Describe(absl::StrCat(name, IndexText(element, wanted.shape)), got[element], want,
                       tolerance);
    }
  }
  if (wrong > 1) absl::StrAppend(&first, " (and ", wrong - 1, " more elements)");
  if (wrong > 0) differences->push_back(first);
}

void CompareOutput(const json& vector, const std::string& name, const FieldPath& path,
                   const v1::OpReply& reply, const Rows& rows,
                   std::vector<std::string>* differences) {
  const json& expected = vector["expect"][name];
  const Wanted wanted = ParseWanted(expected);
  const auto found = reply.outputs().find(name);
  if (found == reply.outputs().end()) {
    differences->push_back(absl::StrCat(name, " is not in the reply"));
    return;
  }
  const v1::Tensor& tensor = found->second;
  const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
  if (tensor.dtype() != wanted.dtype || shape != wanted.shape) {
    differences->push_back(absl::StrCat(
        name, " is ", DTypeName(tensor.dtype()), " [", absl::StrJoin(shape, ", "), "], must be ",
        DTypeName(wanted.dtype), " [", absl::StrJoin(wanted.shape, ", "), "]"));
    return;
  }
  const size_t bytes = ElementCount(shape) * DTypeSize(wanted.dtype);
  if (tensor.inline_data().size() != bytes) {
    differences->push_back(
        absl::StrCat(name, " has ", tensor.inline_data().size(), " bytes, must have ", bytes));
    return;
  }
  const std::vector<double> got = DecodeElements(wanted.dtype, tensor.inline_data());
  const Tolerance tolerance = ToleranceOf(vector, name);
  const int64_t width = RowWidth(path.back(), shape);
  CompareElements(name, wanted, got, rows, width, tolerance, differences);
  if (wanted.partial) CheckIgnoredRows(name, wanted, got, rows, width, differences);
  if (expected.is_object() && expected.contains("norm")) {
    double squares = 0;
    for (const double element : got) squares += element * element;
    Tolerance loose = tolerance;
    loose.exact = false;
    const double want = WantedNumber(expected["norm"]);
    if (!Near(std::sqrt(squares), want, loose)) {
      differences->push_back(
          Describe(absl::StrCat("norm of ", name), std::sqrt(squares), want, loose));
    }
  }
}

// A number of the reply, such as sum or count.
void CompareNumber(const json& vector, const std::string& name, const v1::OpReply& reply,
                   std::vector<std::string>* differences) {
  const double want = WantedNumber(vector["expect"][name]);
  const FieldDescriptor* field = v1::OpReply::descriptor()->FindFieldByName(name);
  const auto* reflection = reply.GetReflection();
  if (field == nullptr || field->is_repeated() || !reflection->HasField(reply, field)) {
    differences->push_back(absl::StrCat(name, " is not in the reply"));
    return;
  }
  Tolerance tolerance = ToleranceOf(vector, name);
  double got = 0;
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
    got = static_cast<double>(reflection->GetInt64(reply, field));
    tolerance.exact = true;
  } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
    got = reflection->GetDouble(reply, field);
  } else {
    differences->push_back(absl::StrCat(name, " is not a number in the reply"));
    return;
  }
  if (!Near(got, want, tolerance)) differences->push_back(Describe(name, got, want, tolerance));
}

void CompareMetric(const std::string& name, const json& expected, const v1::OpReply& reply,
                   std::vector<std::string>* differences) {
  const auto found = reply.metrics().find(name);
  if (found == reply.metrics().end()) {
    differences->push_back(absl::StrCat("metric ", name, " is not in the reply"));
    return;
  }
  const v1::Metric& got = found->second;
  const int64_t count = expected.at("count").get<int64_t>();
  if (got.count() != count) {
    differences->push_back(
        absl::StrCat("metric ", name, ".count is ", got.count(), ", must be ", count));
  }
  double scale = 1e-3;
  for (const char* part : {"sum", "min", "max"}) {
    const double want = expected.contains(part) ? WantedNumber(expected[part]) : 0;
    if (std::isfinite(want)) scale = std::max(scale, std::fabs(want));
  }
  const std::pair<const char*, double> parts[] = {
      {"sum", got.sum()}, {"min", got.min()}, {"max", got.max()}};
  for (const auto& [part, value] : parts) {
    if (!expected.contains(part)) continue;
    const double want = WantedNumber(expected[part]);
    const Tolerance tolerance = {1e-4, 1e-5 * scale, false};
    if (!Near(value, want, tolerance)) {
      differences->push_back(
          Describe(absl::StrCat("metric ", name, ".", part), value, want, tolerance));
    }
  }
}

}  // namespace

void CompareReply(const json& vector, const Message& op, const v1::OpReply& reply,
                  std::vector<std::string>* differences) {
  const Rows rows(op);
  for (const auto& [name, expected] : vector.at("expect").items()) {
    if (name == "metrics") {
      for (const auto& [metric, numbers] : expected.items()) {
        CompareMetric(metric, numbers, reply, differences);
      }
      continue;
    }
    const FieldPath path = FindField(op.GetDescriptor(), name);
    if (!path.empty() && IsOutput(path)) {
      CompareOutput(vector, name, path, reply, rows, differences);
    } else {
      CompareNumber(vector, name, reply, differences);
    }
  }
}

}  // namespace lossd::conformance
