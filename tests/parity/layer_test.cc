// The layers on the CPU: what the generic tests cannot say. Rounding in the middle of a norm, gradients with respect to inputs that the
// backward call does not have, long rows, gaps, rows further apart than 32 bits reach, results in place of inputs.
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_layers.h"
#include "tests/testing/local_runner.h"
#include "tests/testing/matchers.h"
#include "tests/testing/request_builder.h"

namespace lossd {
namespace {

using Values = std::vector<double>;

class LayerTest : public testing::Test {
 protected:
  const OpSchema& SchemaOf(const std::string& op) { return runner_.registry().Find(op)->schema(); }
  v1::Op Build(const RequestSpec& spec) { return builder_.Build(SchemaOf(spec.op), spec); }
  v1::Tensor* TensorOf(v1::Op* op, const std::string& op_name, const std::string& field) {
    return MutableTensor(MutableRequest(op), *SchemaOf(op_name).Find(field));
  }
  v1::OpReply Run(const v1::Op& op, const RunOptions& options = {}) {
    auto reply = runner_.Run(op, options);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? *std::move(reply) : v1::OpReply();
  }
  Values Output(const v1::Op& op, const std::string& name) {
    const v1::OpReply reply = Run(op);
    return Elements(reply.outputs().at(name));
  }

  LocalRunner runner_;
  RequestBuilder builder_;
};

double Dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double Round(DType type, double value) {
  const auto f = static_cast<float>(value);
  if (type == DType::kBF16) return FromBF16(ToBF16(f));
  return type == DType::kF16 ? FromF16(ToF16(f)) : f;
}

void ExpectNear(const Values& got, const Values& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], tolerance * (1 + std::fabs(want[i]))) << i;
  }
}

// Every place of the specification at which a norm rounds, and none else, in both 16-bit types.
TEST_F(LayerTest, CastingModesRoundWhereTheySay) {
  builder_.dims["H"] = 40;
  for (const v1::DType model : {v1::BF16, v1::F16}) {
    const auto type = static_cast<DType>(model);
    std::map<std::string, Values> by_mode;
    for (const std::string casting : {"LLAMA", "GEMMA", "INPUT"}) {
      v1::Op op = Build({.op = "RmsNorm",
                         .inputs = "residual weight",
                         .options = "weight_offset=1 eps=0.01 casting=" + casting,
                         .outputs = "y residual_out rstd",
                         .model = model});
      for (const char* name : {"y", "residual_out"}) {
        TensorOf(&op, "RmsNorm", name)->set_dtype(model);
      }
      const v1::OpReply reply = Run(op);
      const Values x = Elements(*TensorOf(&op, "RmsNorm", "x"));
      const Values residual = Elements(*TensorOf(&op, "RmsNorm", "residual"));
      const Values weight = Elements(*TensorOf(&op, "RmsNorm", "weight"));
      const Values y = Elements(reply.outputs().at("y"));
      const Values sum = Elements(reply.outputs().at("residual_out"));
      const Values rstd = Elements(reply.outputs().at("rstd"));
      int wrong = 0;
      for (size_t n = 0; n < rstd.size(); ++n) {
        double square = 0;
        for (int h = 0; h < 40; ++h) {
          const double s = Round(type, x[n * 40 + h] + residual[n * 40 + h]);
          EXPECT_EQ(sum[n * 40 + h], s);
          square += s * s;
        }
        double r = 1 / std::sqrt(square / 40 + 0.01);
        if (casting == "INPUT") r = Round(type, r);
        EXPECT_NEAR(rstd[n], r, casting == "INPUT" ? 0 : 1e-6);
        for (int h = 0; h < 40; ++h) {
          double hat = static_cast<float>(sum[n * 40 + h] * r);
          if (casting != "GEMMA") hat = Round(type, hat);
          // fp32 may fall on the other side of a tie.
          wrong += y[n * 40 + h] != Round(type, hat * (1 + weight[h])) ? 1 : 0;
        }
      }
      EXPECT_LE(wrong, 1) << casting << " " << v1::DType_Name(model);
      by_mode[casting] = y;
    }
    EXPECT_NE(by_mode["LLAMA"], by_mode["GEMMA"]);
    EXPECT_NE(by_mode["LLAMA"], by_mode["INPUT"]);
  }
}

