// Every option of every operation: its gradients against central differences of its own loss, and that it changes something.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "tests/parity/cases.h"
#include "tests/testing/local_runner.h"
#include "tests/testing/matchers.h"
#include "tests/testing/request_builder.h"

namespace lossd {
namespace {

using google::protobuf::Message;

// Large enough that the f32 loss moves by far more than its rounding, small enough for the cubic term.
constexpr double kStep = 4e-3;

class OptionTest : public testing::TestWithParam<OptionCase> {
 protected:
  const OpSchema& schema() const { return runner_.registry().Find(GetParam().op)->schema(); }

  // The output with the derivative with respect to an input; null if the operation has none.
  const FieldRule* GradientOf(const FieldRule& input) const {
    if (!input.tensor.differentiable()) return nullptr;
    const FieldRule* gradient = schema().Find("grad_" + input.name);
    return gradient != nullptr ? gradient : schema().Find("d_" + input.name);
  }

  // Gradients that exist for the inputs and options at hand.
  std::string Gradients(const RequestSpec& spec) const {
    std::string names;
    for (const FieldRule& rule : schema().fields()) {
      const FieldRule* gradient = GradientOf(rule);
      const bool given =
          absl::StrContains(absl::StrCat(" ", spec.inputs, " "), absl::StrCat(" ", rule.name, " "));
      if (gradient == nullptr || !(given || rule.tensor.required())) continue;
      if (gradient->name == "d_entropy" && !absl::StrContains(spec.options, "entropy_kind=TRUE")) {
        continue;
      }
      absl::StrAppend(&names, gradient->name, " ");
    }
    return names;
  }

  v1::Op Build(bool added) {
    const OptionCase& c = GetParam();
    RequestSpec spec;
    spec.op = c.op;
    spec.inputs = added ? absl::StrCat(c.inputs, " ", c.added_inputs) : c.inputs;
    spec.options = added ? absl::StrCat(c.options, " ", c.added_options) : c.options;
    spec.outputs = Gradients(spec);
    if (!schema().info().objective().empty())
      absl::StrAppend(&spec.outputs, " ", schema().info().objective());
    spec.seed = c.seed;
    v1::Op op = builder_.Build(schema(), spec);
    if (is_backward()) FillForwardResults(&op);
    return op;
  }

  bool is_backward() const { return schema().info().objective().empty(); }

  // The forward operation with the same inputs, asked for `outputs`.
  v1::Op Forward(const v1::Op& backward, const std::vector<std::string>& outputs) {
    const std::string name(absl::StripSuffix(schema().name(), "Backward"));
    const OpSchema& forward = runner_.registry().Find(name)->schema();
    v1::Op op = builder_.Build(forward, {.op = name});
    Message* to = MutableRequest(&op);
    v1::Op copy = backward;
    const Message& from = *MutableRequest(&copy);
    for (const FieldRule& rule : forward.fields()) {
      const FieldRule* same = schema().Find(rule.name);
      if (rule.is_output() || same == nullptr || !HasField(from, *same)) continue;
      if (rule.is_tensor) {
        *MutableTensor(to, rule) = GetTensor(from, *same);
      } else if (MutableHolder(to, rule)->GetDescriptor() ==
                 MutableHolder(MutableRequest(&copy), *same)->GetDescriptor()) {  // head options
        MutableHolder(to, rule)->CopyFrom(*MutableHolder(MutableRequest(&copy), *same));
      } else {
        CopyOption(from, *same, to, rule);
      }
    }
    // residual_out passes on x where the residual is 0.
    if (absl::c_linear_search(outputs, "residual_out")) {
      v1::Tensor* residual = MutableTensor(to, *forward.Find("residual"));
      *residual = GetTensor(*to, *forward.Find("x"));
      SetElements(std::vector<double>(Elements(*residual).size()), residual);
    }
    for (const std::string& output : outputs) {
      v1::Tensor* tensor = MutableTensor(to, *forward.Find(output));
      const FieldRule* derivative = schema().Find("d_" + output);
      const v1::Tensor& shape = derivative != nullptr && HasField(from, *derivative)
                                    ? GetTensor(from, *derivative)
                                    : GetTensor(from, *schema().Find(output));
      tensor->set_dtype(v1::F32);
      *tensor->mutable_shape() = shape.shape();
    }
    return op;
  }

