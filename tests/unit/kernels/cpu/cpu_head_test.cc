// What the linear operations promise on the CPU beside their numbers: bits that depend on nothing else, chunks, rows that must not
// reach a product, refusals that write nothing.
#include "kernels/cpu/cpu_head.h"

#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/core/registry.h"
#include "kernels/cpu/convert.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

const float kNan = std::nanf("");

// Tensors in memory of the test; the region's number is their place.
class Memory final : public RegionResolver {
 public:
  absl::StatusOr<Region> Resolve(uint64_t region) const override {
    Region found;
    found.base = const_cast<std::byte*>(buffers_[region].data());
    found.bytes = buffers_[region].size();
    found.writable = true;
    return found;
  }
  void Put(v1::Tensor* tensor, v1::DType dtype, const std::vector<int64_t>& shape,
           const std::vector<float>& values = {}) {
    int64_t count = 1;
    for (const int64_t extent : shape) {
      tensor->add_shape(extent);
      count *= extent;
    }
    tensor->set_dtype(dtype);
    tensor->mutable_region()->set_region(buffers_.size());
    buffers_.emplace_back(count * SizeOf(static_cast<DType>(dtype)));
    if (!values.empty()) {
      StoreFromF32(values.data(), count, false, static_cast<DType>(dtype), buffers_.back().data());
    }
  }
  void PutIndex(v1::Tensor* tensor, const std::vector<int64_t>& values) {
    Put(tensor, v1::I64, {static_cast<int64_t>(values.size())});
    if (!values.empty()) std::memcpy(buffers_.back().data(), values.data(), values.size() * 8);
  }
  std::vector<float> Get(const v1::Tensor& tensor) const {
    const auto& bytes = buffers_[tensor.region().region()];
    const auto dtype = static_cast<DType>(tensor.dtype());
    std::vector<float> values(bytes.size() / SizeOf(dtype));
    LoadAsF32(bytes.data(), dtype, static_cast<int64_t>(values.size()), values.data());
    return values;
  }

 private:
  std::deque<std::vector<std::byte>> buffers_;
};

class Cpu {
 public:
  explicit Cpu(uint64_t workspace_bytes = uint64_t{64} << 20, int threads = 2)
      : device_(CpuDevice::Create({workspace_bytes, threads}).value()),
        head_(*device_),
        registry_(Registry::Create().value()) {}

  absl::Status Run(const v1::Op& op, const Memory& memory, v1::OpReply* reply,
                   const RunOptions& options = {}) {
    Backend backend{device_.get(), &head_};
    auto admitted = Admit(registry_, op, memory);
    if (!admitted.ok()) return admitted.status();
    return RunOp(*admitted, options, backend, reply);
  }
  Backend backend() { return {device_.get(), &head_}; }
  const Registry& registry() const { return registry_; }

 private:
  std::unique_ptr<CpuDevice> device_;
  CpuHead head_;
  Registry registry_;
};

struct Data {
  int64_t rows = 0, hidden_size = 0, vocab = 0;
  std::vector<float> hidden, weight, bias;
  std::vector<int64_t> target;
};

Data MakeData(int64_t rows, int64_t hidden_size, int64_t vocab, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Data data{rows, hidden_size, vocab, {}, {}, {}, {}};
  for (int64_t i = 0; i < rows * hidden_size; ++i) data.hidden.push_back(normal(random));
  for (int64_t i = 0; i < vocab * hidden_size; ++i) data.weight.push_back(0.3f * normal(random));
  for (int64_t i = 0; i < vocab; ++i) data.bias.push_back(0.3f * normal(random));
  for (int64_t i = 0; i < rows; ++i) data.target.push_back(i * 37 % vocab);
  return data;
}

void PutHead(const Data& data, v1::DType dtype, Memory* memory, v1::LinearInput* linear,
             v1::HeadOptions* head) {
  memory->Put(linear->mutable_hidden(), dtype, {data.rows, data.hidden_size}, data.hidden);
  memory->Put(linear->mutable_weight(), dtype, {data.vocab, data.hidden_size}, data.weight);
  memory->Put(linear->mutable_bias(), dtype, {data.vocab}, data.bias);
  memory->PutIndex(head->mutable_target(), data.target);
}

