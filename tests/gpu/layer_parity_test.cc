// The layers on a GPU against the CPU backend: every option and type, rows in one warp, a block, a cluster, and too long for either; gaps
// between rows; rows further apart than 32 bits reach. Usage: layer_parity_test [GoogleTest flags]
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/core/error.h"
#include "tests/gpu/bench_device.h"
#include "tests/gpu/cuda_runner.h"
#include "tests/testing/local_runner.h"
#include "tests/testing/request_builder.h"

namespace lossd {
namespace {

struct LayerCase {
  std::string op;
  std::string inputs;
  std::string options;
  std::string outputs;
  int64_t factor = 1;  // of the width: gate_up
};

std::vector<LayerCase> RowCases() {
  return {
      {"RmsNorm", "", "", "y rstd"},
      {"RmsNorm", "weight", "", "y rstd"},
      {"RmsNorm", "weight", "casting=GEMMA weight_offset=1", "y"},
      {"RmsNorm", "weight", "casting=INPUT eps=0.1", "y rstd"},
      {"RmsNorm", "weight residual", "", "y residual_out rstd"},
      {"RmsNorm", "weight residual", "casting=GEMMA", "y residual_out"},
      {"RmsNormBackward", "weight", "", "grad_x grad_weight"},
      {"RmsNormBackward", "weight d_residual_out", "casting=GEMMA weight_offset=1",
       "grad_x grad_weight"},
      {"RmsNormBackward", "weight rstd", "casting=INPUT", "grad_x grad_weight"},
      {"RmsNormBackward", "", "", "grad_x"},
      {"RmsNormBackward", "weight", "", "grad_weight"},
      {"LayerNorm", "", "", "y mean rstd"},
      {"LayerNorm", "weight bias", "", "y"},
      {"LayerNormBackward", "weight", "", "grad_x grad_weight grad_bias"},
      {"LayerNormBackward", "weight mean rstd", "", "grad_x grad_weight grad_bias"},
      {"LayerNormBackward", "", "", "grad_bias"},
      {"Softmax", "mask", "", "y"},
      {"Softmax", "", "", "y"},
      {"SoftmaxBackward", "mask", "", "grad_x"},
  };
}

std::vector<LayerCase> PointCases() {
  return {
      {"Swiglu", "gate up", "gate_scale=0.5 down_scale=2", "y"},
      {"Swiglu", "gate_up", "round_activation=true", "y", 2},
      {"SwigluBackward", "gate up", "gate_scale=0.5 down_scale=2", "grad_gate grad_up"},
      {"SwigluBackward", "gate_up", "round_activation=true", "grad_gate_up", 2},
      {"SwigluBackward", "gate up", "", "grad_up"},
      {"Geglu", "gate up", "round_activation=true", "y"},
      {"Geglu", "gate_up", "approximation=ERF", "y", 2},
      {"GegluBackward", "gate_up", "round_activation=true", "grad_gate_up", 2},
      {"GegluBackward", "gate up", "approximation=ERF", "grad_gate grad_up"},
      {"ReluSquared", "", "", "y"},
      {"ReluSquaredBackward", "", "", "grad_x"},
  };
}

// Cheap numbers of a few units, the same in every run.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  float Real() { return static_cast<float>(Next() >> 40) * 0x1p-22f - 2.0f; }

