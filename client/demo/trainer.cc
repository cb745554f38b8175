#include "client/demo/trainer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/demo/reward.h"

namespace lossd::demo {

Trainer::Trainer(Session& session, std::unique_ptr<TrainableHead> head)
    : session_(session),
      head_(std::move(head)),
      inputs_(head_->inputs()),
      random_(static_cast<uint64_t>(session.options.seed)),
      order_(session.corpus.learnt),
      next_(order_.size()) {
  InitializeBody(random_, body_.data());
  InitializeHead(random_, inputs_.weight());
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(Session& session) {
  const int64_t rows = std::max({kBatchRows, kMicroRows, kHeldOutRows});
  auto head = TrainableHead::Create(*session.client, rows, kSequences);
  if (!head.ok()) return head.status();
  std::unique_ptr<Trainer> trainer(new Trainer(session, *std::move(head)));
  std::fill_n(trainer->head_->grad_weight(), kHeadFloats, 0.0f);
  for (const absl::Status& pushed :
       {trainer->inputs_.PushWeight(), trainer->head_->PushGradWeight()}) {
    if (!pushed.ok()) return pushed;
  }
  return trainer;
}

void Trainer::LoadPositions(const int64_t* positions, int64_t rows) {
  contexts_.resize(rows * kContext);
  for (int64_t n = 0; n < rows; ++n) {
    std::memcpy(&contexts_[n * kContext], &session_.corpus.pieces[positions[n] - kContext],
                kContext * sizeof(int32_t));
    inputs_.target()[n] = session_.corpus.pieces[positions[n]];
  }
  Forward(body_.data(), contexts_.data(), rows, &activations_, inputs_.hidden());
}

absl::Status Trainer::Update(double learning_rate) {
  if (absl::Status pulled = head_->PullGradWeight(); !pulled.ok()) return pulled;
  body_adam_->Step(learning_rate, body_.data(), grad_body_.data());
  head_adam_->Step(learning_rate, inputs_.weight(), head_->grad_weight());
  if (absl::Status pushed = inputs_.PushWeight(); !pushed.ok()) return pushed;
  return head_->PushGradWeight();
}

absl::StatusOr<double> Trainer::LearnText(double learning_rate) {
  constexpr int64_t kRows = kMicroBatches * kMicroRows;
  if (next_ + kRows > order_.size()) {
    for (size_t i = order_.size() - 1; i > 0; --i) {
      std::swap(order_[i], order_[random_.Below(static_cast<int64_t>(i) + 1)]);
    }
    next_ = 0;
  }
  double sum = 0;
  for (int64_t micro = 0; micro < kMicroBatches; ++micro, next_ += kMicroRows) {
    LoadPositions(&order_[next_], kMicroRows);
    const auto loss = head_->CrossEntropy(kMicroRows, kRows, /*learn=*/true);
    if (!loss.ok()) return loss.status();
    sum += *loss;
    Backward(body_.data(), contexts_.data(), kMicroRows, activations_, head_->grad_hidden(),
             grad_body_.data());
  }
  if (absl::Status updated = Update(learning_rate); !updated.ok()) return updated;
  return sum / kRows;
}

absl::StatusOr<double> Trainer::HeldOutLoss() {
  const std::vector<int64_t>& positions = session_.corpus.held_out;
  const auto rows = static_cast<int64_t>(positions.size());
  LoadPositions(positions.data(), rows);
  const auto loss = head_->CrossEntropy(rows, 1, /*learn=*/false);
  if (!loss.ok()) return loss.status();
  return *loss / static_cast<double>(rows);
}

absl::Status Trainer::BeginPolicy() {
  reference_body_ = body_;
  auto reference = RemoteHead::Create(*session_.client, kBatchRows);
  if (!reference.ok()) return reference.status();
  reference_head_ = *std::move(reference);
  std::memcpy(reference_head_->weight(), inputs_.weight(), kHeadFloats * sizeof(float));
  // Its moments speak of another loss.
  body_adam_ = std::make_unique<Adam>(kBodyFloats);
  head_adam_ = std::make_unique<Adam>(kHeadFloats);
  return reference_head_->PushWeight();
}

void Trainer::Publish() {
  std::memcpy(session_.exchange->body, body_.data(), sizeof(session_.exchange->body));
  std::memcpy(session_.exchange->head, inputs_.weight(), sizeof(session_.exchange->head));
}

absl::Status Trainer::ReferenceLogprob() {
  Forward(reference_body_.data(), contexts_.data(), kBatchRows, &activations_,
          reference_head_->hidden());
  std::memcpy(reference_head_->target(), inputs_.target(), kBatchRows * sizeof(int32_t));
  if (absl::Status scored = reference_head_->Logprob(kBatchRows); !scored.ok()) return scored;
  std::memcpy(head_->reference_logprob(), reference_head_->logprob(), kBatchRows * sizeof(float));
  return absl::OkStatus();
}

void Trainer::CheckRatios(BatchFigures* figures) {
  for (int64_t row = 0; row < kBatchRows; ++row) {
    const float ratio = head_->ratio()[row];
    if (std::bit_cast<uint32_t>(ratio) == std::bit_cast<uint32_t>(1.0f)) continue;
    if (figures->ratios_not_one++ > 0) continue;
    figures->first_not_one =
        absl::StrFormat("row %d: ratio %.9g, log-probability %.9g at the rollout, %.9g here", row,
                        ratio, head_->old_logprob()[row], head_->logprob()[row]);
  }
}

absl::StatusOr<BatchFigures> Trainer::LearnPolicy(uint64_t seed, double learning_rate) {
  Publish();
  absl::Status sent = session_.channel->Send({.kind = MessageKind::kSample, .number = seed});
  if (!sent.ok()) return sent;
  const auto batch = session_.channel->Receive(MessageKind::kBatch);
  if (!batch.ok()) return batch.status();

  const Exchange& exchange = *session_.exchange;
  BatchFigures figures;
  for (const float reward : exchange.reward) figures.reward += reward / kSequences;
  GroupAdvantages(exchange.reward, kSequences, kGroup, head_->advantage());
  contexts_.resize(kBatchRows * kContext);
  RowsOfBatch(exchange.pieces, contexts_.data(), inputs_.target());
  std::memcpy(head_->old_logprob(), exchange.logprob, sizeof(exchange.logprob));
  if (absl::Status scored = ReferenceLogprob(); !scored.ok()) return scored;

  for (int update = 0; update < kUpdatesPerBatch; ++update) {
    Forward(body_.data(), contexts_.data(), kBatchRows, &activations_, inputs_.hidden());
    const auto policy = head_->PolicyLoss(kSequences, kLength);
    if (!policy.ok()) return policy.status();
    if (update == 0) CheckRatios(&figures);
    figures.kl = policy->kl;
    figures.clipped = policy->clipped;
    Backward(body_.data(), contexts_.data(), kBatchRows, activations_, head_->grad_hidden(),
             grad_body_.data());
    if (absl::Status updated = Update(learning_rate); !updated.ok()) return updated;
  }
  return figures;
}

absl::StatusOr<std::string> Trainer::Show() {
  Publish();
  absl::Status sent = session_.channel->Send(
      {.kind = MessageKind::kShow, .number = static_cast<uint64_t>(session_.options.seed)});
  if (!sent.ok()) return sent;
  const auto text = session_.channel->Receive(MessageKind::kText);
  if (!text.ok()) return text.status();
  return text->text;
}

}  // namespace lossd::demo
