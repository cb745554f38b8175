// The rollout process: samples continuations, rewards them, and asks lossd for their log-probabilities.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/demo/model.h"
#include "client/demo/random.h"
#include "client/demo/remote_head.h"
#include "client/demo/reward.h"
#include "client/demo/sampler.h"
#include "client/demo/session.h"

namespace lossd::demo {
namespace {

// Rows of one call for log-probabilities: the sequences of one prompt. The trainer asks for all prompts at once, so that equal bits are
// not a matter of equal calls.
constexpr int64_t kRowsPerCall = kGroup * kLength;
constexpr int64_t kShownLength = 32;  // pieces
// Cooler than training's 1: what the model finds likely, not its slips.
constexpr double kShownTemperature = 0.5;

class Rollout {
 public:
  Rollout(Session& session, std::unique_ptr<RemoteHead> head)
      : session_(session), head_(std::move(head)), reward_(session.corpus.text) {}

  absl::Status SampleBatch(uint64_t seed) {
    Exchange& exchange = *session_.exchange;
    const Corpus& corpus = session_.corpus;
    Random random(seed);
    for (int64_t p = 0; p < kPrompts; ++p) {
      const int64_t end = corpus.learnt[random.Below(static_cast<int64_t>(corpus.learnt.size()))];
      for (int64_t g = 0; g < kGroup; ++g) {
        std::memcpy(exchange.pieces + (p * kGroup + g) * kSequencePieces,
                    &corpus.pieces[end - kContext], kContext * sizeof(int32_t));
      }
    }
    sampler_.SetWeights(exchange.body, exchange.head);
    sampler_.Continue(random, 1, kSequences, kLength, exchange.pieces, hidden_.data());
    for (int64_t b = 0; b < kSequences; ++b) {
      exchange.reward[b] = reward_(
          corpus.vocabulary.Decode(exchange.pieces + b * kSequencePieces + kContext, kLength));
    }
    return Score();
  }

  std::string Show(uint64_t seed) {
    sampler_.SetWeights(session_.exchange->body, session_.exchange->head);
    Random random(seed);
    const WordPieces& vocabulary = session_.corpus.vocabulary;
    std::string shown;
    for (const std::string prompt : kShownPrompts) {
      std::vector<int32_t> pieces = vocabulary.Encode(prompt);
      if (static_cast<int64_t>(pieces.size()) < kContext) {
        // Before the prompt: ends of paragraphs, which say that nothing came before.
        pieces.insert(pieces.begin(), kContext - pieces.size(), pieces.front());
      }
      pieces.erase(pieces.begin(), pieces.end() - kContext);
      pieces.resize(kContext + kShownLength);
      sampler_.Continue(random, kShownTemperature, 1, kShownLength, pieces.data(), nullptr);
      std::string continuation = vocabulary.Decode(&pieces[kContext], kShownLength);
      for (char& c : continuation) c = c == '\n' ? ' ' : c;
      absl::StrAppend(&shown, "   ", prompt.substr(1), " |", continuation, "\n");
    }
    return shown;
  }

 private:
  absl::Status Score() {
    Exchange& exchange = *session_.exchange;
    std::memcpy(head_->weight(), exchange.head, sizeof(exchange.head));
    if (absl::Status pushed = head_->PushWeight(); !pushed.ok()) return pushed;
    std::vector<int32_t> contexts(kBatchRows * kContext), targets(kBatchRows);
    RowsOfBatch(exchange.pieces, contexts.data(), targets.data());
    for (int64_t first = 0; first < kBatchRows; first += kRowsPerCall) {
      std::memcpy(head_->hidden(), &hidden_[first * kHidden],
                  kRowsPerCall * kHidden * sizeof(float));
      std::memcpy(head_->target(), &targets[first], kRowsPerCall * sizeof(int32_t));
      if (absl::Status scored = head_->Logprob(kRowsPerCall); !scored.ok()) return scored;
      std::memcpy(exchange.logprob + first, head_->logprob(), kRowsPerCall * sizeof(float));
    }
    return absl::OkStatus();
  }

  Session& session_;
  const std::unique_ptr<RemoteHead> head_;
  const Reward reward_;
  Sampler sampler_;
  std::vector<float> hidden_ = std::vector<float>(
      kBatchRows * kHidden);  // [kBatchRows, H], as they were when the pieces were drawn
};

}  // namespace

absl::Status RunRollout(Session& session) {
  auto head = RemoteHead::Create(*session.client, kRowsPerCall);
  if (!head.ok()) return head.status();
  Rollout rollout(session, *std::move(head));
  for (;;) {
    const auto message = session.channel->Receive();
    if (!message.ok()) return message.status();
    Message answer;
    switch (message->kind) {
      case MessageKind::kSample:
        if (absl::Status done = rollout.SampleBatch(message->number); !done.ok()) return done;
        answer.kind = MessageKind::kBatch;
        break;
      case MessageKind::kShow:
        answer = {.kind = MessageKind::kText, .text = rollout.Show(message->number)};
        break;
      case MessageKind::kEnd:
        return absl::OkStatus();
      default:
        return absl::InternalError("channel: must bring kSample, kShow or kEnd");
    }
    if (absl::Status sent = session.channel->Send(answer); !sent.ok()) return sent;
  }
}

}  // namespace lossd::demo
