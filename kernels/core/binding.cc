#include "kernels/core/binding.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/rebind.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

bool IsEmpty(const v1::Tensor& tensor) {
  return std::any_of(tensor.shape().begin(), tensor.shape().end(),
                     [](int64_t extent) { return extent == 0; });
}

TensorView MakeView(const v1::Tensor& tensor) {
  TensorView view;
  view.present = true;
  view.dtype = static_cast<DType>(tensor.dtype());
  view.rank = tensor.shape_size();
  int64_t stride = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    view.shape[d] = tensor.shape(d);
    view.strides[d] = tensor.strides_size() > 0 ? tensor.strides(d) : stride;
    stride *= std::max<int64_t>(tensor.shape(d), 1);
  }
  return view;
}

// Whether no two elements of the tensor share memory: sorted by stride, each step must clear the extents inside it.
bool IsInjective(const TensorView& view) {
  std::vector<std::pair<int64_t, int64_t>> steps;  // stride, extent
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] > 1) steps.emplace_back(view.strides[d], view.shape[d]);
  }
  std::sort(steps.begin(), steps.end());
  int64_t reach = 0;
  for (const auto& [stride, extent] : steps) {
    if (stride <= reach) return false;
    reach += stride * (extent - 1);
  }
  return true;
}

absl::Status BindRegion(const FieldRule& rule, const v1::Tensor& tensor,
                        const RegionResolver& regions, BoundTensor* bound, Region* region) {
  auto found = regions.Resolve(tensor.region().region());
  if (!found.ok()) {
    v1::ErrorDetail detail;
    detail.set_field(rule.name);
    detail.set_must_be("in a region of this session");
    detail.set_is(absl::StrCat("region ", tensor.region().region()));
    return DetailError(found.status().code(), detail);
  }
  *region = *std::move(found);
  const uint64_t offset = tensor.region().byte_offset();
  if (offset > region->bytes || bound->bytes > region->bytes - offset) {
    return FieldError(rule.name, absl::StrCat("inside its region of ", region->bytes, " bytes"),
                      absl::StrCat("at byte ", offset, " with ", bound->bytes, " bytes"));
  }
  if (offset % SizeOf(bound->view.dtype) != 0) {
    return FieldError(rule.name,
                      absl::StrCat("at a byte offset divisible by ", SizeOf(bound->view.dtype)),
                      absl::StrCat(offset));
  }
  if (rule.is_output() && !region->writable) {
    v1::ErrorDetail detail;
    detail.set_field(rule.name);
    detail.set_must_be("in a writable region");
    detail.set_is("in a read-only one");
    return DetailError(absl::StatusCode::kPermissionDenied, detail);
  }
  // A region may be the whole address space, whose base is null.
  bound->view.data =
      reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(region->base) + uintptr_t{offset});
  return absl::OkStatus();
}

absl::Status CheckInline(const FieldRule& rule, const v1::Tensor& tensor, uint64_t bytes) {
  if (tensor.strides_size() > 0) {
    int64_t stride = 1;
    for (int d = tensor.shape_size() - 1; d >= 0; --d) {
      if (tensor.shape(d) > 1 && tensor.strides(d) != stride) {
        return FieldError(rule.name, "row-major when its bytes are in the message", "strided");
      }
      stride *= tensor.shape(d);
    }
  }
  const uint64_t have = tensor.inline_data().size();
  if (rule.is_input() && have != bytes) {
    return FieldError(rule.name, absl::StrCat("of ", bytes, " inline bytes"), absl::StrCat(have));
  }
  // An output that is added to brings its old value, or starts from zero.
  if (rule.is_output() && have != 0 && (have != bytes || !rule.tensor.has_mode())) {
    return FieldError(rule.name, "an output without inline bytes", absl::StrCat(have, " bytes"));
  }
  return absl::OkStatus();
}

// Whether the output lies on the input element by element.
bool IsSameMemory(const TensorView& output, const TensorView& input) {
  return output.data == input.data && output.dtype == input.dtype && output.rank == input.rank &&
         std::equal(output.shape, output.shape + output.rank, input.shape) &&
         std::equal(output.strides, output.strides + output.rank, input.strides);
}

// Whether the call gives the output the memory of `input`.
bool IsTaken(const BoundTensor& output, const BoundTensor& input,
             const std::vector<std::string>& donated) {
  return input.rule->is_input() && output.rule->tensor.takes() == input.rule->name &&
         std::find(donated.begin(), donated.end(), input.rule->name) != donated.end();
}