  static void CopyOption(const Message& from, const FieldRule& from_rule, Message* to,
                         const FieldRule& to_rule) {
    const auto* source = from.GetReflection();
    Message* holder = MutableHolder(to, to_rule);
    if (from_rule.descriptor->enum_type() != nullptr) {
      holder->GetReflection()->SetEnum(holder, to_rule.descriptor,
                                       source->GetEnum(from, from_rule.descriptor));
    } else {
      holder->GetReflection()->SetDouble(holder, to_rule.descriptor,
                                         source->GetDouble(from, from_rule.descriptor));
    }
  }

  // Outputs of the forward call with respect to which the backward call has derivatives.
  std::vector<std::string> Differentiated(const Message& request) const {
    std::vector<std::string> names;
    for (const FieldRule& rule : schema().fields()) {
      if (rule.is_input() && absl::StartsWith(rule.name, "d_") && HasField(request, rule)) {
        names.push_back(rule.name.substr(2));
      }
    }
    return names;
  }

  // Statistics that the backward call takes from the forward one.
  void FillForwardResults(v1::Op* op) {
    std::vector<std::string> names;
    Message* request = MutableRequest(op);
    for (const std::string name : {"lse", "entropy", "mean", "rstd"}) {
      const FieldRule* rule = schema().Find(name);
      if (rule != nullptr && HasField(*request, *rule)) names.push_back(name);
    }
    std::vector<std::string> wanted = Differentiated(*request);
    wanted.insert(wanted.end(), names.begin(), names.end());
    std::sort(wanted.begin(), wanted.end());
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
    const auto reply = runner_.Run(Forward(*op, wanted));
    ASSERT_TRUE(reply.ok()) << reply.status();
    for (const std::string& name : names) {
      MutableTensor(request, *schema().Find(name))
          ->set_inline_data(reply->outputs().at(name).inline_data());
    }
  }

  // The scalar whose gradient the operation returns.
  double Objective(v1::Op op) {
    if (!is_backward()) {
      const auto reply = runner_.Run(op);
      EXPECT_TRUE(reply.ok()) << reply.status();
      if (!reply.ok()) return NAN;
      double upstream = 1;
      const Message& request = *MutableRequest(&op);
      if (HasField(request, *schema().Find("d_loss"))) {
        upstream = Elements(GetTensor(request, *schema().Find("d_loss")))[0];
      }
      return upstream * Elements(reply->outputs().at(schema().info().objective()))[0];
    }
    const Message& request = *MutableRequest(&op);
    const std::vector<std::string> names = Differentiated(request);
    const auto reply = runner_.Run(Forward(op, names));
    EXPECT_TRUE(reply.ok()) << reply.status();
    if (!reply.ok()) return NAN;
    double sum = 0;
    for (const std::string& name : names) {
      const auto value = Elements(reply->outputs().at(name));
      const auto derivative = Elements(GetTensor(request, *schema().Find("d_" + name)));
      for (size_t i = 0; i < value.size(); ++i) sum += value[i] * derivative[i];
    }
    return sum;
  }

