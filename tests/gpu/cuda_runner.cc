#include "tests/gpu/cuda_runner.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/check.h"
#include "tests/testing/request_builder.h"

namespace lossd {
namespace {

constexpr uint64_t kAlignment = 256;
constexpr int64_t kRowGap = 8;    // elements between rows
constexpr char kPoison = '\xff';  // NaN in every real type, -1 in integers

template <class T>
T OrDie(absl::StatusOr<T> result) {
  if (!result.ok()) {
    std::cerr << result.status() << std::endl;
    std::abort();
  }
  return *std::move(result);
}

class OneRegion final : public RegionResolver {
 public:
  explicit OneRegion(const DeviceBuffer* buffer) : buffer_(buffer) {}
  absl::StatusOr<Region> Resolve(uint64_t region) const override {
    if (region != 1 || buffer_ == nullptr) return absl::NotFoundError("no such region");
    Region result;
    result.base = buffer_->data();
    result.bytes = buffer_->bytes();
    result.writable = true;
    return result;
  }

 private:
  const DeviceBuffer* buffer_;
};

// A tensor's place in the test's memory.
struct Placed {
  const FieldRule* rule = nullptr;
  v1::Tensor original;
  uint64_t offset = 0;
  uint64_t row_bytes = 0;  // contiguous
  uint64_t stride_bytes = 0;
  int64_t rows = 0;
};

bool HasGaps(const FieldRule& rule, const v1::Tensor& tensor) {
  return tensor.shape_size() == 2 && tensor.shape(1) > 0 && rule.tensor.dtypes() == v1::MODEL;
}

// False if the tensor's shape is nonsense, as in refusals.
bool Place(const FieldRule& rule, const v1::Tensor& tensor, uint64_t* end, Placed* placed) {
  placed->rule = &rule;
  placed->original = tensor;
  const uint64_t element = SizeOf(static_cast<DType>(tensor.dtype()));
  int64_t elements = 1;
  for (const int64_t extent : tensor.shape()) {
    if (extent < 0 || extent > (int64_t{1} << 28)) return false;
    elements *= extent;
    if (elements > (int64_t{1} << 30)) return false;
  }
  if (tensor.strides_size() != 0 || element == 0) return false;
  const bool gaps = HasGaps(rule, tensor);
  placed->rows = gaps ? tensor.shape(0) : 1;
  placed->row_bytes = (gaps ? tensor.shape(1) : elements) * element;
  placed->stride_bytes = placed->row_bytes + (gaps ? kRowGap * element : 0);
  placed->offset = *end;
  const uint64_t bytes = placed->rows * placed->stride_bytes;
  *end += (bytes + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
  return true;
}

void WriteRows(const Placed& placed, const std::string& from, std::string* memory) {
  for (int64_t r = 0; r < placed.rows; ++r) {
    std::memcpy(memory->data() + placed.offset + r * placed.stride_bytes,
                from.data() + r * placed.row_bytes, placed.row_bytes);
  }
}
std::string ReadRows(const Placed& placed, const std::string& memory) {
  std::string out;
  for (int64_t r = 0; r < placed.rows; ++r) {
    out.append(memory, placed.offset + r * placed.stride_bytes, placed.row_bytes);
  }
  return out;
}

}  // namespace

CudaRunner::CudaRunner(uint64_t workspace_bytes)
    : backend_(OrDie(CudaBackend::Create({0, workspace_bytes}))),
      borrowed_(backend_->backend()),
      registry_(OrDie(Registry::Create())) {}

absl::StatusOr<v1::OpReply> CudaRunner::Run(const v1::Op& op, const RunOptions& options) {
  LOSSD_ASSIGN_OR_RETURN(AdmittedOp admitted, Admit(registry_, op, OneRegion(nullptr)));
  v1::OpReply reply;
  LOSSD_RETURN_IF_ERROR(RunOp(admitted, options, borrowed_, &reply));
  return reply;
}

absl::StatusOr<v1::OpReply> CudaRunner::RunInMemory(const v1::Op& op, const RunOptions& options,
                                                    const std::vector<std::string>& donated) {
  v1::Op moved = op;
  const google::protobuf::Message* request = nullptr;
  LOSSD_ASSIGN_OR_RETURN(const Op* kernel, registry_.Select(op, &request));
  google::protobuf::Message* message = MutableRequest(&moved);
  std::vector<Placed> tensors;
  uint64_t end = kAlignment;
  for (const FieldRule& rule : kernel->schema().fields()) {
    if (!rule.is_tensor || !HasField(*message, rule)) continue;
    Placed placed;
    if (!Place(rule, GetTensor(*message, rule), &end, &placed)) return Run(op, {});
    if (rule.is_input() && placed.original.inline_data().size() !=
                               static_cast<uint64_t>(placed.rows) * placed.row_bytes) {
      return Run(op, {});
    }
    // The gradient over the input that it takes.
    for (const Placed& input : tensors) {
      const bool taken =
          rule.tensor.takes() == input.rule->name &&
          std::find(donated.begin(), donated.end(), input.rule->name) != donated.end();
      if (taken) placed.offset = input.offset;
    }
    tensors.push_back(placed);
  }
  std::string before(end, kPoison);
  for (const Placed& placed : tensors) {
    v1::Tensor* tensor = MutableTensor(message, *placed.rule);
    if (HasGaps(*placed.rule, placed.original)) {
      tensor->add_strides(placed.original.shape(1) + kRowGap);
      tensor->add_strides(1);
    }
    if (!placed.original.inline_data().empty()) {
      WriteRows(placed, placed.original.inline_data(), &before);
    }
    tensor->mutable_region()->set_region(1);
    tensor->mutable_region()->set_byte_offset(placed.offset);
  }
  LOSSD_ASSIGN_OR_RETURN(DeviceBuffer memory,
                         DeviceBuffer::Create(end, "allocate the test's tensors"));
  // A destination that is added to starts at 0 if the request holds no old value.
  for (const Placed& placed : tensors) {
    if (placed.rule->is_output() && placed.rule->tensor.has_mode() &&
        placed.original.inline_data().empty()) {
      WriteRows(placed, std::string(placed.rows * placed.row_bytes, '\0'), &before);
    }
  }
  LOSSD_RETURN_IF_CUDA_ERROR(cudaMemcpy(memory.data(), before.data(), end, cudaMemcpyHostToDevice),
                             "fill the tensors");
  // The copy may still be under way, and the backend's stream does not wait for the default one.
  LOSSD_RETURN_IF_CUDA_ERROR(cudaDeviceSynchronize(), "fill the tensors");

  const auto run = [&]() -> absl::StatusOr<v1::OpReply> {
    LOSSD_ASSIGN_OR_RETURN(AdmittedOp admitted,
                           Admit(registry_, moved, OneRegion(&memory), donated));
    v1::OpReply reply;
    borrowed_.device->workspace().Reset();
    LaunchedOp launched;
    LOSSD_RETURN_IF_ERROR(Launch(admitted, options, borrowed_, &launched));
    if (!options.host_may_wait) {
      LOSSD_RETURN_IF_ERROR(borrowed_.device->CopyOut(&launched.record, launched.pending.record,
                                                      sizeof(launched.record)));
    }
    LOSSD_RETURN_IF_ERROR(borrowed_.device->Synchronize());
    LOSSD_RETURN_IF_ERROR(Collect(admitted, launched, &reply));
    return reply;
  };
  auto reply = run();
  std::string after(end, '\0');
  LOSSD_RETURN_IF_CUDA_ERROR(cudaMemcpy(after.data(), memory.data(), end, cudaMemcpyDeviceToHost),
                             "read the tensors");
  // What the call may not touch must be as before: put the outputs' old values back and compare everything.
  std::string untouched = after;
  for (const Placed& placed : tensors) {
    if (!placed.rule->is_output()) continue;
    const bool adds = placed.rule->tensor.has_mode() && !placed.original.inline_data().empty();
    if (!reply.ok() && adds) continue;
    WriteRows(placed, ReadRows(placed, before), &untouched);
    if (!reply.ok()) continue;
    v1::Tensor& output = (*reply->mutable_outputs())[placed.rule->name];
    output = placed.original;
    output.set_inline_data(ReadRows(placed, after));
  }
  if (untouched != before) {
    uint64_t at = 0;
    while (untouched[at] == before[at]) ++at;
    for (const Placed& placed : tensors) {
      if (at >= placed.offset && at < placed.offset + placed.rows * placed.stride_bytes) {
        return absl::DataLossError(absl::StrCat("memory of ", placed.rule->name, " was written"));
      }
    }
    return absl::DataLossError("memory between tensors was written");
  }
  return reply;
}

}  // namespace lossd