absl::Status CheckInjective(const std::vector<BoundTensor>& tensors) {
  for (const BoundTensor& output : tensors) {
    if (!output.rule->is_output() || output.in_message || output.bytes == 0) continue;
    if (!IsInjective(output.view)) {
      return FieldError(output.rule->name, "an output whose elements do not share memory",
                        "of overlapping strides");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOverlap(const std::vector<BoundTensor>& tensors,
                          const std::vector<std::string>& donated) {
  for (const BoundTensor& output : tensors) {
    if (!output.rule->is_output() || output.in_message || output.bytes == 0) continue;
    const auto* begin = static_cast<const std::byte*>(output.view.data);
    for (const BoundTensor& other : tensors) {
      if (&other == &output || other.in_message || other.bytes == 0) continue;
      const auto* other_begin = static_cast<const std::byte*>(other.view.data);
      if (begin >= other_begin + other.bytes || other_begin >= begin + output.bytes) continue;
      if (!IsTaken(output, other, donated)) {
        return FieldError(output.rule->name, "apart from every other tensor of the call",
                          absl::StrCat("overlapping ", other.rule->name));
      }
      if (!IsSameMemory(output.view, other.view)) {
        return FieldError(output.rule->name,
                          absl::StrCat("of type, shape, strides and place of the donated ",
                                       other.rule->name, ", or apart from it"),
                          "overlapping it otherwise");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t ExtentBytes(const v1::Tensor& tensor) {
  if (IsEmpty(tensor)) return 0;
  const TensorView view = MakeView(tensor);
  uint64_t reach = 1;
  for (int d = 0; d < view.rank; ++d) {
    reach += static_cast<uint64_t>(view.shape[d] - 1) * static_cast<uint64_t>(view.strides[d]);
  }
  return reach * SizeOf(view.dtype);
}

absl::StatusOr<Binding> Binding::Create(const OpSchema& schema,
                                        const google::protobuf::Message& request,
                                        const RegionResolver& regions,
                                        const std::vector<std::string>& donated) {
  Binding binding;
  for (const FieldRule& rule : schema.fields()) {
    if (!rule.is_tensor || !HasField(request, rule)) continue;
    const v1::Tensor& tensor = GetTensor(request, rule);
    BoundTensor bound;
    bound.rule = &rule;
    bound.tensor = &tensor;
    bound.view = MakeView(tensor);
    bound.bytes = ExtentBytes(tensor);
    if (tensor.has_region()) {
      Region region;
      LOSSD_RETURN_IF_ERROR(BindRegion(rule, tensor, regions, &bound, &region));
      if (region.owner != nullptr) binding.owners_.push_back(std::move(region.owner));
    } else {
      LOSSD_RETURN_IF_ERROR(CheckInline(rule, tensor, bound.bytes));
      bound.in_message = true;
    }
    binding.tensors_.push_back(bound);
  }
  LOSSD_RETURN_IF_ERROR(CheckInjective(binding.tensors_));
  LOSSD_RETURN_IF_ERROR(CheckOverlap(binding.tensors_, donated));
  return binding;
}

TensorView Binding::View(const v1::Tensor& tensor) const {
  for (const BoundTensor& bound : tensors_) {
    if (bound.tensor == &tensor) return bound.view;
  }
  return TensorView();
}

absl::Status MoveTensors(absl::Span<const uint64_t> addresses,
                         const std::vector<std::string>& donated, Binding* binding) {
  std::vector<BoundTensor>& tensors = binding->tensors();
  if (addresses.size() != tensors.size()) {
    return FieldError("addresses", absl::StrCat("one for each of ", tensors.size(), " tensors"),
                      absl::StrCat(addresses.size()));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    BoundTensor& bound = tensors[i];
    const uint64_t address = addresses[i];
    if ((address == 0 && bound.bytes > 0) || address % SizeOf(bound.view.dtype) != 0) {
      return FieldError(bound.rule->name,
                        absl::StrCat("at an address divisible by ", SizeOf(bound.view.dtype)),
                        absl::StrCat(address));
    }
    bound.view.data = reinterpret_cast<void*>(uintptr_t{address});
  }
  return CheckOverlap(tensors, donated);
}

}  // namespace lossd
