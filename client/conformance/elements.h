// Elements of tensors as doubles: rounding to a dtype, bytes and back.
#ifndef LOSSD_CLIENT_CONFORMANCE_ELEMENTS_H_
#define LOSSD_CLIENT_CONFORMANCE_ELEMENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "lossd/v1/tensor.pb.h"

namespace lossd::conformance {

// "bf16" -> BF16; DTYPE_UNSPECIFIED if there is none of that name.
v1::DType DTypeFromName(absl::string_view name);
// "bf16"; "?" for a number that is none.
std::string DTypeName(v1::DType dtype);
// Bytes of an element; 0 for a number that is no dtype.
int DTypeSize(v1::DType dtype);
bool IsReal(v1::DType dtype);

// The nearest value of a real dtype (ties to even, too large becomes infinity); integers are truncated.
double RoundTo(v1::DType dtype, double value);

// Appends one element. A value outside an integer dtype is clamped to it.
void AppendElement(v1::DType dtype, double value, std::string* bytes);
// An integer of any dtype, without the way over double.
void AppendInteger(v1::DType dtype, int64_t value, std::string* bytes);

// All elements of a row-major tensor. Trailing bytes that are no whole element are left out.
std::vector<double> DecodeElements(v1::DType dtype, absl::string_view bytes);

// Product of the extents; 1 for none.
int64_t ElementCount(const std::vector<int64_t>& shape);

}  // namespace lossd::conformance

#endif  // LOSSD_CLIENT_CONFORMANCE_ELEMENTS_H_
