#include "kernels/ops/layer_op.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"

namespace lossd {

absl::Status CheckSameType(const v1::Tensor& tensor, absl::string_view field,
                           const v1::Tensor& other, absl::string_view other_field) {
  if (tensor.dtype() == other.dtype()) return absl::OkStatus();
  return FieldError(
      field,
      absl::StrCat("of type ", NameOf(static_cast<DType>(other.dtype())), " as ", other_field),
      NameOf(static_cast<DType>(tensor.dtype())));
}

absl::Status CheckFitsFloat(double value, absl::string_view field) {
  const double magnitude = std::fabs(value);
  if (value == 0 || (magnitude >= std::numeric_limits<float>::min() &&
                     magnitude <= std::numeric_limits<float>::max())) {
    return absl::OkStatus();
  }
  return FieldError(field, "within the range of fp32", absl::StrCat(value));
}

absl::Status CheckWidth(int64_t width, absl::string_view field) {
  if (width >= 1) return absl::OkStatus();
  return FieldError(field, "of at least 1 column", "of none");
}

}  // namespace lossd
