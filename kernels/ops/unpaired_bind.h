// From the messages of a loss on single judged sequences to its problem, with the rules that the descriptor cannot say: what does not
// depend on where the log-probabilities come from.
#ifndef LOSSD_KERNELS_OPS_UNPAIRED_BIND_H_
#define LOSSD_KERNELS_OPS_UNPAIRED_BIND_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/core/binding.h"
#include "kernels/core/result_record.h"
#include "kernels/core/schema.h"
#include "kernels/linear/head_backend.h"
#include "kernels/objectives/unpaired.h"
#include "lossd/v1/preference.pb.h"
#include "lossd/v1/service.pb.h"

namespace lossd {

// Everything about the terms; `head` is null for UnpairedLoss. Looks at no data.
absl::Status CheckUnpairedTerms(const v1::UnpairedTerms& unpaired, const v1::ReferenceHead* head,
                                const Dims& dims, bool wants_gradient);

// Options and views; nothing of the head, no workspace.
UnpairedProblem BindUnpaired(const v1::UnpairedTerms& unpaired, const v1::UnpairedOutputs& outputs,
                             const Dims& dims, const Binding& binding);

// The stage that makes facts of sequences.
std::vector<StageRun> UnpairedStages(const UnpairedProblem& problem);

// Metrics of rows: an accuracy of the desirable side is none of them.
inline constexpr int kUnpairedRowMetrics = 3;
// Names of UnpairedMetric, then of SequenceRowMetric.
std::vector<std::string> UnpairedMetricNames();

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_UNPAIRED_BIND_H_