  LocalRunner runner_;
  RequestBuilder builder_;
};

// Cases whose value has no factor that the gradient takes as a constant.
class GradientTest : public OptionTest {};

TEST_P(GradientTest, MatchesCentralDifferences) {
  v1::Op op = Build(true);
  const auto reply = runner_.Run(op);
  ASSERT_TRUE(reply.ok()) << reply.status();
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  for (const FieldRule& rule : schema().fields()) {
    const FieldRule* output = GradientOf(rule);
    if (output == nullptr) continue;
    const auto gradient = reply->outputs().find(output->name);
    if (gradient == reply->outputs().end()) continue;
    const std::vector<double> grad = Elements(gradient->second);
    v1::Tensor* input = MutableTensor(MutableRequest(&op), rule);
    const std::vector<double> base = Elements(*input);
    double norm = 0;
    for (const double value : grad) norm += value * value;
    EXPECT_GT(norm, 0) << rule.name << ": a gradient of zero tests nothing";
    for (int direction = 0; direction < 3; ++direction) {
      std::vector<double> way(base.size());
      double want = 0;
      for (size_t i = 0; i < way.size(); ++i) {
        way[i] = normal(random);
        want += way[i] * grad[i];
      }
      double value[2];
      for (const int sign : {-1, 1}) {
        std::vector<double> moved = base;
        for (size_t i = 0; i < way.size(); ++i) moved[i] += sign * kStep * way[i];
        SetElements(moved, input);
        value[(sign + 1) / 2] = Objective(op);
      }
      SetElements(base, input);
      const double got = (value[1] - value[0]) / (2 * kStep);
      EXPECT_NEAR(want, got, 4e-3 * std::sqrt(norm) + 2e-4)
          << rule.name << ", direction " << direction;
    }
  }
}

TEST_P(OptionTest, TheOptionChangesTheResult) {
  const auto with = runner_.Run(Build(true));
  const auto without = runner_.Run(Build(false));
  ASSERT_TRUE(with.ok()) << with.status();
  ASSERT_TRUE(without.ok()) << without.status();
  bool differs = false;
  for (const auto& [name, tensor] : without->outputs()) {
    differs = differs || with->outputs().at(name).inline_data() != tensor.inline_data();
  }
  EXPECT_TRUE(differs);
}

std::string CaseName(const testing::TestParamInfo<OptionCase>& info) {
  std::string name = absl::StrCat(info.index, "_", info.param.op, "_", info.param.added_inputs, "_",
                                  info.param.added_options);
  for (char& letter : name) {
    if (!std::isalnum(static_cast<unsigned char>(letter))) letter = '_';
  }
  return name;
}

std::vector<OptionCase> DifferentiableCases() {
  std::vector<OptionCase> cases;
  for (const OptionCase& c : OptionCases()) {
    if (!c.has_constants) cases.push_back(c);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(EveryOption, OptionTest, testing::ValuesIn(OptionCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(EveryOption, GradientTest, testing::ValuesIn(DifferentiableCases()),
                         CaseName);

// Every differentiable operation and every option of it must have a case above, or a reason here.
TEST(GradientCoverageTest, EveryOptionHasACase) {
  LocalRunner runner;
  const std::map<std::string, std::string> reasons = {
      {"group", "not in this build"},
      {"vocab_start", "shards: tests of groups"},
      {"vocab_total", "shards: tests of groups"},
      {"entropy_basis", "both accepted values say the same"},
      {"grad_weight_mode", "accumulation: conformance vectors"},
      {"grad_bias_mode", "accumulation: conformance vectors"},
      {"grad_hidden_reduce", "shards: tests of groups"},
      {"label_smoothing_scope", "both say the same unsharded"},
      {"token_scaling",
       "its factor is a constant of the gradient, not of the loss: conformance vectors"},
      {"head_metrics", "changes metrics only"},
      {"force_on_policy", "old moves with the log-probability: conformance vectors"},
      {"kl_straight_through", "value and gradient differ on purpose: conformance vectors"},
      {"wpo", "its weight is a constant of the gradient: unit tests, conformance vectors"},
      {"log_sum_p2", "part of that weight"},
      {"is_row_min", "conformance vectors"},
      {"is_row_max", "conformance vectors"},
      {"sequence_advantage", "conformance vectors"},
      {"cu_seqlens", "base of other cases"},
      {"teacher_floor", "changes values only: conformance vectors, divergence_test"},
      {"casting", "says nothing in f32: layer_test, conformance vectors"},
      {"round_activation", "says nothing in f32: layer_test, conformance vectors"},
      {"RopeBackward.position", "layer_test"},
      {"RopeBackward.layout", "layer_test"},
      {"RopeBackward.rotary_dim", "layer_test"},
      {"SoftmaxBackward.mask", "layer_test"},
  };
  for (const auto& op : runner.registry().ops()) {
    bool has_gradient = false;
    for (const FieldRule& rule : op->schema().fields()) {
      has_gradient |= absl::StartsWith(rule.name, "grad_") ||
                      (rule.is_output() && absl::StartsWith(rule.name, "d_"));
    }
    if (!has_gradient) continue;
    std::string text = " ";
    for (const OptionCase& c : OptionCases()) {
      if (c.op == op->name() || op->schema().Find("target") != nullptr) {
        absl::StrAppend(&text, c.inputs, " ", c.options, " ", c.added_inputs, " ", c.added_options,
                        " ");
      }
    }
    for (const FieldRule& rule : op->schema().fields()) {
      if (rule.is_output() || rule.tensor.required() || reasons.count(rule.name) > 0) continue;
      if (reasons.count(absl::StrCat(op->name(), ".", rule.name)) > 0) continue;
      const std::string ending = rule.is_tensor ? " " : rule.elements.empty() ? "=" : "[";
      EXPECT_TRUE(absl::StrContains(text, absl::StrCat(" ", rule.name, ending)))
          << op->name() << "." << rule.name;
      for (const FieldRule& element : rule.elements) {
        EXPECT_TRUE(absl::StrContains(text, absl::StrCat("].", element.name, "=")))
            << op->name() << "." << rule.name << "[]." << element.name;
      }
    }
  }
}

}  // namespace
}  // namespace lossd
