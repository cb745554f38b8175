#include "kernels/linear/bind_head.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

constexpr int64_t kMaxVocab = int64_t{1} << 24;

int64_t VocabTotal(const v1::HeadOptions& head, const Dims& dims) {
  return head.vocab_total() > 0 ? head.vocab_total() : dims["V"];
}

int64_t ValidVocab(const v1::HeadOptions& head, const Dims& dims) {
  return head.valid_vocab() > 0 ? head.valid_vocab() : VocabTotal(head, dims);
}

// What holds the vocabulary: weight by its rows, or logits by their columns.
struct Holder {
  const char* field;
  const char* part;    // "row"
  const char* extent;  // "the rows of weight"
};
constexpr Holder kWeight = {"weight", "row", "the rows of weight"};
constexpr Holder kLogits = {"logits", "column", "the columns of logits"};

absl::Status CheckVocabulary(const Holder& holder, const v1::HeadOptions& head, const Dims& dims,
                             ShardUse shard) {
  const int64_t held = dims["V"];
  const int64_t total = VocabTotal(head, dims);
  if (held < 1)
    return FieldError(holder.field, absl::StrCat("of at least 1 ", holder.part), "empty");
  if (held > kMaxVocab) {
    return FieldError(holder.field, absl::StrCat("of at most 2^24 ", holder.part, "s"),
                      absl::StrCat(held));
  }
  if (total < held) {
    return FieldError("vocab_total", absl::StrCat("0 or at least ", held, ", ", holder.extent),
                      absl::StrCat(total));
  }
  if (head.vocab_start() > total - held) {
    return FieldError("vocab_start", absl::StrCat("at most ", total - held),
                      absl::StrCat(head.vocab_start()));
  }
  if (head.valid_vocab() > total) {
    return FieldError("valid_vocab", absl::StrCat("at most ", total),
                      absl::StrCat(head.valid_vocab()));
  }
  if (total > held && shard == ShardUse::kRefused) {
    return FieldError("vocab_total",
                      absl::StrCat(held, ", ", holder.extent, ", where there is no group"),
                      absl::StrCat(total));
  }
  return absl::OkStatus();
}

absl::Status CheckTemperature(const v1::HeadOptions& head) {
  // 1 says nothing, so it may stand beside temperature_rows.
  if (head.has_temperature_rows() && head.temperature() != 1) {
    return FieldError("temperature_rows", "absent where temperature is given", "given");
  }
  if (head.entropy_basis() == v1::ENTROPY_BASIS_UNTEMPERED &&
      (head.temperature() != 1 || head.has_temperature_rows())) {
    return FieldError("entropy_basis", "TEMPERED at a temperature other than 1", "UNTEMPERED");
  }
  // The kernels compute in fp32: what is not a positive normal number there is not the option that was meant.
  const auto fits = [](double value) {
    return value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max();
  };
  if (!fits(head.temperature())) {
    return FieldError("temperature", "within the range of fp32", absl::StrCat(head.temperature()));
  }
  if (!fits(head.logit_scale())) {
    return FieldError("logit_scale", "within the range of fp32", absl::StrCat(head.logit_scale()));
  }
  if (head.softcap() != 0 && !fits(head.softcap())) {
    return FieldError("softcap", "0 or within the range of fp32", absl::StrCat(head.softcap()));
  }
  return absl::OkStatus();
}

// `rows`: the field that has them.
absl::Status CheckOptions(const char* rows, const Holder& holder, const v1::HeadOptions& head,
                          const Dims& dims, ShardUse shard) {
  // Row numbers are 32 bits wide in the kernels.
  if (dims["N"] > std::numeric_limits<int32_t>::max()) {
    return UnimplementedError(rows, "of less than 2^31 rows", absl::StrCat(dims["N"]));
  }
  LOSSD_RETURN_IF_ERROR(CheckVocabulary(holder, head, dims, shard));
  LOSSD_RETURN_IF_ERROR(CheckTemperature(head));
  if (!head.has_target() && head.ignore_index() != v1::HeadOptions().ignore_index()) {
    return FieldError("ignore_index", "absent without target", absl::StrCat(head.ignore_index()));
  }
  return absl::OkStatus();
}

