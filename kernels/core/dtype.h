// Element types of tensors. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_CORE_DTYPE_H_
#define LOSSD_KERNELS_CORE_DTYPE_H_

#include <cstddef>
#include <cstdint>

namespace lossd {

// Numbers are those of lossd.v1.DType (checked at compile time in schema.cc).
enum class DType : int32_t {
  kUnspecified = 0,
  kF32 = 1,
  kBF16 = 2,
  kF16 = 3,
  kI32 = 4,
  kI64 = 5,
  kU8 = 6
};

// Bytes of an element; 0 for kUnspecified.
constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kI64:
      return 8;
    case DType::kU8:
      return 1;
    case DType::kUnspecified:
      return 0;
  }
  return 0;
}

// "f32", "bf16", ...
constexpr const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
    case DType::kUnspecified:
      return "unspecified";
  }
  return "unknown";
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_CORE_DTYPE_H_
