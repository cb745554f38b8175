// An array of this process that lossd computes with: the same memory where both can map it, else a copy that is moved there and back.
#ifndef LOSSD_CLIENT_DEMO_SHARED_TENSOR_H_
#define LOSSD_CLIENT_DEMO_SHARED_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cpp/client.h"

namespace lossd::demo {

// T is float or int32_t. Must not outlive its client.
template <typename T>
class SharedTensor {
 public:
  static absl::StatusOr<SharedTensor> Create(Client& client, int64_t elements) {
    SharedTensor tensor;
    auto buffer = client.CreateBuffer(elements * sizeof(T));
    if (!buffer.ok()) return buffer.status();
    tensor.buffer_ = *std::move(buffer);
    if (tensor.buffer_->data() == nullptr) tensor.copy_.resize(elements);
    return tensor;
  }

  T* data() { return copy_.empty() ? reinterpret_cast<T*>(buffer_->data()) : copy_.data(); }

  // Before a call that reads the first `elements`, and after one that wrote them. No work where the memory is shared.
  absl::Status Push(int64_t elements) {
    if (copy_.empty()) return absl::OkStatus();
    return buffer_->Write(0, {reinterpret_cast<const char*>(copy_.data()), elements * sizeof(T)});
  }
  absl::Status Pull(int64_t elements) {
    if (copy_.empty()) return absl::OkStatus();
    return buffer_->Read(0, reinterpret_cast<std::byte*>(copy_.data()), elements * sizeof(T));
  }

  // Names the memory in a request.
  v1::Tensor Describe(const std::vector<int64_t>& shape) const {
    return buffer_->Tensor(std::is_same_v<T, float> ? v1::F32 : v1::I32, shape);
  }

 private:
  std::unique_ptr<Buffer> buffer_;
  std::vector<T> copy_;
};

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_SHARED_TENSOR_H_
