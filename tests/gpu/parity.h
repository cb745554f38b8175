// What the parity tests share: ways to run an operation on the GPU, operations of any shape, how far two tensors are apart.
#ifndef LOSSD_TESTS_GPU_PARITY_H_
#define LOSSD_TESTS_GPU_PARITY_H_

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/gpu/cuda_runner.h"
#include "tests/parity/cases.h"
#include "tests/testing/local_runner.h"
#include "tests/testing/request_builder.h"

namespace lossd {

enum class Way { kInline, kInMemory, kEnqueued };

inline const char* NameOf(Way way) {
  return way == Way::kInline ? "inline" : way == Way::kInMemory ? "in memory" : "enqueued";
}

inline absl::StatusOr<v1::OpReply> RunBy(CudaRunner& runner, Way way, const v1::Op& op,
                                         bool batch_invariant = false) {
  RunOptions options;
  options.batch_invariant = batch_invariant;
  options.host_may_wait = way != Way::kEnqueued;
  return way == Way::kInline ? runner.Run(op, options) : runner.RunInMemory(op, options);
}

// ||a - b|| / ||b||; infinities and NaN must be at the same places. Of fp16, what lies within a rounding of overflow counts as equal.
// So do fp16's numbers below its normal range that are within two of their steps.
// Where numbers cancel (a mean logit), the norm is at least that of elements of 0.05.
inline double Distance(const v1::Tensor& a, const v1::Tensor& b, bool may_cancel) {
  const std::vector<double> x = Elements(a);
  const std::vector<double> y = Elements(b);
  if (x.size() != y.size()) return INFINITY;
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (b.dtype() == v1::F16 && x[i] * y[i] > 0 && std::abs(x[i]) > 6e4 && std::abs(y[i]) > 6e4)
      continue;
    if (b.dtype() == v1::F16 && std::abs(y[i]) < 6.2e-5 && std::abs(x[i] - y[i]) < 1.2e-7) continue;
    if (std::isfinite(x[i]) != std::isfinite(y[i])) return INFINITY;
    if (!std::isfinite(x[i])) continue;
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  const double least = may_cancel ? 0.05 * std::sqrt(static_cast<double>(x.size())) : 1e-6;
  return difference == 0 ? 0 : std::sqrt(difference) / std::max(std::sqrt(norm), least);
}

struct Shape {
  int64_t rows;
  int64_t hidden;
  int64_t vocab;
  uint64_t small_workspace;  // makes several chunks
  int64_t sequences = 0;     // and pairs; 0: the builder's numbers
};

inline std::string OutputsOf(const std::string& op) {
  const std::string gradients = "grad_hidden grad_weight grad_bias";
  if (op == "LinearLogprobBackward") return gradients;
  if (op == "LogprobBackward") return "grad_logits";
  if (op == "LinearLogprob" || op == "Logprob") {
    return "logprob lse entropy lse2 log_sum_p2 argmax correct max_prob mean_logit vocab_stats "
           "ids_logprob topk_ids topk_logprob";
  }
  if (op == "PolicyLoss") return "loss row_loss ratio d_logprob";
  const std::string pairs =
      "loss pair_loss chosen_logp rejected_logp chosen_reward rejected_reward ";
  const std::string sequences = "loss sequence_loss sequence_logp reward ";
  if (op == "PreferenceLoss") return pairs + "d_logprob";
  if (op == "UnpairedLoss") return sequences + "d_logprob";
  if (op == "LinearPreferenceLoss") return pairs + "logprob lse entropy " + gradients;
  if (op == "LinearUnpairedLoss") return sequences + "logprob lse entropy " + gradients;
  return "loss logprob lse entropy row_loss grad_student grad_logits " + gradients;
}

// Those of the names that the operation has.
inline std::string Known(const OpSchema& schema, const std::string& names) {
  std::string known;
  for (const absl::string_view name : absl::StrSplit(names, ' ', absl::SkipEmpty())) {
    if (schema.Find(name) != nullptr) absl::StrAppend(&known, " ", name);
  }
  return known;
}

// The op with sensible extents; outputs that the case does not allow are left out.
inline v1::Op BuildCase(const Registry& registry, const OptionCase& c, const Shape& shape,
                        v1::DType model) {
  const OpSchema& schema = registry.Find(c.op)->schema();
  RequestBuilder builder;
  builder.dims["N"] = shape.rows;
  builder.dims["H"] = builder.dims["RefH"] = shape.hidden;
  builder.dims["V"] = builder.dims["VocabTotal"] = builder.dims["TeacherV"] = shape.vocab;
  builder.dims["TeacherH"] = shape.hidden + 8;
  if (shape.sequences > 0) builder.dims["B"] = builder.dims["P"] = shape.sequences;
  RequestSpec spec;
  spec.op = c.op;
  spec.inputs = c.inputs + " " + c.added_inputs;
  spec.options = c.options + " " + c.added_options;
  spec.outputs = OutputsOf(c.op);
  if (spec.inputs.find("bias") == std::string::npos) {
    spec.outputs.resize(spec.outputs.rfind(" grad_bias") == std::string::npos
                            ? spec.outputs.size()
                            : spec.outputs.rfind(" grad_bias"));
  }
  spec.outputs = Known(schema, spec.outputs);
  // logprob is of a target.
  if (schema.Find("target") != nullptr && spec.inputs.find("target") == std::string::npos) {
    const size_t at = spec.outputs.find(" logprob");
    if (at != std::string::npos) spec.outputs.erase(at, 8);
  }
  spec.model = model;
  spec.seed = c.seed;
  v1::Op op = builder.Build(schema, spec);
  // Gradients in the model's type where the hidden size is odd, in fp32 elsewhere.
  for (const char* name :
       {"grad_hidden", "grad_weight", "grad_bias", "grad_student", "grad_logits"}) {
    const FieldRule* rule = schema.Find(name);
    if (rule == nullptr || !HasField(*MutableRequest(&op), *rule) || shape.hidden % 2 == 0)
      continue;
    MutableTensor(MutableRequest(&op), *rule)->set_dtype(model);
  }
  // Logits of a few nats, whatever the hidden size.
  for (const char* name :
       {"hidden", "weight", "ref_hidden", "ref_weight", "teacher_hidden", "teacher_weight"}) {
    if (schema.Find(name) == nullptr || !HasField(*MutableRequest(&op), *schema.Find(name))) {
      continue;
    }
    v1::Tensor* tensor = MutableTensor(MutableRequest(&op), *schema.Find(name));
    std::vector<double> values = Elements(*tensor);
    for (double& value : values) value *= std::pow(5.0 / std::max<int64_t>(shape.hidden, 5), 0.25);
    SetElements(values, tensor);
  }
  return op;
}

template <class Forward, class Backward>
void FillFromForward(LocalRunner& cpu, v1::Op* op, Forward* forward, Backward* backward) {
  *forward->mutable_head() = backward->head();
  for (v1::Tensor* output : {forward->mutable_lse(), forward->mutable_entropy()}) {
    *output = backward->lse();
    output->clear_inline_data();
  }
  const auto reply = cpu.Run(*op);
  if (!reply.ok()) return;  // the backward call is refused alike
  *backward->mutable_lse()->mutable_inline_data() = reply->outputs().at("lse").inline_data();
  if (backward->has_entropy()) {
    *backward->mutable_entropy()->mutable_inline_data() =
        reply->outputs().at("entropy").inline_data();
  }
}

// The backward op's lse and entropy as the forward op gives them: with others p is no probability, and fp16 overflows.
inline void UseForwardStatistics(LocalRunner& cpu, v1::Op* op) {
  v1::Op forward;
  if (op->has_linear_logprob_backward()) {
    v1::LinearLogprobBackward& backward = *op->mutable_linear_logprob_backward();
    v1::LinearLogprob& logprob = *forward.mutable_linear_logprob();
    *logprob.mutable_linear() = backward.linear();
    FillFromForward(cpu, &forward, &logprob, &backward);
  } else if (op->has_logprob_backward()) {
    v1::LogprobBackward& backward = *op->mutable_logprob_backward();
    v1::Logprob& logprob = *forward.mutable_logprob();
    *logprob.mutable_logits() = backward.logits();
    FillFromForward(cpu, &forward, &logprob, &backward);
  }
}

inline double ToleranceOf(const std::string& op, const std::string& output, v1::DType model) {
  const bool is_gradient = output.rfind("grad_", 0) == 0;
  // Its gradient is made of signs: one whose difference is all rounding may be the other way round.
  if (is_gradient && op == "TotalVariation") return 5e-2;
  if (!is_gradient || model == v1::F32) return 3e-5;
  return model == v1::BF16 ? 5e-3 : 6e-4;
}

}  // namespace lossd

#endif  // LOSSD_TESTS_GPU_PARITY_H_
