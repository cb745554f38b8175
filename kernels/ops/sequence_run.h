// Losses on sequences: what the linear and the plain operations, on pairs and on single sequences, have in common.
#ifndef LOSSD_KERNELS_OPS_SEQUENCE_RUN_H_
#define LOSSD_KERNELS_OPS_SEQUENCE_RUN_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/core/binding.h"
#include "kernels/linear/bind_head.h"
#include "kernels/linear/engine.h"
#include "kernels/linear/head.h"
#include "kernels/objectives/sequence_problem.h"
#include "kernels/ops/presence_rules.h"
#include "lossd/v1/preference.pb.h"
#include "lossd/v1/service.pb.h"

namespace lossd {

// Which of the ways to give a reference a request uses.
struct ReferenceUse {
  bool by_token = false;
  bool by_sequence = false;
  bool free = false;
};
template <class Terms>
ReferenceUse UseOf(const Terms& terms) {
  return {terms.has_ref_logprob(), terms.has_ref_sequence_logprob(), terms.reference_free()};
}
// Exactly one reference, or reference_free. `head`: null for operations that take log-probabilities.
absl::Status CheckReference(const ReferenceUse& use, const v1::ReferenceHead* head,
                            const Dims& dims);

// denominator and d_loss of PreferenceTerms or UnpairedTerms.
template <class Terms>
absl::Status CheckScale(const Terms& terms, bool wants_gradient) {
  absl::Status status =
      AbsentUnless(terms.denominator_from() == v1::COUNT_DENOMINATOR_GIVEN, terms.has_denominator(),
                   "denominator", "with denominator_from COUNT");
  if (!status.ok()) return status;
  return AbsentUnless(wants_gradient, terms.has_d_loss(), "d_loss", "without a gradient");
}

// Views and options that PreferenceTerms and UnpairedTerms share. No head, no workspace, no groups.
template <class Terms>
SequenceProblem BindSequences(const Terms& terms, const Dims& dims, const Binding& binding) {
  SequenceProblem problem;
  problem.rows = dims["N"];
  problem.cu_seqlens = BindColumn(terms.cu_seqlens(), binding);
  problem.sequences = problem.cu_seqlens.rows - 1;
  problem.ref_logprob = BindColumn(terms.ref_logprob(), binding);
  problem.ref_sequence_logprob = BindColumn(terms.ref_sequence_logprob(), binding);
  problem.d_loss = BindColumn(terms.d_loss(), binding);
  problem.denominator = terms.denominator();
  problem.denominator_from = static_cast<CountDenominator>(terms.denominator_from());
  return problem;
}

// Row numbers are 32 bits wide in the kernels.
absl::Status CheckRowCount(const Dims& dims);
// The rows of an operation that takes log-probabilities, as the engine wants them.
HeadProblem RowsOnly(int64_t rows, const RowsView& mask);

// Allocates what the stages leave for each other. The engine has been started.
absl::Status AllocateSequences(int group_metrics, HeadEngine* engine, SequenceProblem* problem);

// The same, with statistics by row and `row_metrics` metrics of rows (0: no head metrics); if the request has a reference head, its
// log-probabilities become ref_logprob.
absl::Status AllocateSequencesOfHead(int group_metrics, int row_metrics,
                                     const v1::ReferenceHead& reference, const Binding& binding,
                                     HeadEngine* engine, SequenceProblem* problem);

// A contiguous column of workspace memory.
RowsView WorkspaceColumn(void* data, DType dtype, int64_t rows);

// The whole course around `own`, the stages that make facts and groups.
std::vector<StageRun> SequenceStages(const SequenceProblem& problem, std::vector<StageRun> own);
// The same with both sweeps of a head, the second if gradients are wanted. all_sums: somebody reads more of the statistics than
// log-probabilities.
absl::Status RunSequencesOfHead(const SequenceProblem& problem, bool all_sums,
                                std::vector<StageRun> own, const HeadOutputs& outputs,
                                HeadEngine* engine);

// sum, count and the first `metrics` metrics by their names.
void FillSequenceReply(const std::vector<std::string>& metric_names, int metrics,
                       const ResultRecord& record, v1::OpReply* reply);

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_SEQUENCE_RUN_H_
