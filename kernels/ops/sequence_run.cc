#include "kernels/ops/sequence_run.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/objectives/logprob.h"
#include "kernels/objectives/sequence_stages.h"
#include "kernels/objectives/statistics_rows.h"

namespace lossd {
namespace {

static_assert(static_cast<int>(CountDenominator::kGiven) == v1::COUNT_DENOMINATOR_GIVEN);
static_assert(static_cast<int>(CountDenominator::kCount) == v1::COUNT_DENOMINATOR_COUNT);

// The reference's log-probabilities of the same rows, with the same head options.
absl::Status RunReferenceHead(const v1::ReferenceHead& reference, const Binding& binding,
                              HeadEngine* engine, SequenceProblem* problem) {
  HeadProblem head = engine->head();
  head.hidden = BindMatrix(reference.ref_hidden(), binding);
  head.weight = BindMatrix(reference.ref_weight(), binding);
  head.bias = BindColumn(reference.ref_bias(), binding);
  head.hidden_size = head.hidden.width;
  LOSSD_ASSIGN_OR_RETURN(float* logprob,
                         engine->Allocate<float>(problem->rows, "the reference's logprob"));
  LogprobRows rows;
  rows.target = head.target;
  rows.valid_vocab = head.valid_vocab;
  rows.valid_columns = head.valid_columns;
  rows.logprob = WorkspaceColumn(logprob, DType::kF32, problem->rows);
  LOSSD_ASSIGN_OR_RETURN(rows.degenerate,
                         engine->Allocate<uint8_t>(problem->rows, "degenerate rows"));
  problem->ref_logprob = rows.logprob;
  return engine->RunOtherHead(head, rows);
}

absl::Status AllocateMetrics(int metrics, int64_t rows, HeadEngine* engine,
                             MetricColumns* columns) {
  columns->rows = rows;
  columns->metrics = metrics;
  LOSSD_ASSIGN_OR_RETURN(columns->values, engine->Allocate<float>(metrics * rows, "metrics"));
  LOSSD_ASSIGN_OR_RETURN(columns->population,
                         engine->Allocate<uint64_t>(rows, "populations of metrics"));
  return absl::OkStatus();
}

template <class S>
StageRun RunOf(const SequenceProblem& problem) {
  const S stage{problem};
  return {stage, stage.Instances()};
}

}  // namespace

absl::Status CheckReference(const ReferenceUse& use, const v1::ReferenceHead* head,
                            const Dims& dims) {
  const bool has_head =
      head != nullptr && (head->has_ref_hidden() || head->has_ref_weight() || head->has_ref_bias());
  const int references = (use.by_token ? 1 : 0) + (use.by_sequence ? 1 : 0) + (has_head ? 1 : 0);
  if (use.free && references > 0) {
    return FieldError("reference_free", "false where a reference is given", "true");
  }
  if (!use.free && references == 0) {
    return FieldError("ref_logprob", "given, or another reference, or reference_free", "absent");
  }
  if (references > 1) {
    return FieldError(use.by_token ? "ref_logprob" : "ref_sequence_logprob",
                      "the only reference of the call", "one of several");
  }
  if (!has_head) return absl::OkStatus();
  LOSSD_RETURN_IF_ERROR(
      GivenIf(true, head->has_ref_hidden(), "ref_hidden", "with ref_weight or ref_bias"));
  LOSSD_RETURN_IF_ERROR(GivenIf(true, head->has_ref_weight(), "ref_weight", "with ref_hidden"));
  if (dims["RefH"] < 1) return FieldError("ref_hidden", "of at least 1 column", "of none");
  return absl::OkStatus();
}

absl::Status CheckRowCount(const Dims& dims) {
  if (dims["N"] <= std::numeric_limits<int32_t>::max()) return absl::OkStatus();
  return UnimplementedError("logprob", "of less than 2^31 rows", absl::StrCat(dims["N"]));
}

HeadProblem RowsOnly(int64_t rows, const RowsView& mask) {
  HeadProblem head;
  head.rows = rows;
  head.mask = mask;
  return head;
}

RowsView WorkspaceColumn(void* data, DType dtype, int64_t rows) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = 1;
  view.shape[0] = rows;
  view.strides[0] = 1;
  view.present = true;
  return MakeRowsView(view, 0);
}

