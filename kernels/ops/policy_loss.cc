#include "kernels/ops/policy_loss.h"

#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/linear/engine.h"
#include "kernels/objectives/policy.h"
#include "kernels/ops/policy_rules.h"
#include "kernels/ops/policy_run.h"

namespace lossd {

absl::Status PolicyLossOp::CheckRequest(const v1::PolicyLoss& request, const Dims&) const {
  const v1::PolicyTerms& policy = request.policy();
  const bool gradient =
      request.has_d_logprob() || request.has_d_entropy() || request.has_d_kl_logprob();
  LOSSD_RETURN_IF_ERROR(CheckPolicyOutputs(policy, request.results()));
  LOSSD_RETURN_IF_ERROR(CheckPolicyTerms(policy, gradient));
  const bool true_entropy = policy.entropy_kind() == v1::ENTROPY_KIND_TRUE;
  const bool reads_entropy = true_entropy || policy.has_entropy_threshold();
  if (reads_entropy && !request.has_entropy()) {
    return FieldError("entropy", "given with entropy_kind TRUE or entropy_threshold", "absent");
  }
  if (!reads_entropy && request.has_entropy()) {
    return FieldError("entropy", "absent without entropy_kind TRUE and entropy_threshold",
                      "present");
  }
  if (request.has_kl_logprob() && policy.kl_estimator() == v1::KL_ESTIMATOR_NONE) {
    return FieldError("kl_logprob", "absent without a kl_estimator", "present");
  }
  if (request.has_d_entropy() && !true_entropy) {
    return FieldError("d_entropy", "absent without entropy_kind TRUE", "present");
  }
  if (request.has_d_kl_logprob() && !request.has_kl_logprob()) {
    return FieldError("d_kl_logprob", "absent without kl_logprob", "present");
  }
  return absl::OkStatus();
}

absl::StatusOr<PendingResult> PolicyLossOp::EnqueueRequest(const v1::PolicyLoss& request,
                                                           const OpCall& call,
                                                           Backend& backend) const {
  const Binding& binding = *call.binding;
  HeadProblem rows;  // no head: rows and mask
  rows.rows = call.dims["N"];
  rows.mask = BindColumn(request.mask(), binding);
  LOSSD_ASSIGN_OR_RETURN(HeadEngine engine, HeadEngine::Create(call, backend, rows));

  PolicyProblem problem = BindPolicy(request.policy(), request.results(), call.dims, binding);
  problem.mask = rows.mask;
  problem.given_logprob = BindColumn(request.logprob(), binding);
  problem.given_entropy = BindColumn(request.entropy(), binding);
  problem.given_kl_logprob = BindColumn(request.kl_logprob(), binding);
  LOSSD_RETURN_IF_ERROR(AllocatePolicy(request.has_d_logprob(), &engine, &problem));
  const PolicyDerivatives derivatives = {BindColumn(request.d_logprob(), binding),
                                         BindColumn(request.d_entropy(), binding),
                                         BindColumn(request.d_kl_logprob(), binding)};
  LOSSD_RETURN_IF_ERROR(
      engine.RunLoss(PolicyLossCall{problem, derivatives}, PolicyStages(problem, derivatives)));
  return engine.Finish();
}

void PolicyLossOp::FillReply(const v1::PolicyLoss& request, const ResultRecord& record,
                             v1::OpReply* reply) const {
  FillPolicyReply(request.policy(), false, metric_names_, record, reply);
}

}  // namespace lossd
