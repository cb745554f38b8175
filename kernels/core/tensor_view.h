// Borrowed tensors: a pointer on the call's device with extents and strides. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_CORE_TENSOR_VIEW_H_
#define LOSSD_KERNELS_CORE_TENSOR_VIEW_H_

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/host_device.h"

namespace lossd {

inline constexpr int kMaxRank = 5;

// Any tensor of a call. False if the request does not have it. Strides count elements.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kUnspecified;
  int32_t rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};
  bool present = false;  // an empty tensor is present, its data may be null

  explicit operator bool() const { return present; }
};

// The rows of a [N] or [N, width] tensor whose N may be several leading extents. The width has stride 1.
struct RowsView {
  void* data = nullptr;
  DType dtype = DType::kUnspecified;
  int64_t rows = 0;
  int64_t width = 1;
  // Leading extents, outermost first; lead_rank 1 is the common case.
  int32_t lead_rank = 1;
  int64_t lead_shape[kMaxRank - 1] = {};
  int64_t lead_strides[kMaxRank - 1] = {};
  bool present = false;

  LOSSD_HD explicit operator bool() const { return present; }

  // Whether the rows lie evenly, and row numbers and distance have 32 bits.
  bool IsFlat() const {
    const int64_t stride = lead_strides[0];
    return lead_rank == 1 && rows <= INT32_MAX && stride >= 0 && stride <= INT32_MAX;
  }

  // Distance of row i's first element from data, in elements.
  LOSSD_HD int64_t Offset(int64_t i) const {
#if defined(__CUDA_ARCH__) && defined(LOSSD_FLAT_ROWS)
    // All views of the kernel are flat.
    return static_cast<int64_t>(uint64_t{static_cast<uint32_t>(i)} *
                                static_cast<uint32_t>(lead_strides[0]));
#else
    return lead_rank == 1 ? i * lead_strides[0] : OffsetOfLeads(i);
#endif
  }

  template <class T>
  LOSSD_HD T* Row(int64_t i) const {
    return static_cast<T*>(data) + Offset(i);
  }

  // Element i of a [N] tensor of a real, integer or mask type that the caller has checked.
  LOSSD_HD float F32(int64_t i) const { return *Row<const float>(i); }
  LOSSD_HD bool Mask(int64_t i) const { return *Row<const uint8_t>(i) != 0; }
  LOSSD_HD int64_t Index(int64_t i, int64_t k = 0) const {
    return dtype == DType::kI64 ? Row<const int64_t>(i)[k] : Row<const int32_t>(i)[k];
  }
  LOSSD_HD void SetF32(int64_t i, float value) const { *Row<float>(i) = value; }
  LOSSD_HD void SetI32(int64_t i, int32_t value) const { *Row<int32_t>(i) = value; }
  LOSSD_HD void SetU8(int64_t i, uint8_t value) const { *Row<uint8_t>(i) = value; }

 private:
  // Divisions of 64 bits.
  LOSSD_HD_CALLED int64_t OffsetOfLeads(int64_t i) const {
    int64_t offset = 0;
    for (int d = lead_rank - 1; d >= 0; --d) {
      offset += (i % lead_shape[d]) * lead_strides[d];
      i /= lead_shape[d];
    }
    return offset;
  }
};

// Rows of `view`; `trailing` is the number of extents behind N: 0 for [N], 1 for [N, width].
// Leading extents that lie evenly are merged into one.
RowsView MakeRowsView(const TensorView& view, int trailing);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CORE_TENSOR_VIEW_H_