// grad_weight sums what multiplied the weight: rounded in LLAMA and INPUT, unrounded in GEMMA.
TEST_F(LayerTest, TheGradientOfTheWeightSeesTheRoundedValues) {
  builder_.dims["H"] = 24;
  for (const std::string casting : {"LLAMA", "GEMMA"}) {
    v1::Op op = Build({.op = "RmsNormBackward",
                       .inputs = "weight",
                       .options = "casting=" + casting,
                       .outputs = "grad_weight",
                       .model = v1::BF16});
    const Values x = Elements(*TensorOf(&op, "RmsNormBackward", "x"));
    const Values d_y = Elements(*TensorOf(&op, "RmsNormBackward", "d_y"));
    Values want(24);
    for (int n = 0; n < 7; ++n) {
      double square = 0;
      for (int h = 0; h < 24; ++h) square += x[n * 24 + h] * x[n * 24 + h];
      const double r = 1 / std::sqrt(square / 24 + 1e-6);
      for (int h = 0; h < 24; ++h) {
        const double hat = x[n * 24 + h] * r;
        want[h] += d_y[n * 24 + h] * (casting == "GEMMA" ? hat : Round(DType::kBF16, hat));
      }
    }
    ExpectNear(Output(op, "grad_weight"), want, 2e-6);
  }
}

TEST_F(LayerTest, RoundedActivationsAreThoseOfEagerFrameworks) {
  builder_.dims["F"] = 50;
  v1::Op op = Build({.op = "Swiglu",
                     .inputs = "gate up",
                     .options = "round_activation=true",
                     .outputs = "y",
                     .model = v1::BF16});
  const Values gate = Elements(*TensorOf(&op, "Swiglu", "gate"));
  const Values up = Elements(*TensorOf(&op, "Swiglu", "up"));
  const Values y = Output(op, "y");
  int differs = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double a = gate[i] / (1 + std::exp(-gate[i]));
    EXPECT_NEAR(y[i], Round(DType::kBF16, a) * up[i], 2e-6);
    differs += std::fabs(y[i] - a * up[i]) > 1e-5 ? 1 : 0;
  }
  EXPECT_GT(differs, 100);
}

TEST_F(LayerTest, SoftmaxGradientIsTheDerivative) {
  for (const char* mask : {"", "mask"}) {
    v1::Op forward = Build({.op = "Softmax", .inputs = mask, .outputs = "y"});
    v1::Op backward = Build({.op = "SoftmaxBackward", .inputs = mask, .outputs = "grad_x"});
    v1::Tensor* x = TensorOf(&forward, "Softmax", "x");
    const Values d_y = Elements(*TensorOf(&backward, "SoftmaxBackward", "d_y"));
    SetElements(Output(forward, "y"), TensorOf(&backward, "SoftmaxBackward", "y"));
    const Values grad = Output(backward, "grad_x");
    const Values base = Elements(*x);
    constexpr double kStep = 1e-2;
    for (size_t i = 0; i < base.size(); ++i) {
      double value[2];
      for (const int sign : {0, 1}) {
        Values moved = base;
        moved[i] += sign == 0 ? -kStep : kStep;
        SetElements(moved, x);
        value[sign] = Dot(Output(forward, "y"), d_y);
      }
      EXPECT_NEAR(grad[i], (value[1] - value[0]) / (2 * kStep), 1e-4) << i;
    }
  }
}

TEST_F(LayerTest, SquaredReluGradientIsTheDerivative) {
  v1::Op forward = Build({.op = "ReluSquared", .outputs = "y"});
  v1::Op backward = Build({.op = "ReluSquaredBackward", .outputs = "grad_x"});
  const Values x = Elements(*TensorOf(&forward, "ReluSquared", "x"));
  SetElements(x, TensorOf(&backward, "ReluSquaredBackward", "x"));
  const Values d_y = Elements(*TensorOf(&backward, "ReluSquaredBackward", "d_y"));
  const Values grad = Output(backward, "grad_x");
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(grad[i], 2 * std::max(x[i], 0.0) * d_y[i], 1e-6);
  }
}

TEST_F(LayerTest, TheGradientOfABiasSumsRows) {
  v1::Op op = Build({.op = "LayerNormBackward", .outputs = "grad_bias"});
  const Values d_y = Elements(*TensorOf(&op, "LayerNormBackward", "d_y"));
  Values want(5);
  for (size_t i = 0; i < d_y.size(); ++i) want[i % 5] += d_y[i];
  ExpectNear(Output(op, "grad_bias"), want, 1e-6);
}

