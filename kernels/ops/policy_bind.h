// From the messages of a policy loss to its problem, and from the record to the reply: what does not depend on where the
// log-probabilities come from.
#ifndef LOSSD_KERNELS_OPS_POLICY_BIND_H_
#define LOSSD_KERNELS_OPS_POLICY_BIND_H_

#include <string>
#include <vector>

#include "kernels/core/binding.h"
#include "kernels/core/result_record.h"
#include "kernels/core/schema.h"
#include "kernels/objectives/policy_problem.h"
#include "lossd/v1/policy.pb.h"
#include "lossd/v1/service.pb.h"

namespace lossd {

// Options and views of a request that CheckPolicyTerms let pass; nothing of the head, no workspace.
PolicyProblem BindPolicy(const v1::PolicyTerms& policy, const v1::PolicyOutputs& outputs,
                         const Dims& dims, const Binding& binding);

// Whether the server selects the tokens of CLIP_COV or KL_COV.
bool SelectsTokens(const PolicyProblem& problem);

// Whether something of a sequence, or the selection, is made of the current log-probabilities of tokens: then the logits are swept twice.
bool NeedsStatisticsFirst(const PolicyProblem& problem);

// Names of PolicyMetric, in its order.
std::vector<std::string> PolicyMetricNames();

// Sums, counts, and the metrics that the request's options make.
void FillPolicyReply(const v1::PolicyTerms& policy, bool head_metrics,
                     const std::vector<std::string>& names, const ResultRecord& record,
                     v1::OpReply* reply);

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_POLICY_BIND_H_
