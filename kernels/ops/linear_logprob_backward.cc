#include "kernels/ops/linear_logprob_backward.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/linear/engine.h"

namespace lossd {
namespace {

constexpr int64_t kMaxColumns = 1024;

absl::Status CheckUpstream(const v1::LinearLogprobBackward& request, const Dims& dims) {
  if (!request.has_d_logprob() && !request.has_d_entropy() && !request.has_d_lse() &&
      !request.has_d_mean_logit() && !request.has_d_ids_logprob()) {
    // ids alone is the likelier slip.
    if (request.has_ids()) return FieldError("ids", "absent without d_ids_logprob", "given");
    return FieldError("d_logprob", "given where no other derivative is", "absent");
  }
  if (request.has_d_logprob() && !request.head().has_target()) {
    return FieldError("target", "given for d_logprob", "absent");
  }
  if (request.has_entropy() != request.has_d_entropy()) {
    return FieldError("entropy",
                      request.has_entropy() ? "absent without d_entropy" : "given for d_entropy",
                      request.has_entropy() ? "given" : "absent");
  }
  if (request.has_ids() != request.has_d_ids_logprob()) {
    return FieldError(
        "ids", request.has_ids() ? "absent without d_ids_logprob" : "given for d_ids_logprob",
        request.has_ids() ? "given" : "absent");
  }
  if (dims["K"] > kMaxColumns) {
    return FieldError("ids", absl::StrCat("at most ", kMaxColumns, " in a row"),
                      absl::StrCat(dims["K"]));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<std::string>& LinearLogprobBackwardOp::metric_names() const {
  static const auto* const kNone = new std::vector<std::string>;
  return *kNone;
}

absl::Status LinearLogprobBackwardOp::CheckRequest(const v1::LinearLogprobBackward& request,
                                                   const Dims& dims) const {
  LOSSD_RETURN_IF_ERROR(CheckHead(request.linear(), request.head(), dims, ShardUse::kAllowed));
  LOSSD_RETURN_IF_ERROR(CheckUpstream(request, dims));
  LOSSD_RETURN_IF_ERROR(CheckGradients(request.linear(), request.gradients()));
  if (!WantsGradients(request.gradients())) {
    return FieldError("grad_hidden", "given where no other gradient is", "absent");
  }
  return absl::OkStatus();
}

absl::StatusOr<PendingResult> LinearLogprobBackwardOp::EnqueueRequest(
    const v1::LinearLogprobBackward& request, const OpCall& call, Backend& backend) const {
  const Binding& binding = *call.binding;
  LOSSD_ASSIGN_OR_RETURN(
      HeadEngine engine,
      HeadEngine::Start(call, backend,
                        BindHead(request.linear(), request.head(), call.dims, binding)));
  BackwardRows rows;
  rows.valid_vocab = engine.head().valid_vocab;
  rows.lse = BindColumn(request.lse(), binding);
  rows.entropy = BindColumn(request.entropy(), binding);
  rows.d_logprob = BindColumn(request.d_logprob(), binding);
  rows.d_entropy = BindColumn(request.d_entropy(), binding);
  rows.d_lse = BindColumn(request.d_lse(), binding);
  rows.d_mean_logit = BindColumn(request.d_mean_logit(), binding);
  rows.ids = BindMatrix(request.ids(), binding);
  rows.d_ids_logprob = BindMatrix(request.d_ids_logprob(), binding);

  HeadOutputs outputs;
  outputs.gradients = BindGradients(request.gradients(), binding);
  outputs.columns.ids = rows.ids;
  outputs.columns.d_ids_logprob = rows.d_ids_logprob;
  LOSSD_RETURN_IF_ERROR(engine.RunHead(rows, outputs));

  LogprobEndStage end;
  end.rows = engine.head().rows;
  end.counted = engine.rows().counted;
  end.record = engine.record();
  LOSSD_RETURN_IF_ERROR(engine.RunStage(end, 1));
  return engine.Finish();
}

void LinearLogprobBackwardOp::FillReply(const v1::LinearLogprobBackward&,
                                        const ResultRecord& record, v1::OpReply* reply) const {
  reply->set_count(record.count);
}

}  // namespace lossd
