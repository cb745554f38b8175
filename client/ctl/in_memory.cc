#include "client/ctl/in_memory.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/conformance/elements.h"
#include "client/conformance/fields.h"
#include "client/conformance/request.h"

namespace lossd::ctl {
namespace {

constexpr uint64_t kAlignment = 256;

struct Placed {
  std::string name;
  bool output = false;
  v1::Tensor original;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Shapes of refusals may be nonsense; then the tensor stays in the message.
bool Place(const v1::Tensor& tensor, uint64_t* end, Placed* placed) {
  int64_t elements = 1;
  for (const int64_t extent : tensor.shape()) {
    if (extent < 0 || extent > (int64_t{1} << 28)) return false;
    elements *= extent;
    if (elements > (int64_t{1} << 28)) return false;
  }
  placed->bytes = elements * conformance::DTypeSize(tensor.dtype());
  placed->original = tensor;
  placed->offset = *end;
  *end += (placed->bytes + kAlignment - 1) / kAlignment * kAlignment;
  return true;
}

absl::Status CheckUntouched(Buffer& buffer, const Placed& placed, const char* what) {
  const std::string& old = placed.original.inline_data();
  std::string now(old.size(), '\0');
  const absl::Status read =
      buffer.Read(placed.offset, reinterpret_cast<std::byte*>(now.data()), now.size());
  if (!read.ok()) return read;
  if (now == old) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(placed.name, ": ", what));
}

}  // namespace

absl::StatusOr<v1::OpReply> RunInMemory(Client& client, const v1::Op& op) {
  v1::Op moved = op;
  google::protobuf::Message* message = conformance::MutableSelectedOp(&moved);
  if (message == nullptr) return client.Run(op);
  std::vector<Placed> tensors;
  uint64_t end = 0;
  for (const auto& path : conformance::AllFields(message->GetDescriptor())) {
    if (!conformance::IsTensor(path) || conformance::FindTensor(*message, path) == nullptr)
      continue;
    Placed placed;
    placed.name = path.back()->name();
    placed.output = conformance::IsOutput(path);
    if (Place(*conformance::MutableTensor(message, path), &end, &placed)) tensors.push_back(placed);
  }
  auto buffer = client.CreateBuffer(std::max<uint64_t>(end, 1));
  if (!buffer.ok()) return buffer.status();
  for (const Placed& placed : tensors) {
    v1::Tensor* tensor = conformance::MutableTensor(
        message, conformance::FindField(message->GetDescriptor(), placed.name));
    if (!placed.output && placed.original.inline_data().size() != placed.bytes)
      continue;  // a refusal's
    const absl::Status written = (*buffer)->Write(placed.offset, placed.original.inline_data());
    if (!written.ok()) return written;
    tensor->mutable_region()->set_region((*buffer)->region());
    tensor->mutable_region()->set_byte_offset(placed.offset);
  }
  auto reply = client.Run(moved);
  for (const Placed& placed : tensors) {
    absl::Status untouched;
    if (!placed.output) untouched = CheckUntouched(**buffer, placed, "the input was written");
    if (placed.output && !reply.ok() && !placed.original.inline_data().empty()) {
      untouched = CheckUntouched(**buffer, placed, "was added to by a call that was refused");
    }
    if (!untouched.ok()) return untouched;
    if (!placed.output || !reply.ok()) continue;
    v1::Tensor& output = (*reply->mutable_outputs())[placed.name];
    output = placed.original;
    std::string* bytes = output.mutable_inline_data();
    bytes->assign(placed.bytes, '\0');
    const absl::Status read =
        (*buffer)->Read(placed.offset, reinterpret_cast<std::byte*>(bytes->data()), bytes->size());
    if (!read.ok()) return read;
  }
  return reply;
}

}  // namespace lossd::ctl
