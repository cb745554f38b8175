#include "kernels/core/schema.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/core/tensor_view.h"

namespace lossd {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

static_assert(static_cast<int>(v1::F32) == static_cast<int>(DType::kF32));
static_assert(static_cast<int>(v1::BF16) == static_cast<int>(DType::kBF16));
static_assert(static_cast<int>(v1::F16) == static_cast<int>(DType::kF16));
static_assert(static_cast<int>(v1::I32) == static_cast<int>(DType::kI32));
static_assert(static_cast<int>(v1::I64) == static_cast<int>(DType::kI64));
static_assert(static_cast<int>(v1::U8) == static_cast<int>(DType::kU8));

std::string ShapeText(const v1::Tensor& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.shape(), ", "), "]");
}

// The rules of a list's entries.
absl::Status AddElements(const FieldDescriptor* list, std::vector<FieldRule>* rules) {
  const Descriptor* message = list->message_type();
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor* field = message->field(i);
    if (field->is_repeated() || field->message_type() != nullptr) {
      return absl::InternalError(absl::StrCat(field->full_name(), ": not an option"));
    }
    FieldRule rule;
    rule.name = field->name();
    rule.index = i;
    rule.path = {field};
    rule.descriptor = field;
    rule.scalar = field->options().GetExtension(v1::scalar);
    rules->push_back(std::move(rule));
  }
  return absl::OkStatus();
}

absl::Status AddFields(const Descriptor* message, std::vector<const FieldDescriptor*> path,
                       std::vector<FieldRule>* rules) {
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor* field = message->field(i);
    path.push_back(field);
    if (field->options().GetExtension(v1::flat)) {
      LOSSD_RETURN_IF_ERROR(AddFields(field->message_type(), path, rules));
      path.pop_back();
      continue;
    }
    FieldRule rule;
    rule.name = field->name();
    rule.index = static_cast<int>(rules->size());
    rule.path = path;
    rule.descriptor = field;
    rule.is_tensor = field->message_type() == v1::Tensor::descriptor();
    if (rule.is_tensor != field->options().HasExtension(v1::tensor)) {
      return absl::InternalError(
          absl::StrCat(field->full_name(), ": a tensor needs the option (lossd.v1.tensor)"));
    }
    rule.tensor = field->options().GetExtension(v1::tensor);
    rule.scalar = field->options().GetExtension(v1::scalar);
    if (field->is_repeated() && !rule.is_tensor && field->message_type() != nullptr) {
      LOSSD_RETURN_IF_ERROR(AddElements(field, &rule.elements));
    }
    if (rule.is_tensor) {
      rule.dims = absl::StrSplit(rule.tensor.shape(), ' ', absl::SkipEmpty());
      if (rule.tensor.dtypes() == v1::DTYPE_SET_UNSPECIFIED || rule.dims.empty()) {
        return absl::InternalError(absl::StrCat(field->full_name(), ": shape or dtypes missing"));
      }
      for (const std::string& dim : rule.dims) rule.extents.push_back(ParseDim(dim));
    }
    for (const FieldRule& other : *rules) {
      if (other.name == rule.name) {
        return absl::InternalError(absl::StrCat(message->full_name(), ": two fields ", rule.name));
      }
    }
    rules->push_back(std::move(rule));
    path.pop_back();
  }
  return absl::OkStatus();
}

// Whether a message or one inside it has a field that its type does not know. Every call asks: no names are made up for it.
bool HasUnknown(const Message& message) {
  const Reflection* reflection = message.GetReflection();
  if (!reflection->GetUnknownFields(message).empty()) return true;
  const Descriptor* type = message.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (field->is_repeated()) {
      for (int k = 0; k < reflection->FieldSize(message, field); ++k) {
        if (HasUnknown(reflection->GetRepeatedMessage(message, field, k))) return true;
      }
    } else if (reflection->HasField(message, field) &&
               HasUnknown(reflection->GetMessage(message, field))) {
      return true;
    }
  }
  return false;
}

