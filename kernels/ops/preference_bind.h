// From the messages of a preference loss to its problem and its stages: what does not depend on where the log-probabilities come from.
#ifndef LOSSD_KERNELS_OPS_PREFERENCE_BIND_H_
#define LOSSD_KERNELS_OPS_PREFERENCE_BIND_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/binding.h"
#include "kernels/core/op.h"
#include "kernels/core/result_record.h"
#include "kernels/core/schema.h"
#include "kernels/linear/engine.h"
#include "kernels/objectives/preference.h"
#include "lossd/v1/preference.pb.h"
#include "lossd/v1/service.pb.h"

namespace lossd {

// With nll_mask: the stage that makes a mask of the rows that are read, which takes the place of head->mask; otherwise one without rows. The
// stage precedes everything else. Precedes HeadEngine::Start.
absl::StatusOr<NllMaskStage> BindNllRows(const v1::PreferenceTerms& preference,
                                         const Binding& binding, Backend& backend,
                                         HeadProblem* head);

// Options and views of a request that CheckPreferenceTerms let pass; nothing of the head, no workspace.
PreferenceProblem BindPreference(const v1::PreferenceTerms& preference,
                                 const v1::PreferenceOutputs& outputs, const Dims& dims,
                                 const Binding& binding);

// What sorted terms and wpo leave between stages.
absl::Status AllocatePreference(HeadEngine* engine, PreferenceProblem* problem);

// The stages that make facts of sequences and pairs.
std::vector<StageRun> PreferenceStages(const PreferenceProblem& problem);

// Names of PreferenceMetric, then of SequenceRowMetric.
std::vector<std::string> PreferenceMetricNames();

// Sums, counts, and the metrics: those of rows with head_metrics.
void FillPreferenceReply(const v1::PreferenceTerms& preference, bool head_metrics,
                         const std::vector<std::string>& names, const ResultRecord& record,
                         v1::OpReply* reply);

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_PREFERENCE_BIND_H_
