#include "kernels/ops/logprob_bind.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/linear/bind_head.h"
#include "kernels/linear/engine.h"
#include "lossd/v1/logits.pb.h"

namespace lossd {
namespace {

constexpr int64_t kMaxColumns = 1024;

template <class M>
absl::Status CheckShardOutputs(const M& request) {
  const bool whole_row = request.has_logprob() || request.has_lse() || request.has_entropy() ||
                         request.has_lse2() || request.has_log_sum_p2() || request.has_argmax() ||
                         request.has_correct() || request.has_max_prob() ||
                         request.has_mean_logit() || request.has_ids_logprob() ||
                         request.has_topk_ids() || request.has_topk_logprob();
  if (!whole_row) return absl::OkStatus();
  return FieldError(
      "vocab_total",
      "the ids held here, where more than vocab_stats is wanted and there is no group",
      absl::StrCat(request.head().vocab_total()));
}

template <class M>
absl::Status CheckIds(const M& request, const Dims& dims) {
  if (request.has_ids() != request.has_ids_logprob()) {
    return FieldError("ids",
                      request.has_ids() ? "absent without ids_logprob" : "given for ids_logprob",
                      request.has_ids() ? "given" : "absent");
  }
  if (dims["K"] > kMaxColumns) {
    return FieldError("ids", absl::StrCat("at most ", kMaxColumns, " in a row"),
                      absl::StrCat(dims["K"]));
  }
  return absl::OkStatus();
}

template <class M>
absl::Status CheckTopK(const M& request, const Dims& dims, int64_t valid) {
  const bool wanted = request.has_topk_ids() || request.has_topk_logprob();
  const int64_t top_k = request.top_k();
  if (wanted != (top_k > 0)) {
    return FieldError(
        "top_k",
        wanted ? "at least 1 for topk_ids and topk_logprob" : "0 without topk_ids and topk_logprob",
        absl::StrCat(top_k));
  }
  const int64_t most = std::min(valid, kMaxColumns);
  if (top_k > most) {
    return FieldError("top_k", absl::StrCat("at most ", most), absl::StrCat(top_k));
  }
  if (wanted && dims["TopK"] != top_k) {
    return FieldError(request.has_topk_ids() ? "topk_ids" : "topk_logprob",
                      absl::StrCat("of ", top_k, " columns, as top_k says"),
                      absl::StrCat(dims["TopK"]));
  }
  return absl::OkStatus();
}

}  // namespace

template <class M>
absl::Status CheckLogprob(const M& request, const Dims& dims) {
  const v1::HeadOptions& head = request.head();
  if (IsShard(head, dims)) LOSSD_RETURN_IF_ERROR(CheckShardOutputs(request));
  if (!head.has_target() && (request.has_logprob() || request.has_correct())) {
    return FieldError("target", "given for logprob and correct", "absent");
  }
  LOSSD_RETURN_IF_ERROR(CheckIds(request, dims));
  return CheckTopK(request, dims, head.valid_vocab() > 0 ? head.valid_vocab() : dims["V"]);
}

template <class M>
absl::StatusOr<PendingResult> EnqueueLogprob(const M& request, const HeadProblem& problem,
                                             const OpCall& call, Backend& backend) {
  const Binding& binding = *call.binding;
  LOSSD_ASSIGN_OR_RETURN(HeadEngine engine, HeadEngine::Start(call, backend, problem));
  const HeadProblem& head = engine.head();
  LogprobRows rows;
  rows.target = head.target;
  rows.valid_vocab = head.valid_vocab;
  rows.valid_columns = head.valid_columns;
  rows.logprob = BindColumn(request.logprob(), binding);
  rows.lse = BindColumn(request.lse(), binding);
  rows.entropy = BindColumn(request.entropy(), binding);
  rows.lse2 = BindColumn(request.lse2(), binding);
  rows.log_sum_p2 = BindColumn(request.log_sum_p2(), binding);
  rows.argmax = BindColumn(request.argmax(), binding);
  rows.correct = BindColumn(request.correct(), binding);
  rows.max_prob = BindColumn(request.max_prob(), binding);
  rows.mean_logit = BindColumn(request.mean_logit(), binding);
  rows.vocab_stats = BindMatrix(request.vocab_stats(), binding);
  LOSSD_ASSIGN_OR_RETURN(rows.degenerate, engine.Allocate<uint8_t>(head.rows, "degenerate rows"));

  HeadOutputs outputs;
  outputs.columns.ids = BindMatrix(request.ids(), binding);
  outputs.columns.ids_logprob = BindMatrix(request.ids_logprob(), binding);
  outputs.columns.topk_ids = BindMatrix(request.topk_ids(), binding);
  outputs.columns.topk_logprob = BindMatrix(request.topk_logprob(), binding);
  LOSSD_RETURN_IF_ERROR(engine.RunHead(rows, outputs));

  LogprobEndStage end;
  end.rows = head.rows;
  end.counted = engine.rows().counted;
  end.degenerate = rows.degenerate;
  end.record = engine.record();
  LOSSD_RETURN_IF_ERROR(engine.RunStage(end, 1));
  return engine.Finish();
}

template <class M>
absl::Status CheckLogprobBackward(const M& request, const Dims& dims) {
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

template <class M>
absl::StatusOr<PendingResult> EnqueueLogprobBackward(const M& request, const HeadProblem& problem,
                                                     const HeadGradients& gradients,
                                                     const OpCall& call, Backend& backend) {
  const Binding& binding = *call.binding;
  LOSSD_ASSIGN_OR_RETURN(HeadEngine engine, HeadEngine::Start(call, backend, problem));
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
  outputs.gradients = gradients;
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

template absl::Status CheckLogprob(const v1::LinearLogprob&, const Dims&);
template absl::Status CheckLogprob(const v1::Logprob&, const Dims&);
template absl::StatusOr<PendingResult> EnqueueLogprob(const v1::LinearLogprob&, const HeadProblem&,
                                                      const OpCall&, Backend&);
template absl::StatusOr<PendingResult> EnqueueLogprob(const v1::Logprob&, const HeadProblem&,
                                                      const OpCall&, Backend&);
template absl::Status CheckLogprobBackward(const v1::LinearLogprobBackward&, const Dims&);
template absl::Status CheckLogprobBackward(const v1::LogprobBackward&, const Dims&);
template absl::StatusOr<PendingResult> EnqueueLogprobBackward(const v1::LinearLogprobBackward&,
                                                              const HeadProblem&,
                                                              const HeadGradients&, const OpCall&,
                                                              Backend&);
template absl::StatusOr<PendingResult> EnqueueLogprobBackward(const v1::LogprobBackward&,
                                                              const HeadProblem&,
                                                              const HeadGradients&, const OpCall&,
                                                              Backend&);

}  // namespace lossd