// Rope is linear: its backward is its transpose, whatever lies in the tables.
TEST_F(LayerTest, RopeBackwardIsTheTranspose) {
  for (const char* layout : {"HALF_SPLIT", "INTERLEAVED"}) {
    for (const int rotary : {2, 6, 8}) {
      for (const bool positions : {false, true}) {
        builder_.dims["P"] = positions ? 3 : 7;
        builder_.dims["R"] = rotary / 2;
        const std::string options = absl::StrCat("layout=", layout, " rotary_dim=", rotary);
        const std::string inputs = positions ? "position" : "";
        v1::Op forward =
            Build({.op = "Rope", .inputs = inputs, .options = options, .outputs = "y"});
        v1::Op backward = Build({.op = "RopeBackward",
                                 .inputs = inputs,
                                 .options = options,
                                 .outputs = "grad_x",
                                 .seed = 2});
        *backward.mutable_rope_backward()->mutable_rotary() = forward.rope().rotary();
        const Values x = Elements(*TensorOf(&forward, "Rope", "x"));
        const Values d_y = Elements(*TensorOf(&backward, "RopeBackward", "d_y"));
        const Values y = Output(forward, "y");
        EXPECT_NEAR(Dot(y, d_y), Dot(x, Output(backward, "grad_x")), 1e-4);
        // What is not turned is copied.
        for (size_t i = 0; i < x.size(); ++i) {
          if (static_cast<int>(i % 8) < rotary) continue;
          EXPECT_EQ(y[i], x[i]);
        }
      }
    }
  }
}

TEST_F(LayerTest, RopeTurnsByThePositionOfTheToken) {
  builder_.dims["P"] = 4;
  builder_.dims["R"] = 4;
  v1::Op op =
      Build({.op = "Rope", .inputs = "position", .options = "layout=INTERLEAVED", .outputs = "y"});
  SetElements({3, 0, 0, 2, 1, 3, 2}, TensorOf(&op, "Rope", "position"));
  const Values x = Elements(*TensorOf(&op, "Rope", "x"));
  const Values cosine = Elements(*TensorOf(&op, "Rope", "cos"));
  const Values sine = Elements(*TensorOf(&op, "Rope", "sin"));
  const Values y = Output(op, "y");
  // Token 3, head 1, pair 2.
  const size_t at = (3 * 2 + 1) * 8 + 4;
  const double c = cosine[2 * 4 + 2];
  const double s = sine[2 * 4 + 2];
  EXPECT_NEAR(y[at], x[at] * c - x[at + 1] * s, 1e-6);
  EXPECT_NEAR(y[at + 1], x[at + 1] * c + x[at] * s, 1e-6);
}

// Rows of several pieces against the same row in double.
TEST_F(LayerTest, LongRows) {
  for (const int64_t width : {int64_t{4097}, int64_t{70001}, int64_t{300008}}) {
    builder_.dims["N"] = 2;
    builder_.dims["H"] = builder_.dims["C"] = width;
    v1::Op op = Build({.op = "RmsNorm",
                       .inputs = "residual weight",
                       .options = "casting=GEMMA",
                       .outputs = "y residual_out"});
    Values s = Elements(*TensorOf(&op, "RmsNorm", "x"));
    const Values residual = Elements(*TensorOf(&op, "RmsNorm", "residual"));
    const Values weight = Elements(*TensorOf(&op, "RmsNorm", "weight"));
    const v1::OpReply norm = Run(op);
    Values want(s.size());
    for (size_t i = 0; i < s.size(); ++i) s[i] = static_cast<float>(s[i] + residual[i]);
    for (int64_t n = 0; n < 2; ++n) {
      double square = 0;
      for (int64_t h = 0; h < width; ++h) square += s[n * width + h] * s[n * width + h];
      for (int64_t h = 0; h < width; ++h) {
        want[n * width + h] =
            s[n * width + h] * weight[h] / std::sqrt(square / static_cast<double>(width) + 1e-6);
      }
    }
    ExpectNear(Elements(norm.outputs().at("residual_out")), s, 0);
    ExpectNear(Elements(norm.outputs().at("y")), want, 3e-6);

    v1::Op softmax = Build({.op = "Softmax", .outputs = "y"});
    const Values x = Elements(*TensorOf(&softmax, "Softmax", "x"));
    for (int64_t n = 0; n < 2; ++n) {
      double sum = 0;
      for (int64_t c = 0; c < width; ++c) sum += std::exp(x[n * width + c]);
      for (int64_t c = 0; c < width; ++c) {
        want[n * width + c] = std::exp(x[n * width + c]) / sum * 1e4;
      }
    }
    Values y = Output(softmax, "y");
    for (double& value : y) value *= 1e4;
    ExpectNear(y, want, 3e-6);
  }
}

