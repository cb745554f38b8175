#include "kernels/ops/unpaired_bind.h"

#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/ops/presence_rules.h"
#include "kernels/ops/sequence_run.h"

namespace lossd {
namespace {

static_assert(static_cast<int>(UnpairedType::kKto) == v1::UNPAIRED_TYPE_KTO);
static_assert(static_cast<int>(UnpairedType::kApoZeroUnpaired) ==
              v1::UNPAIRED_TYPE_APO_ZERO_UNPAIRED);
static_assert(static_cast<int>(UnpairedType::kBco) == v1::UNPAIRED_TYPE_BCO);
static_assert(v1::UnpairedType_MAX == v1::UNPAIRED_TYPE_BCO);

}  // namespace

absl::Status CheckUnpairedTerms(const v1::UnpairedTerms& unpaired, const v1::ReferenceHead* head,
                                const Dims& dims, bool wants_gradient) {
  LOSSD_RETURN_IF_ERROR(CheckReference(UseOf(unpaired), head, dims));
  const bool kto = unpaired.type() == v1::UNPAIRED_TYPE_KTO;
  LOSSD_RETURN_IF_ERROR(GivenIf(kto, unpaired.has_kl_baseline(), "kl_baseline", "with type KTO"));
  LOSSD_RETURN_IF_ERROR(
      AbsentUnless(kto, unpaired.has_kl_baseline(), "kl_baseline", "without type KTO"));
  LOSSD_RETURN_IF_ERROR(AbsentUnless(unpaired.type() == v1::UNPAIRED_TYPE_BCO,
                                     unpaired.has_bco_delta(), "bco_delta", "without type BCO"));
  return CheckScale(unpaired, wants_gradient);
}

UnpairedProblem BindUnpaired(const v1::UnpairedTerms& unpaired, const v1::UnpairedOutputs& outputs,
                             const Dims& dims, const Binding& binding) {
  const auto column = [&](const v1::Tensor& tensor) { return BindColumn(tensor, binding); };
  UnpairedProblem problem;
  problem.sequences = BindSequences(unpaired, dims, binding);
  problem.sequences.groups = problem.sequences.sequences;
  problem.sequences.group_weight = column(unpaired.sequence_weight());
  problem.sequences.loss = column(outputs.loss());
  problem.options.type = static_cast<UnpairedType>(unpaired.type());
  problem.options.beta = unpaired.beta();
  problem.options.desirable_weight = unpaired.desirable_weight();
  problem.options.undesirable_weight = unpaired.undesirable_weight();
  problem.options.bco_delta = unpaired.bco_delta();
  problem.options.length_average = unpaired.length_average();
  problem.desirable = column(unpaired.desirable());
  problem.kl_baseline = column(unpaired.kl_baseline());
  problem.sequence_loss = column(outputs.sequence_loss());
  problem.sequence_logp = column(outputs.sequence_logp());
  problem.reward = column(outputs.reward());
  return problem;
}

std::vector<StageRun> UnpairedStages(const UnpairedProblem& problem) {
  const UnpairedSequenceStage stage{problem};
  return {{stage, stage.Instances()}};
}

std::vector<std::string> UnpairedMetricNames() {
  return {"sequence_loss",      "desirable_logp", "undesirable_logp",     "desirable_reward",
          "undesirable_reward", "head_entropy",   "desirable_mean_logit", "undesirable_mean_logit"};
}

static_assert(kUnpairedMetrics == 5 && kUnpairedRowMetrics == kRowFirstAccuracy);

}  // namespace lossd