 private:
  uint64_t state_;
};

template <class T>
void Put(T value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void Refill(const FieldRule& rule, int64_t positions, Numbers& numbers, v1::Tensor* tensor) {
  int64_t count = 1;
  for (const int64_t extent : tensor->shape()) count *= extent;
  std::string* bytes = tensor->mutable_inline_data();
  bytes->clear();
  bytes->reserve(count * SizeOf(static_cast<DType>(tensor->dtype())));
  for (int64_t i = 0; i < count; ++i) {
    switch (tensor->dtype()) {
      case v1::F32:
        Put(rule.name == "rstd" ? 1 + 0.1f * numbers.Real() : numbers.Real(), bytes);
        break;
      case v1::BF16: {
        const float value = numbers.Real();
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        Put(static_cast<uint16_t>(bits >> 16), bytes);
        break;
      }
      case v1::F16:
        Put(static_cast<_Float16>(numbers.Real()), bytes);
        break;
      case v1::U8:
        Put(static_cast<uint8_t>(i % 5 != 1), bytes);
        break;
      case v1::I64:
        Put(static_cast<int64_t>(numbers.Next() % positions), bytes);
        break;
      default:
        break;
    }
  }
}

class LayerParityTest : public testing::Test {
 protected:
  // The builder makes two rows; more of them are filled in here.
  v1::Op Build(const LayerCase& c, int64_t rows, v1::DType model,
               std::map<std::string, int64_t> dims) {
    const OpSchema& schema = cpu_.registry().Find(c.op)->schema();
    RequestBuilder builder;
    for (const auto& [name, extent] : dims) builder.dims[name] = extent;
    builder.dims["N"] = 2;
    RequestSpec spec;
    spec.op = c.op;
    spec.inputs = c.inputs;
    spec.options = c.options;
    spec.outputs = c.outputs;
    spec.model = model;
    v1::Op op = builder.Build(schema, spec);
    google::protobuf::Message* message = MutableRequest(&op);
    Numbers numbers(rows + 7);
    for (const FieldRule& rule : schema.fields()) {
      if (!rule.is_tensor || !HasField(*message, rule)) continue;
      v1::Tensor* tensor = MutableTensor(message, rule);
      if (rule.dims[0] == "N") {
        tensor->set_shape(0, rows);
        if (rule.is_input()) Refill(rule, builder.dims["P"], numbers, tensor);
      }
      if (rule.is_output() && rule.tensor.dtypes() == v1::MODEL) tensor->set_dtype(model);
    }
    return op;
  }

  // ||a - b|| / ||b||, the latter at least that of elements of `least`.
  static double Distance(const v1::Tensor& a, const v1::Tensor& b, double least = 1e-6) {
    const std::vector<double> x = Elements(a);
    const std::vector<double> y = Elements(b);
    if (x.size() != y.size()) return INFINITY;
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i]) != std::isnan(y[i])) return INFINITY;
      if (std::isnan(x[i])) continue;
      difference += (x[i] - y[i]) * (x[i] - y[i]);
      norm += y[i] * y[i];
    }
    return difference == 0 ? 0 : std::sqrt(difference / std::max(norm, least * least * x.size()));
  }

  void Compare(const LayerCase& c, int64_t rows, v1::DType model,
               const std::map<std::string, int64_t>& dims) {
    std::string name = absl::StrCat(c.op, " ", c.inputs, " ", c.options, " ", v1::DType_Name(model),
                                    " rows ", rows);
    for (const auto& [dim, extent] : dims) absl::StrAppend(&name, " ", dim, " ", extent);
    const v1::Op op = Build(c, rows, model, dims);
    const auto want = cpu_.Run(op);
    ASSERT_TRUE(want.ok()) << name << ": " << want.status();
    RunOptions enqueued;
    enqueued.host_may_wait = false;
    // Inline tensors once more: small ones are enough.
    const bool large = want->outputs().begin()->second.inline_data().size() > 1 << 20;
    for (int way = large ? 1 : 0; way < 3; ++way) {
      const auto got = way == 0   ? cuda_.Run(op)
                       : way == 1 ? cuda_.RunInMemory(op)
                                  : cuda_.RunInMemory(op, enqueued);
      ASSERT_TRUE(got.ok()) << name << ", way " << way << ": " << got.status();
      if (way == 1) ++plans_[PlanKind(got->plan())];
      ++compared_;
      for (const auto& [output, tensor] : want->outputs()) {
        // The gradient of a norm of one column cancels to nothing.
        const bool nothing = dims.count("H") > 0 && dims.at("H") == 1;
        const double distance = Distance(got->outputs().at(output), tensor, nothing ? 0.5 : 1e-6);
        double& worst = worst_[v1::DType_Name(tensor.dtype())];
        worst = std::max(worst, distance);
        const double tolerance = tensor.dtype() == v1::F32    ? 2e-5
                                 : tensor.dtype() == v1::BF16 ? 2e-3
                                                              : 3e-4;
        EXPECT_LE(distance, tolerance)
            << name << ", way " << way << ", " << output << ", plan " << got->plan();
      }
      if (way != 1) continue;
      const auto again = cuda_.RunInMemory(op);
      ASSERT_TRUE(again.ok()) << name << ": " << again.status();
      for (const auto& [output, tensor] : got->outputs()) {
        EXPECT_TRUE(tensor.inline_data() == again->outputs().at(output).inline_data())
            << name << ": " << output << " differs between equal calls";
      }
    }
  }

  // Width of every kind of dimension.
  static std::map<std::string, int64_t> Widths(int64_t width) {
    return {{"H", width}, {"C", width}, {"F", width}};
  }

  static std::string PlanKind(const std::string& plan) {
    if (absl::StrContains(plan, "clusters of")) {
      return plan.substr(plan.find("clusters"));
    }
    if (absl::StrContains(plan, "blocks of")) return plan.substr(plan.find("blocks"));
    return plan.substr(0, plan.find(','));
  }

  ~LayerParityTest() override {
    for (const auto& [what, distance] : worst_) {
      std::cout << "  worst " << what << ": " << distance << "\n";
    }
    std::cout << "  " << compared_ << " comparisons:";
    for (const auto& [plan, count] : plans_) std::cout << " [" << plan << "] " << count << ";";
    std::cout << "\n";
  }

  LocalRunner cpu_{uint64_t{1} << 30};
  CudaRunner cuda_{uint64_t{1} << 30};
  std::map<std::string, double> worst_;
  std::map<std::string, int> plans_;
  int compared_ = 0;
};