// The first unknown field of the message or of its flat sub-messages; a proto2 enum value that does not exist is one too.
absl::Status CheckUnknown(const Message& message, const std::string& prefix) {
  const Reflection* reflection = message.GetReflection();
  const auto& unknown = reflection->GetUnknownFields(message);
  if (!unknown.empty()) {
    const int number = unknown.field(0).number();
    const FieldDescriptor* field = message.GetDescriptor()->FindFieldByNumber(number);
    if (field == nullptr) {
      return FieldError(absl::StrCat(prefix, "#", number), "a field that this server knows",
                        absl::StrCat("field number ", number));
    }
    std::vector<std::string> names;
    if (field->enum_type() != nullptr) {
      for (int i = 0; i < field->enum_type()->value_count(); ++i) {
        if (field->enum_type()->value(i)->number() != 0) {
          names.push_back(ShortEnumName(field->enum_type()->value(i)));
        }
      }
    }
    const bool is_number = unknown.field(0).type() == google::protobuf::UnknownField::TYPE_VARINT;
    return FieldError(absl::StrCat(prefix, field->name()),
                      names.empty() ? "of its own wire type"
                                    : absl::StrCat("one of ", absl::StrJoin(names, ", ")),
                      is_number ? absl::StrCat(unknown.field(0).varint()) : "another wire type");
  }
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const bool flat = field->options().GetExtension(v1::flat);
    if (field->is_repeated()) {
      for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
        LOSSD_RETURN_IF_ERROR(CheckUnknown(reflection->GetRepeatedMessage(message, field, i),
                                           absl::StrCat(prefix, field->name(), "[", i, "].")));
      }
    } else {
      LOSSD_RETURN_IF_ERROR(CheckUnknown(reflection->GetMessage(message, field),
                                         flat ? prefix : absl::StrCat(prefix, field->name(), ".")));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBounds(const FieldRule& rule, const std::string& prefix, double value) {
  const v1::ScalarRule& bound = rule.scalar;
  const bool bad = !std::isfinite(value) || (bound.has_min() && value < bound.min()) ||
                   (bound.has_max() && value > bound.max()) ||
                   (bound.has_above() && value <= bound.above()) ||
                   (bound.has_below() && value >= bound.below());
  if (!bad) return absl::OkStatus();
  std::vector<std::string> parts;
  if (bound.has_above()) parts.push_back(absl::StrCat("above ", bound.above()));
  if (bound.has_min()) parts.push_back(absl::StrCat("at least ", bound.min()));
  if (bound.has_below()) parts.push_back(absl::StrCat("below ", bound.below()));
  if (bound.has_max()) parts.push_back(absl::StrCat("at most ", bound.max()));
  if (parts.empty() || !std::isfinite(value)) parts.push_back("finite");
  return FieldError(absl::StrCat(prefix, rule.name), absl::StrJoin(parts, " and "),
                    absl::StrCat(value));
}

// prefix: of the name in errors.
absl::Status CheckScalar(const Message& holder, const FieldRule& rule, const std::string& prefix) {
  const Reflection* reflection = holder.GetReflection();
  const FieldDescriptor* field = rule.descriptor;
  if (rule.scalar.unimplemented()) {
    // Its default says nothing, so it may be present.
    const bool is_default = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING
                                ? reflection->GetString(holder, field).empty()
                                : false;
    if (!is_default) {
      return UnimplementedError(absl::StrCat(prefix, rule.name), "absent: this build lacks it",
                                "present");
    }
  }
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return CheckBounds(rule, prefix, reflection->GetDouble(holder, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return CheckBounds(rule, prefix, static_cast<double>(reflection->GetInt64(holder, field)));
    case FieldDescriptor::CPPTYPE_ENUM:
      if (reflection->GetEnumValue(holder, field) == 0) {
        return FieldError(absl::StrCat(prefix, rule.name), "a value with a meaning", "unspecified");
      }
      return absl::OkStatus();
    default:
      return absl::OkStatus();
  }
}

// The entries of a list of sub-messages.
absl::Status CheckElements(const Message& holder, const FieldRule& rule) {
  const Reflection* reflection = holder.GetReflection();
  for (int i = 0; i < reflection->FieldSize(holder, rule.descriptor); ++i) {
    const Message& entry = reflection->GetRepeatedMessage(holder, rule.descriptor, i);
    const std::string prefix = absl::StrCat(rule.name, "[", i, "].");
    for (const FieldRule& element : rule.elements) {
      if (HasField(entry, element)) {
        LOSSD_RETURN_IF_ERROR(CheckScalar(entry, element, prefix));
      } else if (element.scalar.required()) {
        return FieldError(absl::StrCat(prefix, element.name), "given", "absent");
      }
    }
  }
  return absl::OkStatus();
}

bool IsAllowed(v1::DTypeSet set, v1::DType dtype) {
  for (const DType allowed : DTypesOf(set)) {
    if (static_cast<int>(allowed) == static_cast<int>(dtype)) return true;
  }
  return false;
}

std::string DTypeText(v1::DTypeSet set) {
  std::vector<std::string> names;
  for (const DType dtype : DTypesOf(set)) names.push_back(NameOf(dtype));
  return absl::StrJoin(names, ", ");
}

// Extents, strides and element count of one tensor, without looking at other tensors.
absl::Status CheckLayout(const FieldRule& rule, const v1::Tensor& tensor) {
  if (!IsAllowed(rule.tensor.dtypes(), tensor.dtype())) {
    return FieldError(rule.name, absl::StrCat("of type ", DTypeText(rule.tensor.dtypes())),
                      NameOf(static_cast<DType>(tensor.dtype())));
  }
  if (tensor.shape_size() > kMaxRank) {
    return FieldError(rule.name, absl::StrCat("of at most ", kMaxRank, " dimensions"),
                      absl::StrCat("of ", tensor.shape_size()));
  }
  if (tensor.strides_size() != 0 && tensor.strides_size() != tensor.shape_size()) {
    return FieldError(rule.name, "given with one stride for each dimension",
                      absl::StrCat(tensor.strides_size(), " strides"));
  }
  int64_t elements = 1;
  bool empty = false;
  for (const int64_t extent : tensor.shape()) {
    if (extent < 0) return FieldError(rule.name, "of extents >= 0", ShapeText(tensor));
    if (extent == 0) empty = true;
  }
  for (const int64_t extent : tensor.shape()) {
    if (empty) break;
    if (elements > (int64_t{1} << 46) / extent) {
      return FieldError(rule.name, "of at most 2^46 elements", ShapeText(tensor));
    }
    elements *= extent;
  }
  int64_t reach = 0;
  for (int d = 0; d < tensor.strides_size() && !empty; ++d) {
    const int64_t stride = tensor.strides(d);
    if (stride < 0 || stride > (int64_t{1} << 46)) {
      return FieldError(rule.name, "of strides between 0 and 2^46", absl::StrCat(stride));
    }
    const int64_t steps = tensor.shape(d) - 1;
    if (steps > 0 && stride > (int64_t{1} << 46) / steps) {
      return FieldError(rule.name, "within 2^46 elements", absl::StrCat("stride ", stride));
    }
    reach += steps * stride;
    if (rule.is_output() && stride == 0 && tensor.shape(d) > 1) {
      return FieldError(rule.name, "an output whose elements do not share memory", "of stride 0");
    }
  }
  if (reach > (int64_t{1} << 46)) return FieldError(rule.name, "within 2^46 elements", "larger");
  // The last of several dimensions is read in vectors.
  if (rule.dims.size() > 1 && tensor.strides_size() > 0 && !empty) {
    const int last = tensor.strides_size() - 1;
    if (tensor.strides(last) != 1 && tensor.shape(last) > 1) {
      return UnimplementedError(rule.name, "of stride 1 in the last dimension",
                                absl::StrCat("of stride ", tensor.strides(last)));
    }
  }
  return absl::OkStatus();
}

// Matches the extents with the named dimensions.
absl::Status BindDims(const FieldRule& rule, const v1::Tensor& tensor, Dims* dims) {
  const int named = static_cast<int>(rule.dims.size());
  const bool many_rows = rule.dims[0] == "N";  // N may be several extents
  if (tensor.shape_size() < named || (!many_rows && tensor.shape_size() != named)) {
    return FieldError(rule.name, absl::StrCat("of shape [", absl::StrJoin(rule.dims, ", "), "]"),
                      ShapeText(tensor));
  }
  const int lead = tensor.shape_size() - named + 1;
  for (int d = 0; d < named; ++d) {
    int64_t extent = 1;
    if (d == 0) {
      for (int k = 0; k < lead; ++k) extent *= tensor.shape(k);
    } else {
      extent = tensor.shape(lead + d - 1);
    }
    const DimTerm& dim = rule.extents[d];
    if (dim.name.empty()) {
      if (extent != dim.plus) {
        return FieldError(rule.name, absl::StrCat("of extent ", dim.plus, " in dimension ", d),
                          ShapeText(tensor));
      }
      continue;
    }
    if (extent < dim.plus) return FieldError(rule.name, "of at least 1 element", ShapeText(tensor));
    if ((extent - dim.plus) % dim.factor != 0) {
      return FieldError(rule.name, absl::StrCat("of extent ", rule.dims[d]), ShapeText(tensor));
    }
    const int64_t of_name = (extent - dim.plus) / dim.factor;
    if (!dims->Has(dim.name)) {
      dims->Set(dim.name, of_name);
    } else if ((*dims)[dim.name] != of_name) {
      return FieldError(
          rule.name,
          absl::StrCat("of extent ", dim.Extent((*dims)[dim.name]), " in dimension ", rule.dims[d]),
          ShapeText(tensor));
    }
  }
  return absl::OkStatus();
}

const Message* FindHolder(const Message& request, const FieldRule& rule) {
  const Message* holder = &request;
  for (size_t i = 0; i + 1 < rule.path.size(); ++i) {
    if (!holder->GetReflection()->HasField(*holder, rule.path[i])) return nullptr;
    holder = &holder->GetReflection()->GetMessage(*holder, rule.path[i]);
  }
  return holder;
}

bool AreNeighbours(const FieldRule& a, const FieldRule& b) {
  return a.path.size() == b.path.size() &&
         (a.path.size() == 1 || a.path[a.path.size() - 2] == b.path[b.path.size() - 2]);
}

bool IsPresent(const Message& holder, const FieldRule& rule) {
  const Reflection* reflection = holder.GetReflection();
  return rule.descriptor->is_repeated() ? reflection->FieldSize(holder, rule.descriptor) > 0
                                        : reflection->HasField(holder, rule.descriptor);
}

}  // namespace

DimTerm ParseDim(absl::string_view text) {
  DimTerm term;
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number)) {
    term.plus = number;
    return term;
  }
  if (absl::ConsumeSuffix(&text, "+1")) term.plus = 1;
  size_t digits = 0;
  while (digits < text.size() && absl::ascii_isdigit(text[digits])) ++digits;
  if (digits > 0) term.factor = std::atoll(std::string(text.substr(0, digits)).c_str());
  term.name = std::string(text.substr(digits));
  return term;
}

