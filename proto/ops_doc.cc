// ops_doc DESCRIPTOR_SET: prints proto/OPERATIONS.md, the reference of all operations, from the comments and options of the protos.
#include <cctype>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "lossd/v1/options.pb.h"

namespace lossd {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptorSet;
using google::protobuf::SourceLocation;

// The leading comment as one line.
template <class D>
std::string CommentOf(const D* descriptor) {
  SourceLocation location;
  if (!descriptor->GetSourceLocation(&location)) return "";
  std::istringstream words(location.leading_comments);
  std::string text;
  for (std::string word; words >> word;) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string Escape(const std::string& text) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '|') escaped += '\\';
    escaped += letter;
  }
  return escaped;
}

std::string Number(double value) {
  std::ostringstream out;
  out << std::setprecision(10) << value;
  return out.str();
}

// POLICY_KIND_PPO -> PPO.
std::string ShortName(const EnumValueDescriptor* value) {
  std::string prefix;
  for (const char letter : value->type()->name()) {
    if (letter >= 'A' && letter <= 'Z' && !prefix.empty()) prefix += '_';
    prefix += static_cast<char>(letter >= 'a' ? letter - 'a' + 'A' : letter);
  }
  prefix += '_';
  return value->name().rfind(prefix, 0) == 0 ? value->name().substr(prefix.size()) : value->name();
}

const char* DTypeText(v1::DTypeSet set) {
  switch (set) {
    case v1::MODEL:
      return "f32, bf16, f16";
    case v1::FLOAT32:
      return "f32";
    case v1::INDEX:
      return "i32, i64";
    case v1::MASK:
      return "u8";
    case v1::INT32:
      return "i32";
    default:
      return "";
  }
}

// A list of sub-messages, whose fields are options of each entry.
bool IsList(const FieldDescriptor* field) {
  return field->is_repeated() && field->message_type() != nullptr;
}

std::string TypeText(const FieldDescriptor* field) {
  if (IsList(field)) return "list";
  if (field->enum_type() != nullptr)
    return "[" + field->enum_type()->name() + "](#" + [&] {
      std::string anchor = field->enum_type()->name();
      for (char& letter : anchor) letter = static_cast<char>(std::tolower(letter));
      return anchor;
    }() + ")";
  return field->cpp_type_name();
}

std::string DefaultText(const FieldDescriptor* field, const v1::ScalarRule& rule) {
  if (rule.required()) return "required";
  if (rule.has_absent()) return rule.absent();
  if (!field->has_default_value()) return "";
  if (field->enum_type() != nullptr) return ShortName(field->default_value_enum());
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(field->default_value_double());
    case FieldDescriptor::CPPTYPE_INT64:
      return std::to_string(field->default_value_int64());
    case FieldDescriptor::CPPTYPE_BOOL:
      return field->default_value_bool() ? "true" : "false";
    case FieldDescriptor::CPPTYPE_STRING:
      return "\"" + field->default_value_string() + "\"";
    default:
      return "";
  }
}

std::string BoundText(const v1::ScalarRule& rule) {
  std::string text;
  const auto add = [&](bool has, const char* sign, double value) {
    if (has) text += (text.empty() ? "" : ", ") + std::string(sign) + " " + Number(value);
  };
  add(rule.has_above(), ">", rule.above());
  add(rule.has_min(), ">=", rule.min());
  add(rule.has_below(), "<", rule.below());
  add(rule.has_max(), "<=", rule.max());
  if (rule.unimplemented()) text += (text.empty() ? "" : ", ") + std::string("not in this build");
  return text;
}

// Fields of an operation with flat sub-messages opened.
void Collect(const Descriptor* message, std::vector<const FieldDescriptor*>* fields) {
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor* field = message->field(i);
    if (field->options().GetExtension(v1::flat)) {
      Collect(field->message_type(), fields);
    } else {
      fields->push_back(field);
    }
  }
}

bool IsTensor(const FieldDescriptor* field) { return field->options().HasExtension(v1::tensor); }

void PrintTensors(const std::vector<const FieldDescriptor*>& fields, v1::Role role) {
  std::cout << (role == v1::INPUT
                    ? "\n| input | shape | dtype | unit | |\n|---|---|---|---|---|\n"
                    : "\n| output | shape | dtype | unit | |\n|---|---|---|---|---|\n");
  for (const FieldDescriptor* field : fields) {
    if (!IsTensor(field)) continue;
    const v1::TensorRule& rule = field->options().GetExtension(v1::tensor);
    if (rule.role() != role) continue;
    std::string note = CommentOf(field);
    const auto add = [&](const std::string& more) { note += (note.empty() ? "" : " ") + more; };
    if (rule.required()) add("Required.");
    if (rule.differentiable()) add("Has a gradient.");
    if (rule.has_takes()) add("May take the memory of donated `" + rule.takes() + "`.");
    if (rule.has_mode()) add("Overwritten or added to by `" + rule.mode() + "`.");
    if (rule.has_min_element()) add("Elements >= " + Number(rule.min_element()) + ".");
    if (rule.finite()) add("Finite.");
    std::cout << "| `" << field->name() << "` | [" << rule.shape() << "] | "
              << DTypeText(rule.dtypes()) << " | " << rule.units() << " | " << Escape(note)
              << " |\n";
  }
}