struct LayerSize {
  int64_t rows;
  int64_t width;
  bool all_types;
};

TEST_F(LayerParityTest, RowsOfEveryLength) {
  // One column; any layout; a warp for each row and more rows than warps; an odd number of threads; a block; several packs behind the end;
  // clusters of two and more; the largest; too long for all.
  for (const LayerSize size : {LayerSize{7, 1, true},
                               {33, 77, true},
                               {5000, 64, true},
                               {40, 1000, true},
                               {700, 4096, false},
                               {150, 8200, false},
                               {80, 16400, true},
                               {20, 65600, false},
                               {9, 131072, true},
                               {5, 262144, false},
                               {2, 600008, false},
                               {2, 70001, true}}) {
    for (const LayerCase& c : RowCases()) {
      for (const v1::DType model : {v1::BF16, v1::F32, v1::F16}) {
        if (model != v1::BF16 && !size.all_types) continue;
        if (model == v1::F16 && size.width > 2000) continue;
        Compare(c, size.rows, model, Widths(size.width));
      }
    }
  }
}

TEST_F(LayerParityTest, ElementsOfEveryKind) {
  for (const LayerSize size : {LayerSize{7, 1, true},
                               {33, 77, true},
                               {130, 1000, true},
                               {5000, 8, true},
                               {3, 600008, false}}) {
    for (const LayerCase& c : PointCases()) {
      for (const v1::DType model : {v1::BF16, v1::F32, v1::F16}) {
        if (model == v1::BF16 || size.all_types) Compare(c, size.rows, model, Widths(size.width));
      }
    }
  }
}

TEST_F(LayerParityTest, HeadsOfEveryKind) {
  struct Heads {
    int64_t rows, heads, dim, rotary;
  };
  for (const Heads h : {Heads{50, 40, 128, 128},
                        {50, 1, 64, 64},
                        {333, 5, 128, 64},
                        {20, 7, 96, 32},
                        {9, 3, 10, 6},
                        {4, 130, 256, 256}}) {
    for (const char* op : {"Rope", "RopeBackward"}) {
      for (const char* layout : {"HALF_SPLIT", "INTERLEAVED"}) {
        for (const bool positions : {false, true}) {
          LayerCase c;
          c.op = op;
          c.inputs = positions ? "position" : "";
          c.options = absl::StrCat("layout=", layout, " rotary_dim=", h.rotary);
          c.outputs = c.op == "Rope" ? "y" : "grad_x";
          const std::map<std::string, int64_t> dims = {
              {"A", h.heads}, {"D", h.dim}, {"R", h.rotary / 2}, {"P", positions ? 19 : h.rows}};
          for (const v1::DType model : {v1::BF16, v1::F32, v1::F16}) {
            Compare(c, h.rows, model, dims);
          }
        }
      }
    }
  }
}

// The types of outputs need not be those of inputs.
TEST_F(LayerParityTest, MixedTypes) {
  for (const LayerCase& c : RowCases()) {
    v1::Op op = Build(c, 9, v1::BF16, Widths(264));
    const OpSchema& schema = cpu_.registry().Find(c.op)->schema();
    for (const char* name : {"y", "residual_out", "grad_x", "grad_weight", "grad_bias"}) {
      const FieldRule* rule = schema.Find(name);
      if (rule == nullptr || !rule->is_output() || !HasField(*MutableRequest(&op), *rule)) continue;
      MutableTensor(MutableRequest(&op), *rule)->set_dtype(v1::F32);
    }
    const auto want = cpu_.Run(op);
    const auto got = cuda_.RunInMemory(op);
    ASSERT_TRUE(want.ok() && got.ok()) << c.op << want.status() << got.status();
    for (const auto& [output, tensor] : want->outputs()) {
      // A rounding in the middle may go either way.
      EXPECT_LE(Distance(got->outputs().at(output), tensor), 4e-4) << c.op << " " << output;
    }
  }
}

TEST_F(LayerParityTest, APositionOutsideIsRefusedOnce) {
  LayerCase c = {"Rope", "position", "layout=HALF_SPLIT", "y"};
  const std::map<std::string, int64_t> dims = {{"A", 4}, {"D", 64}, {"R", 32}, {"P", 19}};
  const v1::Op good = Build(c, 500, v1::BF16, dims);
  v1::Op bad = good;
  v1::Tensor* position = bad.mutable_rope()->mutable_rotary()->mutable_position();
  std::vector<double> rows = Elements(*position);
  rows[77] = 19;
  rows[301] = -1;
  SetElements(rows, position);
  RunOptions enqueued;
  enqueued.host_may_wait = false;
  for (const bool has_output : {true, false}) {
    if (!has_output) bad.mutable_rope()->clear_y();
    for (int i = 0; i < 3; ++i) {
      const auto refused = cuda_.RunInMemory(bad, i == 2 ? enqueued : RunOptions());
      ASSERT_FALSE(refused.ok());
      const auto detail = GetErrorDetail(refused.status());
      ASSERT_TRUE(detail.has_value()) << refused.status();
      EXPECT_EQ(detail->field(), "position");
      EXPECT_EQ(detail->row(), 77);
      EXPECT_TRUE(cuda_.RunInMemory(good).ok());
    }
  }
}