std::vector<float> Logprob(Cpu& cpu, const Data& data, v1::DType dtype,
                           std::string* plan = nullptr) {
  Memory memory;
  v1::Op op;
  v1::LinearLogprob& request = *op.mutable_linear_logprob();
  PutHead(data, dtype, &memory, request.mutable_linear(), request.mutable_head());
  request.mutable_head()->set_softcap(20);
  memory.Put(request.mutable_logprob(), v1::F32, {data.rows});
  RunOptions options;
  options.batch_invariant = true;
  v1::OpReply reply;
  EXPECT_OK(cpu.Run(op, memory, &reply, options));
  if (plan != nullptr) *plan = reply.plan();
  return memory.Get(request.logprob());
}

std::vector<float> CrossEntropyLogprob(Cpu& cpu, const Data& data, v1::DType dtype) {
  Memory memory;
  v1::Op op;
  v1::LinearCrossEntropy& request = *op.mutable_linear_cross_entropy();
  PutHead(data, dtype, &memory, request.mutable_linear(), request.mutable_head());
  request.mutable_head()->set_softcap(20);
  memory.Put(request.mutable_logprob(), v1::F32, {data.rows});
  memory.Put(request.mutable_gradients()->mutable_grad_weight(), dtype,
             {data.vocab, data.hidden_size});
  memory.Put(request.mutable_gradients()->mutable_grad_hidden(), dtype,
             {data.rows, data.hidden_size});
  RunOptions options;
  options.batch_invariant = true;
  v1::OpReply reply;
  EXPECT_OK(cpu.Run(op, memory, &reply, options));
  return memory.Get(request.logprob());
}

Data Take(const Data& data, const std::vector<int64_t>& rows) {
  Data taken = data;
  taken.rows = static_cast<int64_t>(rows.size());
  taken.hidden.clear();
  taken.target.clear();
  for (const int64_t row : rows) {
    const auto begin = data.hidden.begin() + row * data.hidden_size;
    taken.hidden.insert(taken.hidden.end(), begin, begin + data.hidden_size);
    taken.target.push_back(data.target[row]);
  }
  return taken;
}

class BatchInvariantTest : public testing::TestWithParam<v1::DType> {};

TEST_P(BatchInvariantTest, LogprobHasTheSameBits) {
  // Several tiles of rows, two of columns with odd ends, two chunks in the smallest workspace.
  constexpr int64_t kRows = 203;
  const Data data = MakeData(kRows, 48, 1501);
  Cpu cpu;
  const std::vector<float> all = Logprob(cpu, data, GetParam());
  EXPECT_EQ(CrossEntropyLogprob(cpu, data, GetParam()), all) << "another operation";

  Cpu one_thread(uint64_t{64} << 20, 1);
  EXPECT_EQ(Logprob(one_thread, data, GetParam()), all) << "another number of threads";
  Cpu small(uint64_t{1} << 20);
  std::string plan;
  EXPECT_EQ(Logprob(small, data, GetParam(), &plan), all) << "other chunks";
  EXPECT_EQ(plan.find("chunks=1x"), std::string::npos) << plan;
  EXPECT_EQ(CrossEntropyLogprob(small, data, GetParam()), all) << "another operation in chunks";

  std::vector<int64_t> order;
  for (int64_t i = 0; i < kRows; ++i) order.push_back((i * 30 + 11) % kRows);
  const std::vector<float> shuffled = Logprob(cpu, Take(data, order), GetParam());
  for (int64_t i = 0; i < kRows; ++i) EXPECT_EQ(shuffled[i], all[order[i]]) << "another position";
  for (const int64_t row : {0, 31, 32, 202}) {
    EXPECT_EQ(Logprob(cpu, Take(data, {row}), GetParam())[0], all[row]) << "alone";
  }
  Data some = data;
  for (int64_t i = 0; i < kRows; i += 2) some.target[i] = -100;
  const std::vector<float> odd = Logprob(cpu, some, GetParam());
  for (int64_t i = 0; i < kRows; ++i)
    EXPECT_EQ(odd[i], i % 2 == 0 ? 0 : all[i]) << "others ignored";
}

