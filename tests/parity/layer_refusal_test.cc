// What the layers refuse beside what their schemas say: fields without a meaning, fields that are missing, positions outside the tables.
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/full_spec.h"
#include "tests/testing/local_runner.h"
#include "tests/testing/matchers.h"
#include "tests/testing/request_builder.h"

namespace lossd {
namespace {

class LayerRefusalTest : public testing::Test {
 protected:
  v1::Op Build(const RequestSpec& spec) {
    return builder_.Build(runner_.registry().Find(spec.op)->schema(), spec);
  }

  LocalRunner runner_;
  RequestBuilder builder_;
};

struct Meaningless {
  const char* op;
  const char* inputs;
  const char* options;
  const char* outputs;
  const char* field;
};

TEST_F(LayerRefusalTest, FieldsWithoutAMeaningAreRefused) {
  for (const Meaningless& c : {
           Meaningless{"RmsNorm", "", "weight_offset=0", "y", "weight_offset"},
           {"RmsNorm", "weight", "weight_offset=1e300", "y", "weight_offset"},
           {"RmsNorm", "weight", "eps=1e-300", "y", "eps"},
           {"RmsNorm", "", "", "residual_out", "residual_out"},
           {"RmsNormBackward", "", "weight_offset=1", "grad_x", "weight_offset"},
           {"RmsNormBackward", "", "", "grad_weight", "grad_weight"},
           {"RmsNormBackward", "weight", "", "", "grad_x"},
           {"RmsNormBackward", "weight rstd", "eps=0.1", "grad_x", "eps"},
           {"RmsNormBackward", "weight d_residual_out", "", "grad_weight", "d_residual_out"},
           {"RmsNormBackward", "weight", "grad_weight_mode=ACCUMULATE", "grad_x",
            "grad_weight_mode"},
           {"LayerNormBackward", "rstd", "", "grad_x", "mean"},
           {"LayerNormBackward", "mean", "", "grad_x", "rstd"},
           {"LayerNormBackward", "mean rstd", "eps=0.1", "grad_x", "eps"},
           {"LayerNormBackward", "", "", "", "grad_x"},
           {"LayerNormBackward", "", "grad_bias_mode=ACCUMULATE", "grad_x", "grad_bias_mode"},
           {"LayerNormBackward", "", "", "grad_weight", "grad_weight"},
           {"Rope", "", "layout=HALF_SPLIT rotary_dim=7", "y", "rotary_dim"},
           {"Rope", "", "layout=HALF_SPLIT rotary_dim=10", "y", "rotary_dim"},
           {"Rope", "", "layout=HALF_SPLIT rotary_dim=8", "y", "cos"},
           {"Rope", "", "layout=HALF_SPLIT rotary_dim=6", "y", "cos"},
           {"RopeBackward", "position", "layout=HALF_SPLIT rotary_dim=6", "", "grad_x"},
           {"Swiglu", "gate", "", "y", "up"},
           {"Swiglu", "up", "", "y", "gate"},
           {"Swiglu", "", "", "y", "gate"},
           {"Swiglu", "gate up gate_up", "", "y", "gate_up"},
           {"Swiglu", "gate up", "gate_scale=1e60", "y", "gate_scale"},
           {"Swiglu", "gate up", "down_scale=1e-60", "y", "down_scale"},
           {"SwigluBackward", "gate up", "", "", "grad_gate"},
           {"SwigluBackward", "gate_up", "", "", "grad_gate_up"},
           {"SwigluBackward", "gate up", "", "grad_gate_up", "grad_gate_up"},
           {"GegluBackward", "gate_up", "", "grad_up", "grad_up"},
           {"ReluSquaredBackward", "", "", "", "grad_x"},
           {"SoftmaxBackward", "", "", "", "grad_x"},
       }) {
    const v1::Op op =
        Build({.op = c.op, .inputs = c.inputs, .options = c.options, .outputs = c.outputs});
    EXPECT_EQ(Refusal(runner_.Run(op)), absl::StrCat("INVALID_ARGUMENT ", c.field))
        << c.op << " " << c.inputs << " " << c.options << " " << c.outputs;
  }
}

TEST_F(LayerRefusalTest, TheFirstBadPositionIsNamed) {
  v1::Op op = Build(FullSpec("Rope"));
  SetElements({0, 1, 0, 2, -1, 0, 0}, op.mutable_rope()->mutable_rotary()->mutable_position());
  const absl::Status status = runner_.Run(op).status();
  EXPECT_EQ(Refusal(status), "INVALID_ARGUMENT position");
  EXPECT_EQ(GetErrorDetail(status)->row(), 3);
  // Also where nothing is wanted.
  op.mutable_rope()->clear_y();
  EXPECT_EQ(Refusal(runner_.Run(op)), "INVALID_ARGUMENT position");
}

}  // namespace
}  // namespace lossd
