// The operations on logits as whole operations: memory of the caller's in any layout, gradients over donated logits, rows that do not count.
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/full_spec.h"
#include "tests/testing/local_runner.h"
#include "tests/testing/matchers.h"
#include "tests/testing/request_builder.h"

namespace lossd {
namespace {

const std::vector<std::string> kDonated = {"logits"};

class LogitsTest : public testing::Test {
 protected:
  const OpSchema& Schema(const std::string& op) { return runner_.registry().Find(op)->schema(); }
  v1::Op Build(const RequestSpec& spec) { return builder_.Build(Schema(spec.op), spec); }
  v1::Tensor& Get(v1::Op* op, const std::string& name) {
    const auto* oneof = v1::Op::descriptor()->oneof_decl(0);
    const auto* field = op->GetReflection()->GetOneofFieldDescriptor(*op, oneof);
    return *MutableTensor(MutableRequest(op), *Schema(field->message_type()->name()).Find(name));
  }
  // Puts the rows of a matrix `stride` elements apart into a region, from element `first` on.
  void Place(v1::Tensor* tensor, uint64_t region, char* memory, int64_t first, int64_t stride) {
    const int64_t width = tensor->shape(tensor->shape_size() - 1);
    const int64_t bytes = tensor->dtype() == v1::F32 ? 4 : 2;
    const std::string values = tensor->inline_data();
    for (size_t r = 0; r * width * bytes < values.size(); ++r) {
      std::memcpy(memory + (first + r * stride) * bytes, values.data() + r * width * bytes,
                  width * bytes);
    }
    int64_t step = stride;
    tensor->clear_strides();
    for (int d = 0; d < tensor->shape_size() - 1; ++d) {
      int64_t inner = stride;
      for (int e = d + 1; e < tensor->shape_size() - 1; ++e) inner *= tensor->shape(e);
      step = inner;
      tensor->add_strides(step);
    }
    tensor->add_strides(1);
    tensor->mutable_region()->set_region(region);
    tensor->mutable_region()->set_byte_offset(first * bytes);
  }
  static std::string Rows(const v1::Tensor& tensor, const char* memory, int64_t first, int64_t rows,
                          int64_t stride) {
    const int64_t width = tensor.shape(tensor.shape_size() - 1);
    const int64_t bytes = tensor.dtype() == v1::F32 ? 4 : 2;
    std::string out;
    for (int64_t r = 0; r < rows; ++r) {
      out.append(memory + (first + r * stride) * bytes, width * bytes);
    }
    return out;
  }

