#include "kernels/ops/preference_bind.h"

#include "kernels/core/status_macros.h"
#include "kernels/linear/head_backend.h"
#include "kernels/ops/sequence_run.h"

namespace lossd {
namespace {

// The formulas' enums have the numbers of the wire.
static_assert(static_cast<int>(Pairing::kHalves) == v1::PAIRING_HALVES);
static_assert(static_cast<int>(Pairing::kInterleaved) == v1::PAIRING_INTERLEAVED);
static_assert(static_cast<int>(PreferenceType::kSigmoid) == v1::PREFERENCE_TYPE_SIGMOID);
static_assert(static_cast<int>(PreferenceType::kRobust) == v1::PREFERENCE_TYPE_ROBUST);
static_assert(static_cast<int>(PreferenceType::kHinge) == v1::PREFERENCE_TYPE_HINGE);
static_assert(static_cast<int>(PreferenceType::kIpo) == v1::PREFERENCE_TYPE_IPO);
static_assert(static_cast<int>(PreferenceType::kExoPair) == v1::PREFERENCE_TYPE_EXO_PAIR);
static_assert(static_cast<int>(PreferenceType::kNcaPair) == v1::PREFERENCE_TYPE_NCA_PAIR);
static_assert(static_cast<int>(PreferenceType::kBcoPair) == v1::PREFERENCE_TYPE_BCO_PAIR);
static_assert(static_cast<int>(PreferenceType::kSppoHard) == v1::PREFERENCE_TYPE_SPPO_HARD);
static_assert(static_cast<int>(PreferenceType::kDiscopop) == v1::PREFERENCE_TYPE_DISCOPOP);
static_assert(static_cast<int>(PreferenceType::kApoZero) == v1::PREFERENCE_TYPE_APO_ZERO);
static_assert(static_cast<int>(PreferenceType::kApoDown) == v1::PREFERENCE_TYPE_APO_DOWN);
static_assert(static_cast<int>(PreferenceType::kOrpo) == v1::PREFERENCE_TYPE_ORPO);
static_assert(static_cast<int>(PreferenceType::kAot) == v1::PREFERENCE_TYPE_AOT);
static_assert(static_cast<int>(PreferenceType::kAotUnpaired) == v1::PREFERENCE_TYPE_AOT_UNPAIRED);
static_assert(v1::PreferenceType_MAX == v1::PREFERENCE_TYPE_AOT_UNPAIRED);
static_assert(static_cast<int>(PreferenceScore::kReverseKl) == v1::PREFERENCE_SCORE_REVERSE_KL);
static_assert(static_cast<int>(PreferenceScore::kForwardKl) == v1::PREFERENCE_SCORE_FORWARD_KL);
static_assert(static_cast<int>(PreferenceScore::kJs) == v1::PREFERENCE_SCORE_JS);
static_assert(static_cast<int>(PreferenceScore::kAlpha) == v1::PREFERENCE_SCORE_ALPHA);
static_assert(static_cast<int>(PreferenceScore::kAlphaReward) == v1::PREFERENCE_SCORE_ALPHA_REWARD);
static_assert(v1::PreferenceScore_MAX == v1::PREFERENCE_SCORE_ALPHA_REWARD);

PreferenceTermOptions<double> MakeTerm(const v1::PreferenceTerm& term) {
  PreferenceTermOptions<double> options;
  options.type = static_cast<PreferenceType>(term.type());
  options.length_average = term.length_average();
  options.weight = term.weight();
  options.beta = term.beta();
  options.label_smoothing = term.label_smoothing();
  options.margin = term.margin();
  options.tau = term.tau();
  options.bco_delta = term.bco_delta();
  return options;
}

PreferenceOptions<double> MakeOptions(const v1::PreferenceTerms& preference) {
  PreferenceOptions<double> options;
  options.term_count = preference.terms_size();
  for (int t = 0; t < options.term_count; ++t) options.terms[t] = MakeTerm(preference.terms(t));
  options.pairing = static_cast<Pairing>(preference.pairing());
  options.score = static_cast<PreferenceScore>(preference.score());
  options.score_alpha = preference.score_alpha();
  options.wpo = preference.wpo();
  return options;
}

}  // namespace

absl::StatusOr<NllMaskStage> BindNllRows(const v1::PreferenceTerms& preference,
                                         const Binding& binding, Backend& backend,
                                         HeadProblem* head) {
  NllMaskStage stage;
  if (!preference.has_nll_mask()) return stage;
  stage.rows = head->rows;
  stage.cu_seqlens = BindColumn(preference.cu_seqlens(), binding);
  stage.pairs = (stage.cu_seqlens.rows - 1) / 2;
  stage.pairing = static_cast<Pairing>(preference.pairing());
  stage.mask = head->mask;
  stage.nll_mask = BindColumn(preference.nll_mask(), binding);
  LOSSD_ASSIGN_OR_RETURN(stage.read, backend.device->workspace().AllocateArray<uint8_t>(
                                         head->rows, "rows that are read"));
  head->mask = WorkspaceColumn(stage.read, DType::kU8, head->rows);
  return stage;
}

PreferenceProblem BindPreference(const v1::PreferenceTerms& preference,
                                 const v1::PreferenceOutputs& outputs, const Dims& dims,
                                 const Binding& binding) {
  const auto column = [&](const v1::Tensor& tensor) { return BindColumn(tensor, binding); };
  PreferenceProblem problem;
  problem.options = MakeOptions(preference);
  problem.sequences = BindSequences(preference, dims, binding);
  SequenceProblem& sequences = problem.sequences;
  sequences.groups = sequences.sequences / 2;
  sequences.group_weight = column(preference.pair_weight());
  sequences.nll_mask = column(preference.nll_mask());
  sequences.ld_alpha = preference.ld_alpha();
  sequences.nll_coef = preference.nll_coef();
  sequences.nll_denominator = preference.nll_denominator();
  sequences.nll_denominator_from = static_cast<CountDenominator>(preference.nll_denominator_from());
  sequences.loss = column(outputs.loss());
  problem.pair_loss = column(outputs.pair_loss());
  problem.chosen_logp = column(outputs.chosen_logp());
  problem.rejected_logp = column(outputs.rejected_logp());
  problem.chosen_reward = column(outputs.chosen_reward());
  problem.rejected_reward = column(outputs.rejected_reward());
  return problem;
}

absl::Status AllocatePreference(HeadEngine* engine, PreferenceProblem* problem) {
  const int64_t pairs = problem->Pairs();
  if (problem->options.wpo) {
    LOSSD_ASSIGN_OR_RETURN(problem->wpo_mean,
                           engine->Allocate<double>(2 * pairs, "confidence of a sequence"));
  }
  SortedLists& sorted = problem->sorted;
  for (int t = 0; t < problem->options.term_count; ++t) {
    if (IsSorted(problem->options.terms[t].type)) sorted.lists += 2;
  }
  if (sorted.lists == 0) return absl::OkStatus();
  const int64_t entries = sorted.lists * pairs;
  LOSSD_ASSIGN_OR_RETURN(sorted.keys, engine->Allocate<double>(entries, "keys of sorted terms"));
  LOSSD_ASSIGN_OR_RETURN(sorted.rank, engine->Allocate<int32_t>(entries, "places of pairs"));
  LOSSD_ASSIGN_OR_RETURN(sorted.order, engine->Allocate<int32_t>(entries, "pairs in order"));
  return absl::OkStatus();
}

std::vector<StageRun> PreferenceStages(const PreferenceProblem& problem) {
  const PreferencePairStage pairs{problem};
  std::vector<StageRun> stages = {{pairs, pairs.Instances()}};
  if (problem.sorted.lists == 0) return stages;
  PreferenceRankStage ranks;
  ranks.sorted = problem.sorted;
  ranks.pairs = problem.Pairs();
  ranks.record = problem.sequences.record;
  const PreferenceValueStage values{problem};
  stages.push_back({ranks, ranks.Instances()});
  stages.push_back({values, values.Instances()});
  return stages;
}

std::vector<std::string> PreferenceMetricNames() {
  return {"pair_loss",         "chosen_logp",         "rejected_logp",
          "chosen_reward",     "rejected_reward",     "margin",
          "accuracy",          "wpo_weight",          "head_entropy",
          "chosen_mean_logit", "rejected_mean_logit", "chosen_token_accuracy"};
}

static_assert(kPreferenceMetrics == 8 && kSequenceRowMetrics == 4);

void FillPreferenceReply(const v1::PreferenceTerms& preference, bool head_metrics,
                         const std::vector<std::string>& names, const ResultRecord& record,
                         v1::OpReply* reply) {
  const int rows = head_metrics ? static_cast<int>(kSequenceRowMetrics) : 0;
  FillSequenceReply(names, kPreferenceMetrics + rows, record, reply);
  if (preference.nll_coef() == 0) return;
  reply->set_nll_sum(record.nll_sum);
  reply->set_nll_count(record.nll_count);
}

}  // namespace lossd