// The gradient of a long row, by one direction.
TEST_F(LayerTest, GradientsOfLongRows) {
  builder_.dims["N"] = 2;
  builder_.dims["H"] = 9001;
  for (const std::string name : {"RmsNorm", "LayerNorm"}) {
    v1::Op forward = Build({.op = name, .inputs = "weight", .outputs = "y"});
    v1::Op backward =
        Build({.op = name + "Backward", .inputs = "weight", .outputs = "grad_x grad_weight"});
    for (const char* field : {"x", "weight"}) {
      *TensorOf(&backward, name + "Backward", field) = *TensorOf(&forward, name, field);
    }
    const Values d_y = Elements(*TensorOf(&backward, name + "Backward", "d_y"));
    const v1::OpReply reply = Run(backward);
    std::mt19937 random(1);
    std::normal_distribution<double> normal;
    for (const std::string field : {"x", "weight"}) {
      const Values grad = Elements(reply.outputs().at("grad_" + field));
      v1::Tensor* input = TensorOf(&forward, name, field);
      const Values base = Elements(*input);
      Values way(base.size());
      for (double& value : way) value = normal(random);
      double value[2];
      for (const int sign : {0, 1}) {
        Values moved = base;
        for (size_t i = 0; i < way.size(); ++i) moved[i] += (sign == 0 ? -1e-2 : 1e-2) * way[i];
        SetElements(moved, input);
        value[sign] = Dot(Output(forward, "y"), d_y);
      }
      SetElements(base, input);
      EXPECT_NEAR(Dot(grad, way), (value[1] - value[0]) / 2e-2, 0.05 * std::sqrt(Dot(grad, grad)))
          << name << " " << field;
    }
  }
}

// Outputs of every type, from inputs of another.
TEST_F(LayerTest, OutputsAreRoundedToTheTypeThatTheCallerChose) {
  v1::Op op = Build({.op = "LayerNorm", .inputs = "weight bias", .outputs = "y"});
  const Values exact = Output(op, "y");
  for (const v1::DType type : {v1::BF16, v1::F16}) {
    TensorOf(&op, "LayerNorm", "y")->set_dtype(type);
    const Values rounded = Output(op, "y");
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_EQ(rounded[i], Round(static_cast<DType>(type), exact[i]));
    }
  }
}

// Memory of the test as one region; a tensor may lie anywhere in it.
class Memory {
 public:
  Memory(LocalRunner* runner, uint64_t bytes) : bytes_(bytes) {
    data_ = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    EXPECT_NE(data_, MAP_FAILED);
    region_ = runner->AddRegion(data_, bytes);
  }
  ~Memory() { munmap(data_, bytes_); }

  // Moves the tensor to `offset`, its rows `stride` elements apart (heads stay as they are).
  void Place(v1::Tensor* tensor, uint64_t offset, int64_t stride) {
    const std::string bytes = tensor->inline_data();
    const int64_t rows = tensor->shape(0);
    int64_t width = 1;
    for (int d = 1; d < tensor->shape_size(); ++d) width *= tensor->shape(d);
    const int64_t size = SizeOf(static_cast<DType>(tensor->dtype()));
    for (int64_t r = 0; r < rows && !bytes.empty(); ++r) {
      std::memcpy(data_ + offset + r * stride * size, bytes.data() + r * width * size,
                  width * size);
    }
    tensor->clear_strides();
    tensor->add_strides(stride);
    int64_t inner = width;
    for (int d = 1; d < tensor->shape_size(); ++d) {
      inner /= tensor->shape(d);
      tensor->add_strides(inner);
    }
    tensor->mutable_region()->set_region(region_);
    tensor->mutable_region()->set_byte_offset(offset);
  }
  void* data() const { return data_; }
  std::string Read(uint64_t offset, int64_t rows, uint64_t row_bytes, uint64_t stride_bytes) const {
    std::string bytes;
    for (int64_t r = 0; r < rows; ++r) bytes.append(data_ + offset + r * stride_bytes, row_bytes);
    return bytes;
  }