// prefix: "terms[]." for the options of a list's entries.
void PrintOption(const std::string& prefix, const FieldDescriptor* field,
                 std::vector<const EnumDescriptor*>* enums) {
  const v1::ScalarRule& rule = field->options().GetExtension(v1::scalar);
  if (field->enum_type() != nullptr) enums->push_back(field->enum_type());
  std::cout << "| `" << prefix << field->name() << "` | " << TypeText(field) << " | "
            << DefaultText(field, rule) << " | " << BoundText(rule) << " | " << rule.units()
            << " | " << Escape(CommentOf(field)) << " |\n";
  if (!IsList(field)) return;
  for (int i = 0; i < field->message_type()->field_count(); ++i) {
    PrintOption(field->name() + "[].", field->message_type()->field(i), enums);
  }
}

void PrintOptions(const std::vector<const FieldDescriptor*>& fields,
                  std::vector<const EnumDescriptor*>* enums) {
  std::cout << "\n| option | type | default | bounds | unit | |\n|---|---|---|---|---|---|\n";
  for (const FieldDescriptor* field : fields) {
    if (!IsTensor(field)) PrintOption("", field, enums);
  }
}

void PrintOp(const Descriptor* message, std::vector<const EnumDescriptor*>* enums) {
  const v1::OpInfo& info = message->options().GetExtension(v1::op);
  std::cout << "\n## " << message->name() << "\n\n"
            << CommentOf(message) << "\n\n```\n"
            << info.formula() << "\n```\n\nSource: " << info.source() << ".\n";
  std::vector<const FieldDescriptor*> fields;
  Collect(message, &fields);
  PrintTensors(fields, v1::INPUT);
  PrintOptions(fields, enums);
  PrintTensors(fields, v1::OUTPUT);
  if (info.reply_size() == 0) return;
  std::cout << "\nReply:";
  for (int i = 0; i < info.reply_size(); ++i)
    std::cout << (i == 0 ? " `" : ", `") << info.reply(i) << "`";
  std::cout << (info.has_objective() ? ", and `metrics`.\n" : ".\n");
}

void PrintEnum(const EnumDescriptor* type) {
  std::cout << "\n### " << type->name() << "\n\n"
            << CommentOf(type) << "\n\n| value | |\n|---|---|\n";
  for (int i = 0; i < type->value_count(); ++i) {
    const EnumValueDescriptor* value = type->value(i);
    if (value->number() == 0) continue;
    std::cout << "| `" << ShortName(value) << "` | " << Escape(CommentOf(value)) << " |\n";
  }
}

constexpr char kHead[] = R"(# Operations

Generated from the comments and options of `proto/lossd/v1/*.proto` by `make docs`; do not edit.

N rows (token positions), H hidden size, V vocabulary rows held by the call, K valid ids (or the width of an id list), B sequences,
P pairs of sequences, RefH hidden size of a reference head, F feed-forward size, C columns. In Rope A heads of D elements, R pairs, P positions.
N may be sent as several leading extents. `[N H]` is row-major with any row stride; the last dimension has stride 1.
An output is computed if and only if the request gives it. A field that has no meaning under the other options is refused; nothing is
ignored. Rows that do not count (masked, or target = ignore_index) give 0 (ids: -1) and gradient 0, whatever lies in them.
On the wire an enum value carries its type's prefix (`POLICY_KIND_PPO`); lossctl and Python also take the short name (`PPO`).
)";

int Main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: ops_doc DESCRIPTOR_SET\n";
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  FileDescriptorSet set;
  if (!set.ParseFromIstream(&file)) {
    std::cerr << argv[1] << ": not a descriptor set\n";
    return 1;
  }
  google::protobuf::DescriptorPool pool;
  for (const auto& proto : set.file()) {
    if (pool.BuildFile(proto) == nullptr) return 1;
  }
  std::cout << kHead;
  std::vector<const EnumDescriptor*> enums;
  const Descriptor* op = pool.FindMessageTypeByName("lossd.v1.Op");
  for (int i = 0; i < op->field_count(); ++i) PrintOp(op->field(i)->message_type(), &enums);
  std::cout << "\n## Enums\n";
  std::set<const EnumDescriptor*> seen;
  for (const EnumDescriptor* type : enums) {
    if (seen.insert(type).second) PrintEnum(type);
  }
  return 0;
}

}  // namespace
}  // namespace lossd

int main(int argc, char** argv) { return lossd::Main(argc, argv); }