HeadProblem BindOptions(const v1::HeadOptions& head, const Dims& dims, const Binding& binding) {
  HeadProblem problem;
  problem.rows = dims["N"];
  problem.vocab = dims["V"];
  problem.vocab_start = head.vocab_start();
  problem.vocab_total = VocabTotal(head, dims);
  problem.valid_vocab = ValidVocab(head, dims);
  problem.valid_columns =
      std::clamp<int64_t>(problem.valid_vocab - problem.vocab_start, 0, problem.vocab);
  problem.target = BindColumn(head.target(), binding);
  problem.mask = BindColumn(head.mask(), binding);
  problem.temperature_rows = BindColumn(head.temperature_rows(), binding);
  problem.ignore_index = head.ignore_index();
  problem.logit_scale = static_cast<float>(head.logit_scale());
  problem.softcap = static_cast<float>(head.softcap());
  problem.temperature = static_cast<float>(head.temperature());
  return problem;
}

}  // namespace

absl::Status CheckHead(const v1::LinearInput& linear, const v1::HeadOptions& head, const Dims& dims,
                       ShardUse shard) {
  if (dims["H"] < 1) return FieldError("hidden", "of at least 1 column", "of none");
  return CheckOptions("hidden", kWeight, head, dims, shard);
}

absl::Status CheckLogitsHead(const v1::HeadOptions& head, const Dims& dims, ShardUse shard) {
  return CheckOptions("logits", kLogits, head, dims, shard);
}

bool IsShard(const v1::HeadOptions& head, const Dims& dims) {
  return VocabTotal(head, dims) > dims["V"];
}

absl::Status CheckGradients(const v1::LinearInput& linear, const v1::LinearGradients& gradients) {
  if (gradients.has_grad_bias() && !linear.has_bias()) {
    return FieldError("grad_bias", "absent without bias", "given");
  }
  if (!gradients.has_grad_weight() && gradients.grad_weight_mode() != v1::GRAD_MODE_OVERWRITE) {
    return FieldError("grad_weight_mode", "absent without grad_weight", "ACCUMULATE");
  }
  if (!gradients.has_grad_bias() && gradients.grad_bias_mode() != v1::GRAD_MODE_OVERWRITE) {
    return FieldError("grad_bias_mode", "absent without grad_bias", "ACCUMULATE");
  }
  if (gradients.grad_hidden_reduce() == v1::GRAD_HIDDEN_REDUCE_SUM) {
    return FieldError("grad_hidden_reduce", "PARTIAL without a group", "SUM");
  }
  return absl::OkStatus();
}

bool WantsGradients(const v1::LinearGradients& gradients) {
  return gradients.has_grad_hidden() || gradients.has_grad_weight() || gradients.has_grad_bias();
}

HeadProblem BindHead(const v1::LinearInput& linear, const v1::HeadOptions& head, const Dims& dims,
                     const Binding& binding) {
  HeadProblem problem = BindOptions(head, dims, binding);
  problem.hidden_size = dims["H"];
  problem.hidden = BindMatrix(linear.hidden(), binding);
  problem.weight = BindMatrix(linear.weight(), binding);
  problem.bias = BindColumn(linear.bias(), binding);
  return problem;
}

HeadProblem BindLogitsHead(const v1::Tensor& logits, const v1::HeadOptions& head, const Dims& dims,
                           const Binding& binding) {
  HeadProblem problem = BindOptions(head, dims, binding);
  problem.logits = BindMatrix(logits, binding);
  return problem;
}

HeadGradients BindGradients(const v1::LinearGradients& gradients, const Binding& binding) {
  const auto mode = [](v1::GradMode mode) {
    return mode == v1::GRAD_MODE_ACCUMULATE ? GradMode::kAccumulate : GradMode::kOverwrite;
  };
  HeadGradients bound;
  bound.hidden = BindMatrix(gradients.grad_hidden(), binding);
  bound.weight = BindMatrix(gradients.grad_weight(), binding);
  bound.bias = BindColumn(gradients.grad_bias(), binding);
  bound.weight_mode = mode(gradients.grad_weight_mode());
  bound.bias_mode = mode(gradients.grad_bias_mode());
  return bound;
}

RowsView BindColumn(const v1::Tensor& tensor, const Binding& binding) {
  return MakeRowsView(binding.View(tensor), 0);
}

RowsView BindMatrix(const v1::Tensor& tensor, const Binding& binding) {
  return MakeRowsView(binding.View(tensor), 1);
}

}  // namespace lossd