int64_t Dims::operator[](absl::string_view name) const {
  const int64_t* found = Find(name);
  return found == nullptr ? 0 : *found;
}

bool Dims::Has(absl::string_view name) const { return Find(name) != nullptr; }

void Dims::Set(absl::string_view name, int64_t extent) {
  for (auto& [known, of_known] : extents_) {
    if (known == name) {
      of_known = extent;
      return;
    }
  }
  extents_.emplace_back(std::string(name), extent);
}

const int64_t* Dims::Find(absl::string_view name) const {
  for (const auto& [known, extent] : extents_) {
    if (known == name) return &extent;
  }
  return nullptr;
}

absl::StatusOr<OpSchema> OpSchema::Create(const Descriptor* message) {
  OpSchema schema;
  schema.message_ = message;
  schema.info_ = message->options().GetExtension(v1::op);
  if (schema.info_.formula().empty()) {
    return absl::InternalError(
        absl::StrCat(message->full_name(), ": option (lossd.v1.op) missing"));
  }
  LOSSD_RETURN_IF_ERROR(AddFields(message, {}, &schema.fields_));
  for (const FieldRule& rule : schema.fields_) {
    if (rule.tensor.has_mode() && schema.Find(rule.tensor.mode()) == nullptr) {
      return absl::InternalError(absl::StrCat(rule.name, ": no option ", rule.tensor.mode()));
    }
    if (!rule.tensor.has_takes()) continue;
    const FieldRule* input = schema.Find(rule.tensor.takes());
    if (!rule.is_output() || input == nullptr || !input->is_input()) {
      return absl::InternalError(absl::StrCat(rule.name, ": no input ", rule.tensor.takes()));
    }
  }
  return schema;
}