INSTANTIATE_TEST_SUITE_P(DTypes, BatchInvariantTest, testing::Values(v1::F32, v1::BF16, v1::F16));

struct Gradients {
  std::vector<float> hidden, weight, bias;
  std::string plan;
  absl::Status status;
};

struct GradientCall {
  v1::DType dtype = v1::F32;
  int64_t valid_vocab = 0;
  std::vector<float> row_weight;
  std::vector<float> old_weight;  // ACCUMULATE
};

Gradients RunGradients(Cpu& cpu, const Data& data, const GradientCall& call) {
  Memory memory;
  v1::Op op;
  v1::LinearCrossEntropy& request = *op.mutable_linear_cross_entropy();
  PutHead(data, call.dtype, &memory, request.mutable_linear(), request.mutable_head());
  if (call.valid_vocab > 0) request.mutable_head()->set_valid_vocab(call.valid_vocab);
  if (!call.row_weight.empty()) {
    memory.Put(request.mutable_row_weight(), v1::F32, {data.rows}, call.row_weight);
  }
  v1::LinearGradients& gradients = *request.mutable_gradients();
  memory.Put(gradients.mutable_grad_hidden(), call.dtype, {data.rows, data.hidden_size});
  memory.Put(gradients.mutable_grad_weight(), call.dtype, {data.vocab, data.hidden_size},
             call.old_weight);
  memory.Put(gradients.mutable_grad_bias(), call.dtype, {data.vocab});
  if (!call.old_weight.empty()) gradients.set_grad_weight_mode(v1::GRAD_MODE_ACCUMULATE);
  v1::OpReply reply;
  Gradients out;
  out.status = cpu.Run(op, memory, &reply);
  out.hidden = memory.Get(gradients.grad_hidden());
  out.weight = memory.Get(gradients.grad_weight());
  out.bias = memory.Get(gradients.grad_bias());
  out.plan = reply.plan();
  return out;
}

double RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(error / norm);
}

TEST(CpuHeadTest, ChunksAddUp) {
  const Data data = MakeData(700, 32, 600);
  Cpu large;
  Cpu small(uint64_t{1} << 20);
  for (const v1::DType dtype : {v1::F32, v1::BF16}) {
    GradientCall call;
    call.dtype = dtype;
    const Gradients whole = RunGradients(large, data, call);
    const Gradients parts = RunGradients(small, data, call);
    ASSERT_OK(whole.status);
    ASSERT_OK(parts.status);
    EXPECT_NE(whole.plan.find("chunks=1x"), std::string::npos) << whole.plan;
    EXPECT_EQ(parts.plan.find("chunks=1x"), std::string::npos) << parts.plan;
    // bf16 sums are rounded once: chunks differ by an odd last bit, not by one for each chunk.
    const double bound = dtype == v1::F32 ? 1e-6 : 2e-4;
    EXPECT_LT(RelativeError(parts.hidden, whole.hidden), bound);
    EXPECT_LT(RelativeError(parts.weight, whole.weight), bound);
    EXPECT_LT(RelativeError(parts.bias, whole.bias), bound);
    EXPECT_EQ(RunGradients(small, data, call).weight, parts.weight) << "equal calls, equal bits";
    EXPECT_EQ(RunGradients(large, data, call).weight, whole.weight) << "equal calls, equal bits";
  }
}