  LocalRunner runner_;
  RequestBuilder builder_;
};

TEST_F(LogitsTest, TheGradientOverDonatedLogitsIsTheGradient) {
  for (const std::string op_name : {"CrossEntropy", "LogprobBackward"}) {
    for (const v1::DType model : {v1::F32, v1::BF16, v1::F16}) {
      RequestSpec spec = FullSpec(op_name);
      spec.model = model;
      v1::Op op = Build(spec);
      Get(&op, "grad_logits").set_dtype(model);
      const auto want = runner_.Run(op);
      ASSERT_OK(want);
      std::vector<char> memory(4096, 'x');
      const uint64_t region = runner_.AddRegion(memory.data(), memory.size());
      Place(&Get(&op, "logits"), region, memory.data(), 3, 14);
      Get(&op, "grad_logits") = Get(&op, "logits");
      const std::vector<char> before = memory;
      EXPECT_EQ(Refusal(runner_.Run(op)), "INVALID_ARGUMENT grad_logits");
      EXPECT_EQ(memory, before);
      const auto got = runner_.Run(op, {}, kDonated);
      ASSERT_OK(got);
      EXPECT_EQ(Rows(Get(&op, "logits"), memory.data(), 3, 7, 14),
                want->outputs().at("grad_logits").inline_data());
      for (const auto& [name, tensor] : got->outputs()) {
        EXPECT_EQ(tensor.inline_data(), want->outputs().at(name).inline_data()) << name;
      }
      // What lies between the rows is nobody's.
      const size_t bytes = model == v1::F32 ? 4 : 2;
      for (int r = 0; r < 7; ++r) {
        const size_t gap = (3 + r * 14 + 11) * bytes;
        EXPECT_EQ(std::string(memory.data() + gap, 3 * bytes), std::string(3 * bytes, 'x'));
      }
    }
  }
}

TEST_F(LogitsTest, WrongDataLeaveDonatedLogitsAsTheyWere) {
  v1::Op op = Build({.op = "CrossEntropy", .inputs = "target", .outputs = "loss"});
  std::vector<double> target = Elements(Get(&op, "target"));
  target[6] = 11;
  SetElements(target, &Get(&op, "target"));
  std::vector<char> memory(1024);
  const uint64_t region = runner_.AddRegion(memory.data(), memory.size());
  Place(&Get(&op, "logits"), region, memory.data(), 0, 11);
  Get(&op, "grad_logits") = Get(&op, "logits");
  const std::vector<char> before = memory;
  EXPECT_EQ(Refusal(runner_.Run(op, {}, kDonated)), "INVALID_ARGUMENT target");
  EXPECT_EQ(memory, before);
}

TEST_F(LogitsTest, RowsMayLieAnywhere) {
  v1::Op op = Build({.op = "CrossEntropy",
                     .inputs = "target",
                     .options = "label_smoothing=0.1",
                     .outputs = "row_loss grad_logits",
                     .model = v1::BF16});
  builder_.dims["N"] = 6;
  op = Build({.op = "CrossEntropy",
              .inputs = "target",
              .options = "label_smoothing=0.1",
              .outputs = "row_loss grad_logits",
              .model = v1::BF16});
  const auto want = runner_.Run(op);
  ASSERT_OK(want);
  // Several leading extents, more than 2^31 elements apart.
  constexpr int64_t kStride = (int64_t{1} << 31) + 8;
  constexpr uint64_t kBytes = 6 * kStride * 2;
  void* const mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const memory = static_cast<char*>(mapped);
  const uint64_t region = runner_.AddRegion(memory, kBytes);
  for (const char* name : {"logits", "grad_logits", "target", "row_loss"}) {
    v1::Tensor& tensor = Get(&op, name);
    tensor.set_shape(0, 2);
    tensor.add_shape(3);
    if (tensor.shape_size() == 3) tensor.set_shape(2, 11), tensor.set_shape(1, 3);
  }
  Place(&Get(&op, "logits"), region, memory, 1, kStride);
  Get(&op, "grad_logits") = Get(&op, "logits");
  const auto got = runner_.Run(op, {}, kDonated);
  ASSERT_OK(got);
  EXPECT_EQ(got->outputs().at("row_loss").inline_data(),
            want->outputs().at("row_loss").inline_data());
  v1::Tensor gradient = Get(&op, "grad_logits");
  v1::Op again = op;
  // In fp32 the gradient was asked for before; here it has the logits' type.
  v1::Tensor expected = want->outputs().at("grad_logits");
  expected.set_dtype(v1::BF16);
  SetElements(Elements(want->outputs().at("grad_logits")), &expected);
  EXPECT_EQ(Rows(gradient, memory, 1, 6, kStride), expected.inline_data());
  munmap(mapped, kBytes);
}

TEST_F(LogitsTest, RowsThatDoNotCountAreZeroWhateverLiesThere) {
  v1::Op op = Build({.op = "CrossEntropy",
                     .inputs = "target mask",
                     .options = "valid_vocab=8 ignore_index=9",
                     .outputs = "row_loss argmax grad_logits"});
  std::vector<double> target = {1, 9, 3, 4, 1e12, 2, 9};
  SetElements(target, &Get(&op, "target"));
  SetElements({1, 1, 1, 0, 0, 1, 1}, &Get(&op, "mask"));
  std::vector<double> logits = Elements(Get(&op, "logits"));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const int row : {1, 3, 4, 6}) logits[row * 11 + row] = nan;
  for (int row = 0; row < 7; ++row) logits[row * 11 + 8] = nan;  // no valid id
  SetElements(logits, &Get(&op, "logits"));
  const auto reply = runner_.Run(op);
  ASSERT_OK(reply);
  EXPECT_EQ(reply->count(), 3);
  EXPECT_EQ(reply->degenerate_rows(), 0);
  const std::vector<double> grad = Elements(reply->outputs().at("grad_logits"));
  for (int row = 0; row < 7; ++row) {
    const bool counts = row == 0 || row == 2 || row == 5;
    double sum = 0;
    for (int j = 0; j < 11; ++j) {
      EXPECT_EQ(grad[row * 11 + j] != 0, counts && j < 8) << row << " " << j;
      sum += grad[row * 11 + j];
    }
    EXPECT_NEAR(sum, 0, 1e-6);
    EXPECT_EQ(Elements(reply->outputs().at("argmax"))[row] >= 0, counts);
  }
}

TEST_F(LogitsTest, AgreesWithTheHeadOfAnIdentityMatrix) {
  builder_.dims["H"] = builder_.dims["V"];
  v1::Op linear = Build({.op = "LinearCrossEntropy",
                         .inputs = "target class_weight row_weight temperature_rows",
                         .options = "softcap=2 label_smoothing=0.2 z_loss=0.1 logit_scale=1.3",
                         .outputs = "loss row_loss logprob lse entropy argmax grad_hidden"});
  std::vector<double> identity(11 * 11, 0.0);
  for (int j = 0; j < 11; ++j) identity[j * 12] = 1;
  SetElements(identity, &Get(&linear, "weight"));
  v1::Op op = Build({.op = "CrossEntropy",
                     .inputs = "target class_weight row_weight temperature_rows",
                     .options = "softcap=2 label_smoothing=0.2 z_loss=0.1 logit_scale=1.3",
                     .outputs = "loss row_loss logprob lse entropy argmax grad_logits"});
  for (const char* name : {"target", "class_weight", "row_weight", "temperature_rows"}) {
    Get(&op, name) = Get(&linear, name);
  }
  Get(&op, "logits") = Get(&linear, "hidden");
  const auto want = runner_.Run(linear);
  const auto got = runner_.Run(op);
  ASSERT_OK(want);
  ASSERT_OK(got);
  for (const auto& [name, tensor] : got->outputs()) {
    const std::string other = name == "grad_logits" ? "grad_hidden" : name;
    EXPECT_EQ(tensor.inline_data(), want->outputs().at(other).inline_data()) << name;
  }
}

}  // namespace
}  // namespace lossd
