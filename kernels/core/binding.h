// From the tensors of a message to pointers: ranges, rights and overlaps are checked here, once, for every transport.
#ifndef LOSSD_KERNELS_CORE_BINDING_H_
#define LOSSD_KERNELS_CORE_BINDING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "kernels/core/schema.h"
#include "kernels/core/tensor_view.h"
#include "lossd/v1/tensor.pb.h"

namespace lossd {

// Memory that a tensor may lie in, on the call's device. Borrowed from `owner`, which keeps the mapping open.
struct Region {
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  bool writable = false;
  std::shared_ptr<const void> owner;
};

// Finds regions by id. The server has one for each session, the embedded client another.
class RegionResolver {
 public:
  virtual ~RegionResolver() = default;
  // Errors: NOT_FOUND.
  virtual absl::StatusOr<Region> Resolve(uint64_t region) const = 0;
};

// Bytes that a tensor touches from its first element on, without overflow. 0 for an empty tensor.
uint64_t ExtentBytes(const v1::Tensor& tensor);

// One tensor of a call, bound.
struct BoundTensor {
  const FieldRule* rule = nullptr;
  const v1::Tensor* tensor = nullptr;  // in the request
  TensorView view;                     // data is null for a tensor of bytes until it is staged
  uint64_t bytes = 0;
  bool in_message = false;  // its bytes come with the request, or go back with the reply
};

// All tensors of a call. Holds the regions' owners until it is destroyed.
class Binding {
 public:
  // Errors: INVALID_ARGUMENT (range, alignment, inline size, overlap of an output with any other tensor),
  // NOT_FOUND (region), PERMISSION_DENIED (output in a read-only region); each names the field.
  // An output may lie over the input that its rule takes, element on element, if that input's name is in `donated`.
  static absl::StatusOr<Binding> Create(const OpSchema& schema,
                                        const google::protobuf::Message& request,
                                        const RegionResolver& regions,
                                        const std::vector<std::string>& donated = {});

  // The view of a tensor field of the request, found by its address: binding.View(request.linear().hidden()).
  // A view that is not present if the request does not have the field.
  TensorView View(const v1::Tensor& tensor) const;

  std::vector<BoundTensor>& tensors() { return tensors_; }
  const std::vector<BoundTensor>& tensors() const { return tensors_; }
  const std::vector<std::shared_ptr<const void>>& owners() const { return owners_; }

 private:
  std::vector<BoundTensor> tensors_;
  std::vector<std::shared_ptr<const void>> owners_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CORE_BINDING_H_