 private:
  char* data_;
  uint64_t bytes_;
  uint64_t region_;
};

struct FarCase {
  const char* op;
  const char* inputs;
  const char* options;
  const char* in;
  const char* out;
};

// Three rows, the last one further than 2^31 elements behind the first.
TEST_F(LayerTest, RowsFarApartGiveTheBitsOfRowsSideBySide) {
  builder_.dims["N"] = builder_.dims["P"] = 3;
  builder_.dims["R"] = 4;
  constexpr int64_t kStride = int64_t{1100} << 20;
  constexpr uint64_t kSpan = uint64_t{3} * kStride * 4;
  for (const FarCase& far : {FarCase{"RmsNorm", "weight", "", "x", "y"},
                             {"RmsNormBackward", "weight", "", "x", "grad_x"},
                             {"LayerNorm", "", "", "x", "y"},
                             {"LayerNormBackward", "", "", "d_y", "grad_x"},
                             {"Rope", "", "layout=HALF_SPLIT", "x", "y"},
                             {"Swiglu", "gate_up", "", "gate_up", "y"},
                             {"GegluBackward", "gate_up", "", "gate_up", "grad_gate_up"},
                             {"ReluSquared", "", "", "x", "y"},
                             {"Softmax", "", "", "x", "y"},
                             {"SoftmaxBackward", "", "", "d_y", "grad_x"}}) {
    v1::Op op =
        Build({.op = far.op, .inputs = far.inputs, .options = far.options, .outputs = far.out});
    const std::string want = Run(op).outputs().at(far.out).inline_data();
    Memory memory(&runner_, 2 * kSpan);
    memory.Place(TensorOf(&op, far.op, far.in), 0, kStride);
    memory.Place(TensorOf(&op, far.op, far.out), kSpan, kStride);
    Run(op);
    EXPECT_EQ(memory.Read(kSpan, 3, want.size() / 3, kStride * 4), want) << far.op;
  }
}

// Every region is this one.
class OneRegion final : public RegionResolver {
 public:
  OneRegion(void* data, uint64_t bytes) {
    region_.base = static_cast<std::byte*>(data);
    region_.bytes = bytes;
    region_.writable = true;
  }
  absl::StatusOr<Region> Resolve(uint64_t) const override { return region_; }

 private:
  Region region_;
};

// A donated input may be overwritten by the output of its size: every element is read before it is written.
TEST_F(LayerTest, ResultsInPlaceOfDonatedInputs) {
  builder_.dims["H"] = builder_.dims["C"] = 9000;
  builder_.dims["F"] = 4500;
  builder_.dims["P"] = 7;
  builder_.dims["R"] = 4;
  for (const FarCase& c : {FarCase{"RmsNorm", "residual", "", "residual", "residual_out"},
                           {"RmsNorm", "", "", "x", "y"},
                           {"RmsNormBackward", "", "", "d_y", "grad_x"},
                           {"LayerNorm", "", "", "x", "y"},
                           {"LayerNormBackward", "", "", "x", "grad_x"},
                           {"Rope", "", "layout=INTERLEAVED", "x", "y"},
                           {"SwigluBackward", "gate_up", "", "gate_up", "grad_gate_up"},
                           {"GegluBackward", "gate up", "", "gate", "grad_gate"},
                           {"ReluSquared", "", "", "x", "y"},
                           {"Softmax", "", "", "x", "y"},
                           {"SoftmaxBackward", "", "", "d_y", "grad_x"}}) {
    const bool with_y = std::string(c.out) == "residual_out";
    v1::Op op = Build({.op = c.op,
                       .inputs = c.inputs,
                       .options = c.options,
                       .outputs = absl::StrCat(c.out, with_y ? " y" : "")});
    const v1::OpReply apart = Run(op);
    Memory memory(&runner_, 1 << 20);
    v1::Tensor* in = TensorOf(&op, c.op, c.in);
    int64_t width = 1;
    for (int d = 1; d < in->shape_size(); ++d) width *= in->shape(d);
    memory.Place(in, 0, width);
    memory.Place(TensorOf(&op, c.op, c.out), 0, width);
    const OneRegion regions(memory.data(), 1 << 20);
    auto admitted = Admit(runner_.registry(), op, regions, {c.in});
    ASSERT_TRUE(admitted.ok()) << c.op << ": " << admitted.status();
    v1::OpReply reply;
    ASSERT_OK(RunOp(*admitted, {}, runner_.backend(), &reply));
    EXPECT_EQ(memory.Read(0, 7, width * 4, width * 4), apart.outputs().at(c.out).inline_data())
        << c.op;
    if (with_y) {
      EXPECT_EQ(reply.outputs().at("y").inline_data(), apart.outputs().at("y").inline_data());
    }
  }
}