// Rows whose offsets do not fit into 32 bits; each of the two tensors has a span of its own.
TEST_F(LayerParityTest, RowsFarApart) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kStride = int64_t{1300} << 20;  // elements
  constexpr int64_t kWidth = 4096;
  constexpr uint64_t kSpan = (kRows - 1) * kStride * 2 + kWidth * 4;
  Regions regions;
  const uint64_t from = regions.Add(kSpan);
  const uint64_t to = regions.Add(kSpan);
  Numbers numbers(3);
  std::vector<uint16_t> rows(kRows * kWidth);
  for (uint16_t& value : rows) value = static_cast<uint16_t>(0x3f00 + numbers.Next() % 0x100);
  for (int64_t r = 0; r < kRows; ++r) {
    Check(cudaMemcpy(static_cast<char*>(regions.data(from)) + r * kStride * 2,
                     rows.data() + r * kWidth, kWidth * 2, cudaMemcpyHostToDevice));
  }
  Check(cudaDeviceSynchronize());
  struct Far {
    LayerCase c;
    const char* in;
    const char* out;
    int64_t width_in;
    int64_t width_out;
  };
  const std::vector<Far> cases = {
      {{"RmsNorm", "", "", "y"}, "x", "y", kWidth, kWidth},
      {{"LayerNorm", "", "", "y"}, "x", "y", 77, 77},
      {{"Swiglu", "gate_up", "", "y"}, "gate_up", "y", kWidth, kWidth / 2},
      {{"Geglu", "gate_up", "", "y"}, "gate_up", "y", 154, 77},
      {{"Softmax", "", "", "y"}, "x", "y", kWidth, kWidth},
      {{"ReluSquared", "", "", "y"}, "x", "y", kWidth, kWidth},
      {{"Rope", "", "layout=HALF_SPLIT", "y"}, "x", "y", kWidth, kWidth},
  };
  for (const Far& far : cases) {
    const bool rope = far.c.op == "Rope";
    std::map<std::string, int64_t> dims = {
        {"H", far.width_out}, {"C", far.width_out}, {"F", far.width_out}};
    if (rope) dims = {{"A", 32}, {"D", 128}, {"R", 64}, {"P", kRows}};
    v1::Op op = Build(far.c, kRows, v1::BF16, dims);
    const OpSchema& schema = cpu_.registry().Find(far.c.op)->schema();
    std::string bytes;
    for (int64_t r = 0; r < kRows; ++r) {
      bytes.append(reinterpret_cast<const char*>(rows.data() + r * kWidth), far.width_in * 2);
    }
    MutableTensor(MutableRequest(&op), *schema.Find(far.in))->set_inline_data(bytes);
    const auto want = cpu_.Run(op);
    ASSERT_TRUE(want.ok()) << want.status();
    for (const char* name : {far.in, far.out}) {
      v1::Tensor* tensor = MutableTensor(MutableRequest(&op), *schema.Find(name));
      tensor->add_strides(kStride);
      if (rope) tensor->add_strides(128);
      tensor->add_strides(1);
      tensor->mutable_region()->set_region(name == far.in ? from : to);
    }
    auto admitted = Admit(cuda_.registry(), op, regions);
    ASSERT_TRUE(admitted.ok()) << admitted.status();
    Backend backend = cuda_.cuda().backend();
    v1::OpReply reply;
    ASSERT_TRUE(RunOp(*admitted, {}, backend, &reply).ok());
    v1::Tensor got = want->outputs().at(far.out);
    for (int64_t r = 0; r < kRows; ++r) {
      Check(cudaMemcpy(got.mutable_inline_data()->data() + r * far.width_out * 2,
                       static_cast<char*>(regions.data(to)) + r * kStride * 2, far.width_out * 2,
                       cudaMemcpyDeviceToHost));
    }
    EXPECT_LE(Distance(got, want->outputs().at(far.out)), 2e-3) << far.c.op;
  }
}

}  // namespace
}  // namespace lossd

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto devices = lossd::CudaBackend::CountDevices();
  if (!devices.ok() || *devices == 0) {
    std::cout << "SKIPPED: no GPU\n";
    return 77;
  }
  return RUN_ALL_TESTS();
}
