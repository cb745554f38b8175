// lossctl ops: the operations and their fields, from the descriptors that this program carries.
#include <iostream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/conformance/fields.h"
#include "client/ctl/commands.h"
#include "lossd/v1/options.pb.h"
#include "lossd/v1/service.pb.h"

namespace lossd::ctl {
namespace {

using conformance::FieldPath;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

const char* DTypes(v1::DTypeSet set) {
  switch (set) {
    case v1::MODEL:
      return "f32, bf16 or f16";
    case v1::FLOAT32:
      return "f32";
    case v1::INDEX:
      return "i64 or i32";
    case v1::MASK:
      return "u8";
    case v1::INT32:
      return "i32";
    default:
      return "?";
  }
}

std::string EnumNames(const FieldDescriptor* field) {
  std::vector<std::string> names;
  for (int i = 0; i < field->enum_type()->value_count(); ++i) {
    const auto* value = field->enum_type()->value(i);
    if (value->number() != 0) names.push_back(conformance::ShortEnumName(value));
  }
  return absl::StrCat("one of ", absl::StrJoin(names, ", "));
}

// Bounds of integers are written as integers.
std::string Bound(double value) {
  const bool whole = value == static_cast<double>(static_cast<int64_t>(value));
  return whole ? absl::StrCat(static_cast<int64_t>(value)) : absl::StrCat(value);
}

std::string OptionMustBe(const FieldDescriptor* field, const v1::ScalarRule& rule) {
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) return EnumNames(field);
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) return "true or false";
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) return "a string";
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE)
    return absl::StrCat("list of ", field->message_type()->name());
  std::vector<std::string> bounds;
  if (rule.has_above()) bounds.push_back(absl::StrCat("above ", Bound(rule.above())));
  if (rule.has_min()) bounds.push_back(absl::StrCat("at least ", Bound(rule.min())));
  if (rule.has_below()) bounds.push_back(absl::StrCat("below ", Bound(rule.below())));
  if (rule.has_max()) bounds.push_back(absl::StrCat("at most ", Bound(rule.max())));
  const char* kind =
      field->cpp_type() == FieldDescriptor::CPPTYPE_INT64 ? "integer" : "finite number";
  return absl::StrCat(kind, bounds.empty() ? "" : " ", absl::StrJoin(bounds, " and "));
}

std::string DefaultOf(const FieldDescriptor* field, const v1::ScalarRule& rule) {
  if (rule.required()) return "required";
  if (rule.has_absent()) return rule.absent();
  if (!field->has_default_value()) return "-";
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_ENUM:
      return conformance::ShortEnumName(field->default_value_enum());
    case FieldDescriptor::CPPTYPE_BOOL:
      return field->default_value_bool() ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(field->default_value_int64());
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return absl::StrCat(field->default_value_double());
    default:
      return absl::StrCat("\"", field->default_value_string(), "\"");
  }
}

std::string Row(absl::string_view name, absl::string_view must_be, absl::string_view absent,
                absl::string_view units) {
  std::string row = absl::StrFormat("  %-22s %-52s %-12s %s", name, must_be, absent, units);
  absl::StripTrailingAsciiWhitespace(&row);
  return absl::StrCat(row, "\n");
}

std::string Units(absl::string_view units) {
  return units.empty() || units == "1" ? std::string() : std::string(units);
}

// An option; of a list also the options of its entries.
std::string OptionRows(const FieldDescriptor* field, absl::string_view prefix) {
  const v1::ScalarRule& rule = field->options().GetExtension(v1::scalar);
  const char* note = rule.unimplemented() ? " (not in this build)" : "";
  std::string rows =
      Row(absl::StrCat(prefix, field->name()), absl::StrCat(OptionMustBe(field, rule), note),
          DefaultOf(field, rule), Units(rule.units()));
  if (field->message_type() == nullptr) return rows;
  for (int i = 0; i < field->message_type()->field_count(); ++i) {
    rows += OptionRows(field->message_type()->field(i), absl::StrCat(field->name(), "[]."));
  }
  return rows;
}

// One of the three parts of an operation: inputs, options, outputs.
void ShowPart(const Descriptor* message, const char* title, bool tensors, v1::Role role) {
  std::string rows;
  for (const FieldPath& path : conformance::AllFields(message)) {
    const FieldDescriptor* field = path.back();
    if (conformance::IsTensor(path) != tensors) continue;
    if (!tensors) {
      rows += OptionRows(field, "");
      continue;
    }
    const v1::TensorRule& rule = field->options().GetExtension(v1::tensor);
    if (rule.role() != role) continue;
    std::string must_be = absl::StrCat("[", absl::StrJoin(absl::StrSplit(rule.shape(), ' '), ", "),
                                       "] ", DTypes(rule.dtypes()));
    if (rule.finite()) must_be += ", finite";
    if (rule.has_min_element()) absl::StrAppend(&must_be, ", at least ", rule.min_element());
    if (rule.has_mode()) absl::StrAppend(&must_be, ", see ", rule.mode());
    if (rule.has_takes()) absl::StrAppend(&must_be, ", may take donated ", rule.takes());
    if (rule.differentiable()) absl::StrAppend(&must_be, ", has a gradient");
    rows += Row(field->name(), must_be,
                role == v1::OUTPUT ? ""
                : rule.required()  ? "required"
                                   : "-",
                Units(rule.units()));
  }
  if (!rows.empty()) {
    std::cout << title << "\n"
              << Row("field", "must be", role == v1::OUTPUT ? "" : "absent", "units") << rows;
  }
}

void ShowOp(const Descriptor* message) {
  const v1::OpInfo& info = message->options().GetExtension(v1::op);
  std::cout << message->name() << "\n  " << info.formula() << "\n  source: " << info.source()
            << "\n";
  ShowPart(message, "inputs", true, v1::INPUT);
  ShowPart(message, "options", false, v1::INPUT);
  ShowPart(message, "outputs (each is computed if it is given)", true, v1::OUTPUT);
  std::cout << "reply\n  " << absl::StrJoin(info.reply(), ", ")
            << (info.reply().empty() ? "only its outputs" : "") << "\n";
}

int RunOps(const Arguments& arguments) {
  if (!arguments.words.empty()) {
    const FieldDescriptor* field = conformance::FindOp(arguments.words[0]);
    if (field == nullptr) {
      std::cerr << "lossctl ops: no operation " << arguments.words[0]
                << "; lossctl ops lists them\n";
      return 1;
    }
    ShowOp(field->message_type());
    return 0;
  }
  const auto* oneof = v1::Op::descriptor()->oneof_decl(0);
  for (int i = 0; i < oneof->field_count(); ++i) {
    const Descriptor* message = oneof->field(i)->message_type();
    std::cout << message->name() << "\n  " << message->options().GetExtension(v1::op).formula()
              << "\n";
  }
  return 0;
}

}  // namespace

Command OpsCommand() {
  return {{"ops",
           "[NAME]",
           0,
           1,
           "Lists the operations; with a name: its inputs, options and outputs, what each must be, "
           "defaults, units.",
           {}},
          RunOps};
}

}  // namespace lossd::ctl