TEST(CpuHeadTest, AccumulateRoundsTheSumOnce) {
  const Data data = MakeData(700, 32, 600);
  GradientCall exact;
  Cpu large;
  Data rounded = data;  // what the bf16 call sees
  for (auto* values : {&rounded.hidden, &rounded.weight, &rounded.bias}) {
    for (float& value : *values) value = FromBF16(ToBF16(value));
  }
  const Gradients gradient = RunGradients(large, rounded, exact);
  GradientCall call;
  call.dtype = v1::BF16;
  call.old_weight.assign(600 * 32, 3.0f);
  for (const uint64_t kilobytes : {1024, 65536}) {
    Cpu cpu(kilobytes << 10);
    const Gradients sum = RunGradients(cpu, data, call);
    ASSERT_OK(sum.status);
    int64_t other = 0;
    for (size_t i = 0; i < sum.weight.size(); ++i) {
      if (sum.weight[i] != FromBF16(ToBF16(3.0f + gradient.weight[i]))) ++other;
    }
    // Only where the fp32 sums fall on different sides of a middle.
    EXPECT_LE(other, 20) << sum.plan;
  }
}

TEST(CpuHeadTest, PaddingOfTheMatrixNeverReachesAProduct) {
  Data data = MakeData(9, 8, 40);
  const Data clean = data;
  for (int64_t i = 25 * 8; i < 40 * 8; ++i) data.weight[i] = kNan;
  for (int64_t j = 25; j < 40; ++j) data.bias[j] = kNan;
  for (int64_t& target : data.target) target %= 25;
  GradientCall call;
  call.valid_vocab = 25;
  Cpu cpu;
  const Gradients out = RunGradients(cpu, data, call);
  ASSERT_OK(out.status);
  for (const float value : out.hidden) EXPECT_TRUE(std::isfinite(value));
  for (size_t i = 0; i < out.weight.size(); ++i) {
    EXPECT_TRUE(i < 25 * 8 ? std::isfinite(out.weight[i]) : out.weight[i] == 0) << i;
  }
  for (size_t j = 25; j < 40; ++j) EXPECT_EQ(out.bias[j], 0);
}

TEST(CpuHeadTest, RowsOfFactorZeroNeverReachAProduct) {
  Data data = MakeData(9, 8, 40);
  GradientCall call;
  call.row_weight.assign(9, 1.0f);
  call.row_weight[0] = call.row_weight[4] = 0;
  Cpu cpu;
  const Gradients clean = RunGradients(cpu, data, call);
  for (const int64_t row : {0, 4}) {
    for (int64_t k = 0; k < 8; ++k) data.hidden[row * 8 + k] = kNan;
  }
  const Gradients out = RunGradients(cpu, data, call);
  ASSERT_OK(out.status);
  EXPECT_EQ(out.weight, clean.weight);
  EXPECT_EQ(out.hidden, clean.hidden);
  for (int64_t k = 0; k < 8; ++k) EXPECT_EQ(out.hidden[4 * 8 + k], 0);
}

TEST(CpuHeadTest, NoRowCountsAndNoRow) {
  Data data = MakeData(5, 8, 40);
  data.target.assign(5, -100);
  Cpu cpu;
  GradientCall call;
  for (const v1::DType dtype : {v1::F32, v1::BF16}) {
    call.dtype = dtype;
    const Gradients none = RunGradients(cpu, data, call);
    ASSERT_OK(none.status);
    for (const float value : none.weight) EXPECT_EQ(value, 0);
    const Gradients empty = RunGradients(cpu, Take(data, {}), call);
    ASSERT_OK(empty.status);
    EXPECT_EQ(empty.weight, none.weight);
  }
  call.old_weight.assign(40 * 8, 2.0f);
  EXPECT_EQ(RunGradients(cpu, data, call).weight, call.old_weight);
}

TEST(CpuHeadTest, RefusalWritesNothing) {
  Data data = MakeData(5, 8, 40);
  data.target[3] = 40;
  GradientCall call;
  call.old_weight.assign(40 * 8, 2.0f);
  Cpu cpu;
  const Gradients out = RunGradients(cpu, data, call);
  EXPECT_EQ(Refusal(out.status), "INVALID_ARGUMENT target");
  EXPECT_EQ(GetErrorDetail(out.status)->row(), 3);
  EXPECT_EQ(out.weight, call.old_weight);
}