// Several leading extents with a gap are rows in their order.
TEST_F(LayerTest, LeadingExtentsAreRows) {
  builder_.dims["N"] = 6;
  v1::Op op = Build({.op = "Softmax", .inputs = "mask", .outputs = "y"});
  const std::string want = Run(op).outputs().at("y").inline_data();
  v1::Tensor* x = TensorOf(&op, "Softmax", "x");
  Memory memory(&runner_, 4096);
  memory.Place(x, 0, 20);
  x->clear_shape();
  x->clear_strides();
  for (const int64_t extent : {2, 3, 9}) x->add_shape(extent);
  for (const int64_t stride : {60, 20, 1}) x->add_strides(stride);
  EXPECT_EQ(Run(op).outputs().at("y").inline_data(), want);
}

// Heads of a merged projection: queries of [N, (A + 2) * D].
TEST_F(LayerTest, HeadsInsideALargerTensor) {
  builder_.dims["P"] = 7;
  builder_.dims["R"] = 4;
  v1::Op op = Build({.op = "Rope", .options = "layout=HALF_SPLIT", .outputs = "y"});
  const std::string want = Run(op).outputs().at("y").inline_data();
  Memory memory(&runner_, 8192);
  memory.Place(TensorOf(&op, "Rope", "x"), 0, 4 * 8);
  EXPECT_EQ(Run(op).outputs().at("y").inline_data(), want);
}

TEST_F(LayerTest, AccumulatedGradientsAddUpAndAreRoundedOnce) {
  for (const std::string name : {"RmsNormBackward", "LayerNormBackward"}) {
    v1::Op op = Build({.op = name, .inputs = "weight", .outputs = "grad_weight"});
    const Values once = Output(op, "grad_weight");
    v1::Op added = Build({.op = name,
                          .inputs = "weight",
                          .options = "grad_weight_mode=ACCUMULATE",
                          .outputs = "grad_weight"});
    v1::Tensor* target = TensorOf(&added, name, "grad_weight");
    target->set_dtype(v1::BF16);
    SetElements({1, 2, 3, 4, 5}, target);
    const Values sum = Output(added, "grad_weight");
    for (size_t h = 0; h < once.size(); ++h) {
      EXPECT_EQ(sum[h], Round(DType::kBF16, static_cast<double>(h + 1) + once[h]));
    }
  }
}

// Sums over rows do not depend on how many threads there are.
TEST_F(LayerTest, TheNumberOfThreadsChangesNothing) {
  builder_.dims["N"] = 900;
  builder_.dims["H"] = 200;
  const v1::Op op = Build(
      {.op = "LayerNormBackward", .inputs = "weight", .outputs = "grad_x grad_weight grad_bias"});
  std::map<std::string, std::string> first;
  for (const int threads : {1, 3}) {
    CpuOptions options;
    options.threads = threads;
    auto device = CpuDevice::Create(options);
    ASSERT_TRUE(device.ok()) << device.status();
    CpuLayers layers(**device);
    Backend backend;
    backend.device = device->get();
    backend.layers = &layers;
    auto admitted = Admit(runner_.registry(), op, OneRegion(nullptr, 0));
    ASSERT_TRUE(admitted.ok()) << admitted.status();
    v1::OpReply reply;
    ASSERT_OK(RunOp(*admitted, {}, backend, &reply));
    for (const auto& [name, tensor] : reply.outputs()) {
      if (threads == 1) first[name] = tensor.inline_data();
      EXPECT_EQ(tensor.inline_data(), first[name]) << name;
    }
  }
}

}  // namespace
}  // namespace lossd