const FieldRule* OpSchema::Find(absl::string_view name) const {
  for (const FieldRule& rule : fields_) {
    if (rule.name == name) return &rule;
  }
  return nullptr;
}

bool OpSchema::CanDonate(absl::string_view input) const {
  for (const FieldRule& rule : fields_) {
    if (rule.tensor.has_takes() && rule.tensor.takes() == input) return true;
  }
  return false;
}

absl::StatusOr<Dims> OpSchema::Check(const Message& request) const {
  if (HasUnknown(request)) LOSSD_RETURN_IF_ERROR(CheckUnknown(request, ""));
  Dims dims;
  const FieldRule* last = nullptr;
  const Message* holder = nullptr;
  for (const FieldRule& rule : fields_) {
    // Neighbours lie in one message: every call comes through here.
    if (last == nullptr || !AreNeighbours(*last, rule)) holder = FindHolder(request, rule);
    last = &rule;
    if (holder == nullptr || !IsPresent(*holder, rule)) {
      if (rule.tensor.required() || rule.scalar.required()) {
        return FieldError(rule.name, "given", "absent");
      }
      continue;
    }
    if (rule.is_tensor) {
      const auto& tensor = static_cast<const v1::Tensor&>(
          holder->GetReflection()->GetMessage(*holder, rule.descriptor));
      LOSSD_RETURN_IF_ERROR(CheckLayout(rule, tensor));
      LOSSD_RETURN_IF_ERROR(BindDims(rule, tensor, &dims));
      if (rule.is_input() && tensor.place_case() == v1::Tensor::PLACE_NOT_SET) {
        bool empty = false;
        for (const int64_t extent : tensor.shape()) empty = empty || extent == 0;
        if (!empty) return FieldError(rule.name, "an input with a place", "without one");
      }
    } else if (!rule.elements.empty()) {
      LOSSD_RETURN_IF_ERROR(CheckElements(*holder, rule));
    } else if (rule.descriptor->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      LOSSD_RETURN_IF_ERROR(CheckScalar(*holder, rule, ""));
    }
  }
  return dims;
}