// Without waiting the wrong target is found by the device: the record says so, and the products leave the destination alone.
TEST(CpuHeadTest, RecordKeepsTheErrorWhereTheHostMayNotWait) {
  Data data = MakeData(5, 8, 40);
  data.target[3] = int64_t{1} << 60;
  Memory memory;
  v1::Op op;
  v1::LinearCrossEntropy& request = *op.mutable_linear_cross_entropy();
  PutHead(data, v1::F32, &memory, request.mutable_linear(), request.mutable_head());
  v1::LinearGradients& gradients = *request.mutable_gradients();
  const std::vector<float> old(40 * 8, 2.0f);
  memory.Put(gradients.mutable_grad_weight(), v1::F32, {40, 8}, old);
  gradients.set_grad_weight_mode(v1::GRAD_MODE_ACCUMULATE);
  memory.Put(request.mutable_class_weight(), v1::F32, {40}, std::vector<float>(40, 1.0f));
  Cpu cpu;
  auto admitted = Admit(cpu.registry(), op, memory);
  ASSERT_OK(admitted);
  RunOptions options;
  options.host_may_wait = false;
  Backend backend = cpu.backend();
  LaunchedOp launched;
  ASSERT_OK(Launch(*admitted, options, backend, &launched));
  const ResultRecord& record = *launched.pending.record;
  EXPECT_EQ(record.code, 3);
  EXPECT_EQ(admitted->op->schema().fields()[record.field].name, "target");
  EXPECT_EQ(record.row, 3);
  EXPECT_EQ(memory.Get(gradients.grad_weight()), old);
}

TEST(CpuHeadTest, SmallWorkspaceIsRefusedByName) {
  const Data data = MakeData(4, 8, 300000);
  Cpu cpu(1 << 20);
  GradientCall call;
  const Gradients out = RunGradients(cpu, data, call);
  EXPECT_EQ(out.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(out.status)->reason(), "WORKSPACE");
}

// Rows far apart, and a matrix whose rows overlap (every row a shifted window): legal inputs that no product reads in place.
TEST(CpuHeadTest, Strides) {
  Data data = MakeData(6, 8, 40);
  for (int64_t j = 0; j < 40; ++j) {
    for (int64_t k = 0; k < 8; ++k)
      data.weight[j * 8 + k] = std::sin(static_cast<float>(2 * j + k));
  }
  Cpu cpu;
  Memory memory;
  v1::Op op;
  v1::LinearLogprob& request = *op.mutable_linear_logprob();
  PutHead(data, v1::F32, &memory, request.mutable_linear(), request.mutable_head());
  memory.Put(request.mutable_logprob(), v1::F32, {6});
  v1::OpReply reply;
  ASSERT_OK(cpu.Run(op, memory, &reply));
  const std::vector<float> expected = memory.Get(request.logprob());

  std::vector<float> window(86);
  for (int i = 0; i < 86; ++i) window[i] = std::sin(static_cast<float>(i));
  std::vector<float> wide(6 * 11, kNan);
  for (int64_t i = 0; i < 6; ++i) std::copy_n(&data.hidden[i * 8], 8, &wide[i * 11]);
  v1::Tensor& weight = *request.mutable_linear()->mutable_weight();
  weight.Clear();
  memory.Put(&weight, v1::F32, {86}, window);
  weight.clear_shape();
  weight.add_shape(40);
  weight.add_shape(8);
  weight.add_strides(2);
  weight.add_strides(1);
  v1::Tensor& hidden = *request.mutable_linear()->mutable_hidden();
  hidden.Clear();
  memory.Put(&hidden, v1::F32, {66}, wide);
  hidden.clear_shape();
  for (const int64_t extent : {2, 3, 8}) hidden.add_shape(extent);
  for (const int64_t stride : {33, 11, 1}) hidden.add_strides(stride);
  ASSERT_OK(cpu.Run(op, memory, &reply));
  const std::vector<float> got = memory.Get(request.logprob());
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(got[i], expected[i], 1e-5);
}

}  // namespace
}  // namespace lossd