absl::Status AllocateSequences(int group_metrics, HeadEngine* engine, SequenceProblem* problem) {
  problem->counted = engine->rows().counted;
  problem->record = engine->record();
  LOSSD_ASSIGN_OR_RETURN(
      problem->facts, engine->Allocate<SequenceFacts>(problem->sequences, "facts of a sequence"));
  LOSSD_ASSIGN_OR_RETURN(problem->group,
                         engine->Allocate<GroupFacts>(problem->groups, "facts of a group"));
  LOSSD_ASSIGN_OR_RETURN(problem->totals, engine->Allocate<SequenceTotals>(1, "totals"));
  return AllocateMetrics(group_metrics, problem->groups, engine, &problem->group_metrics);
}

absl::Status AllocateSequencesOfHead(int group_metrics, int row_metrics,
                                     const v1::ReferenceHead& reference, const Binding& binding,
                                     HeadEngine* engine, SequenceProblem* problem) {
  const HeadProblem& head = engine->head();
  problem->target = head.target;
  problem->valid_vocab = head.valid_vocab;
  LOSSD_RETURN_IF_ERROR(AllocateSequences(group_metrics, engine, problem));
  if (row_metrics > 0) {
    LOSSD_RETURN_IF_ERROR(
        AllocateMetrics(row_metrics, problem->rows, engine, &problem->row_metrics));
  }
  LOSSD_ASSIGN_OR_RETURN(problem->statistics,
                         engine->Allocate<RowStatistics>(problem->rows, "statistics of a row"));
  LOSSD_ASSIGN_OR_RETURN(float* d_logprob, engine->Allocate<float>(problem->rows, "d_logprob"));
  problem->d_logprob = WorkspaceColumn(d_logprob, DType::kF32, problem->rows);
  if (!reference.has_ref_hidden()) return absl::OkStatus();
  return RunReferenceHead(reference, binding, engine, problem);
}

std::vector<StageRun> SequenceStages(const SequenceProblem& problem, std::vector<StageRun> own) {
  own.push_back(RunOf<SequenceTotalsStage>(problem));
  if (problem.d_logprob) own.push_back(RunOf<SequenceRowStage>(problem));
  own.push_back(RunOf<SequenceEndStage>(problem));
  return own;
}

absl::Status RunSequencesOfHead(const SequenceProblem& problem, bool all_sums,
                                std::vector<StageRun> own, const HeadOutputs& outputs,
                                HeadEngine* engine) {
  own.push_back(RunOf<SequenceTotalsStage>(problem));
  own.push_back(RunOf<SequenceRowStage>(problem));
  const KeepStatisticsRows statistics{problem.statistics, all_sums};
  const KeptGradientRows gradient{problem.statistics,
                                  static_cast<const float*>(problem.d_logprob.data)};
  LOSSD_RETURN_IF_ERROR(engine->RunHeadTwice(statistics, own, gradient, outputs));
  const SequenceEndStage end{problem};
  return engine->RunStage(end, end.Instances());
}

void FillSequenceReply(const std::vector<std::string>& metric_names, int metrics,
                       const ResultRecord& record, v1::OpReply* reply) {
  reply->set_sum(record.sum);
  reply->set_count(record.count);
  for (int m = 0; m < metrics; ++m) {
    v1::Metric& metric = (*reply->mutable_metrics())[metric_names[m]];
    metric.set_sum(record.metrics[m].sum);
    metric.set_count(record.metrics[m].count);
    metric.set_min(record.metrics[m].min);
    metric.set_max(record.metrics[m].max);
  }
}

}  // namespace lossd