bool HasField(const Message& request, const FieldRule& rule) {
  const Message* holder = FindHolder(request, rule);
  return holder != nullptr && IsPresent(*holder, rule);
}

const v1::Tensor& GetTensor(const Message& request, const FieldRule& rule) {
  const Message* holder = FindHolder(request, rule);
  if (holder == nullptr) return v1::Tensor::default_instance();
  return static_cast<const v1::Tensor&>(
      holder->GetReflection()->GetMessage(*holder, rule.descriptor));
}

Message* MutableHolder(Message* request, const FieldRule& rule) {
  Message* holder = request;
  for (size_t i = 0; i + 1 < rule.path.size(); ++i) {
    holder = holder->GetReflection()->MutableMessage(holder, rule.path[i]);
  }
  return holder;
}

v1::Tensor* MutableTensor(Message* request, const FieldRule& rule) {
  Message* holder = MutableHolder(request, rule);
  return static_cast<v1::Tensor*>(holder->GetReflection()->MutableMessage(holder, rule.descriptor));
}

std::string ShortEnumName(const EnumValueDescriptor* value) {
  std::string prefix;  // KlEstimator -> KL_ESTIMATOR_
  for (const char letter : value->type()->name()) {
    if (absl::ascii_isupper(letter) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(letter);
  }
  prefix += '_';
  return std::string(absl::StripPrefix(value->name(), prefix));
}

const EnumValueDescriptor* FindEnumValue(const EnumDescriptor* type, absl::string_view name) {
  for (int i = 0; i < type->value_count(); ++i) {
    if (type->value(i)->name() == name || ShortEnumName(type->value(i)) == name) {
      return type->value(i);
    }
  }
  return nullptr;
}

const std::vector<DType>& DTypesOf(v1::DTypeSet set) {
  static const auto* const kModel = new std::vector<DType>{DType::kF32, DType::kBF16, DType::kF16};
  static const auto* const kFloat32 = new std::vector<DType>{DType::kF32};
  static const auto* const kIndex = new std::vector<DType>{DType::kI64, DType::kI32};
  static const auto* const kMask = new std::vector<DType>{DType::kU8};
  static const auto* const kInt32 = new std::vector<DType>{DType::kI32};
  static const auto* const kNone = new std::vector<DType>{};
  switch (set) {
    case v1::MODEL:
      return *kModel;
    case v1::FLOAT32:
      return *kFloat32;
    case v1::INDEX:
      return *kIndex;
    case v1::MASK:
      return *kMask;
    case v1::INT32:
      return *kInt32;
    default:
      return *kNone;
  }
}

}  // namespace lossd
