#include "client/demo/remote_head.h"

#include <utility>

#include "client/demo/model.h"
#include "client/demo/shape.h"
#include "lossd/v1/operations.pb.h"

namespace lossd::demo {
namespace {

template <typename T>
absl::Status Make(Client& client, int64_t elements, SharedTensor<T>* tensor) {
  auto made = SharedTensor<T>::Create(client, elements);
  if (!made.ok()) return made.status();
  *tensor = *std::move(made);
  return absl::OkStatus();
}

// The first that failed.
template <typename... Statuses>
absl::Status All(Statuses... statuses) {
  absl::Status all;
  (all.Update(statuses), ...);
  return all;
}

double SumOf(const v1::OpReply& reply, const char* metric) {
  const auto found = reply.metrics().find(metric);
  return found == reply.metrics().end() ? 0 : found->second.sum();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RemoteHead>> RemoteHead::Create(Client& client, int64_t rows) {
  std::unique_ptr<RemoteHead> head(new RemoteHead(client));
  const absl::Status made =
      All(Make(client, rows * kHidden, &head->hidden_), Make(client, kHeadFloats, &head->weight_),
          Make(client, rows, &head->target_), Make(client, rows, &head->logprob_));
  if (!made.ok()) return made;
  return head;
}

absl::Status RemoteHead::PushWeight() { return weight_.Push(kHeadFloats); }

absl::Status RemoteHead::PushRows(int64_t rows) {
  return All(hidden_.Push(rows * kHidden), target_.Push(rows));
}

void RemoteHead::Describe(int64_t rows, v1::LinearInput* linear, v1::HeadOptions* head) const {
  *linear->mutable_hidden() = hidden_.Describe({rows, kHidden});
  *linear->mutable_weight() = weight_.Describe({kVocab, kHidden});
  *head->mutable_target() = target_.Describe({rows});
}

absl::Status RemoteHead::Logprob(int64_t rows) {
  if (absl::Status pushed = PushRows(rows); !pushed.ok()) return pushed;
  v1::LinearLogprob op;
  Describe(rows, op.mutable_linear(), op.mutable_head());
  *op.mutable_logprob() = logprob_.Describe({rows});
  const auto reply = client_.Run(op, {.batch_invariant = true});
  if (!reply.ok()) return reply.status();
  return logprob_.Pull(rows);
}

absl::StatusOr<std::unique_ptr<TrainableHead>> TrainableHead::Create(Client& client, int64_t rows,
                                                                     int64_t sequences) {
  std::unique_ptr<TrainableHead> head(new TrainableHead);
  auto inputs = RemoteHead::Create(client, rows);
  if (!inputs.ok()) return inputs.status();
  head->inputs_ = *std::move(inputs);
  const absl::Status made =
      All(Make(client, rows * kHidden, &head->grad_hidden_),
          Make(client, kHeadFloats, &head->grad_weight_), Make(client, rows, &head->old_logprob_),
          Make(client, rows, &head->reference_logprob_), Make(client, sequences, &head->advantage_),
          Make(client, rows, &head->ratio_), Make(client, rows, &head->logprob_),
          Make(client, sequences + 1, &head->sequence_starts_));
  if (!made.ok()) return made;
  return head;
}

absl::Status TrainableHead::PushGradWeight() { return grad_weight_.Push(kHeadFloats); }
absl::Status TrainableHead::PullGradWeight() { return grad_weight_.Pull(kHeadFloats); }

void TrainableHead::Describe(int64_t rows, v1::LinearGradients* gradients) const {
  *gradients->mutable_grad_hidden() = grad_hidden_.Describe({rows, kHidden});
  *gradients->mutable_grad_weight() = grad_weight_.Describe({kVocab, kHidden});
  gradients->set_grad_weight_mode(v1::GRAD_MODE_ACCUMULATE);
}

absl::StatusOr<double> TrainableHead::CrossEntropy(int64_t rows, double denominator, bool learn) {
  if (absl::Status pushed = inputs_->PushRows(rows); !pushed.ok()) return pushed;
  v1::LinearCrossEntropy op;
  inputs_->Describe(rows, op.mutable_linear(), op.mutable_head());
  op.set_reduction(v1::REDUCTION_MEAN);
  op.set_denominator(denominator);
  if (learn) Describe(rows, op.mutable_gradients());
  const auto reply = inputs_->client_.Run(op);
  if (!reply.ok()) return reply.status();
  if (learn) {
    if (absl::Status s = grad_hidden_.Pull(rows * kHidden); !s.ok()) return s;
  }
  return reply->sum();
}

absl::StatusOr<TrainableHead::PolicyFigures> TrainableHead::PolicyLoss(int64_t sequences,
                                                                       int64_t length) {
  const int64_t rows = sequences * length;
  for (int64_t b = 0; b <= sequences; ++b) {
    sequence_starts_.data()[b] = static_cast<int32_t>(b * length);
  }
  const absl::Status pushed =
      All(inputs_->PushRows(rows), old_logprob_.Push(rows), reference_logprob_.Push(rows),
          advantage_.Push(sequences), sequence_starts_.Push(sequences + 1));
  if (!pushed.ok()) return pushed;

  v1::LinearPolicyLoss op;
  inputs_->Describe(rows, op.mutable_linear(), op.mutable_head());
  v1::PolicyTerms& policy = *op.mutable_policy();
  policy.set_kind(v1::POLICY_KIND_PPO);
  policy.set_clip_low(kClipLow);
  policy.set_clip_high(kClipHigh);
  policy.set_kl_estimator(v1::KL_ESTIMATOR_K3);
  policy.set_kl_coef(kKlCoefficient);
  policy.set_sequence_weighting(v1::SEQUENCE_WEIGHTING_INVERSE_LENGTH);
  policy.set_denominator(static_cast<double>(sequences));
  *policy.mutable_sequence_advantage() = advantage_.Describe({sequences});
  *policy.mutable_old_logprob() = old_logprob_.Describe({rows});
  *policy.mutable_ref_logprob() = reference_logprob_.Describe({rows});
  *policy.mutable_cu_seqlens() = sequence_starts_.Describe({sequences + 1});
  *op.mutable_results()->mutable_ratio() = ratio_.Describe({rows});
  *op.mutable_logprob() = logprob_.Describe({rows});
  Describe(rows, op.mutable_gradients());
  const auto reply = inputs_->client_.Run(op, {.batch_invariant = true});
  if (!reply.ok()) return reply.status();
  const absl::Status pulled =
      All(grad_hidden_.Pull(rows * kHidden), ratio_.Pull(rows), logprob_.Pull(rows));
  if (!pulled.ok()) return pulled;
  const double tokens = static_cast<double>(rows);
  return PolicyFigures{
      .kl = SumOf(*reply, "kl") / tokens,
      .clipped = (SumOf(*reply, "clip_low") + SumOf(*reply, "clip_high")) / tokens};
}

}  // namespace lossd::demo
