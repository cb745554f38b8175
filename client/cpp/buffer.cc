#include "client/cpp/buffer.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/cpp/status.h"

namespace lossd {

v1::Tensor Buffer::Tensor(v1::DType dtype, const std::vector<int64_t>& shape,
                          uint64_t byte_offset) const {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  for (const int64_t extent : shape) tensor.add_shape(extent);
  tensor.mutable_region()->set_region(region());
  tensor.mutable_region()->set_byte_offset(byte_offset);
  return tensor;
}

namespace client {

absl::Status RegionBuffer::CheckRange(uint64_t byte_offset, uint64_t bytes) const {
  if (byte_offset <= bytes_ && bytes <= bytes_ - byte_offset) return absl::OkStatus();
  return FieldError("byte_offset", absl::StrCat("inside the buffer of ", bytes_, " bytes"),
                    absl::StrCat(byte_offset, " with ", bytes, " bytes"));
}

absl::Status RegionBuffer::Write(uint64_t byte_offset, absl::string_view bytes) {
  const absl::Status range = CheckRange(byte_offset, bytes.size());
  if (!range.ok() || bytes.empty()) return range;
  if (memory_ == nullptr) return host_->UploadTo(region_, byte_offset, bytes);
  std::memcpy(memory_->data() + byte_offset, bytes.data(), bytes.size());
  return absl::OkStatus();
}

absl::Status RegionBuffer::Read(uint64_t byte_offset, std::byte* to, uint64_t bytes) {
  const absl::Status range = CheckRange(byte_offset, bytes);
  if (!range.ok() || bytes == 0) return range;
  if (memory_ == nullptr) return host_->DownloadFrom(region_, byte_offset, to, bytes);
  std::memcpy(to, memory_->data() + byte_offset, bytes);
  return absl::OkStatus();
}

}  // namespace client
}  // namespace lossd
