// The trainer process from start to verdict, and everything that the demo says.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <deque>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "client/demo/reward.h"
#include "client/demo/session.h"
#include "client/demo/trainer.h"

namespace lossd::demo {
namespace {

constexpr double kTextLearningRate = 8e-3;
constexpr double kPolicyLearningRate = 2e-3;
// Adam's first steps have full length whatever the gradient: they are shortened.
constexpr int64_t kPolicyWarmUp = 5;
// The reward at the end is the mean of so many batches.
constexpr size_t kRewardBatches = 5;

struct Verdict {
  double loss_before = 0, loss_after = 0;
  double reward_before = 0, reward_after = 0;
  int64_t batches = 0, exact_batches = 0;
};

// Falls along a half cosine to a tenth.
double TextLearningRate(int64_t step, int64_t steps) {
  const double part = static_cast<double>(step) / static_cast<double>(steps);
  return kTextLearningRate * (0.1 + 0.45 * (1 + std::cos(3.141592653589793 * part)));
}

// Whether a line is due: about ten in all, and the first and last.
bool IsShown(int64_t step, int64_t steps) {
  return step == 1 || step == steps || step * 10 / steps != (step - 1) * 10 / steps;
}

void Introduce(const Session& session) {
  const v1::ServerInfo server = session.client->server_info();
  absl::PrintF("server   lossd, process %d, backend %s\n", server.pid(), server.backend());
  absl::PrintF("text     %d licence texts, %d characters, %d pieces of a vocabulary of %d\n",
               session.corpus.files, session.corpus.text.size(), session.corpus.pieces.size(),
               kVocab);
  absl::PrintF(
      "model    the next piece from the last %d; %d parameters here, %d in the head (V %d x H %d)"
      " evaluated by the server\n",
      kContext, kBodyFloats, kHeadFloats, kVocab, kHidden);
}

absl::Status LearnText(Trainer& trainer, int64_t steps, Verdict* verdict) {
  absl::PrintF("\n1. The trainer learns the text: LinearCrossEntropy, %d calls of %d rows a step\n",
               kMicroBatches, kMicroRows);
  auto held_out = trainer.HeldOutLoss();
  if (!held_out.ok()) return held_out.status();
  verdict->loss_before = *held_out;
  double sum = 0;
  int64_t count = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    const auto loss = trainer.LearnText(TextLearningRate(step - 1, steps));
    if (!loss.ok()) return loss.status();
    sum += *loss;
    ++count;
    if (!IsShown(step, steps)) continue;
    absl::PrintF("   step %4d   loss %.3f\n", step, sum / static_cast<double>(count));
    sum = 0;
    count = 0;
  }
  held_out = trainer.HeldOutLoss();
  if (!held_out.ok()) return held_out.status();
  verdict->loss_after = *held_out;
  absl::PrintF("   on text that was held out: %.3f -> %.3f\n", verdict->loss_before,
               verdict->loss_after);
  return absl::OkStatus();
}

absl::Status LearnPolicy(Trainer& trainer, const Options& options, Verdict* verdict) {
  absl::PrintF("\n2. Reward: %s.\n", kRewardInWords);
  absl::PrintF(
      "   The rollout continues %d prompts %d times by %d pieces; LinearPolicyLoss (PPO, group"
      " advantages,\n   clip %g/%g, K3 to the model of phase 1), %d updates a batch\n",
      kPrompts, kGroup, kLength, kClipLow, kClipHigh, kUpdatesPerBatch);
  if (absl::Status begun = trainer.BeginPolicy(); !begun.ok()) return begun;
  std::deque<double> rewards;
  Random seeds(static_cast<uint64_t>(options.seed) ^ 0x70726f6d70747321u);
  for (int64_t batch = 1; batch <= options.batches; ++batch) {
    const double warm_up = std::min(1.0, static_cast<double>(batch) / kPolicyWarmUp);
    const auto figures = trainer.LearnPolicy(seeds.Next(), kPolicyLearningRate * warm_up);
    if (!figures.ok()) return figures.status();
    const bool exact = figures->ratios_not_one == 0;
    ++verdict->batches;
    verdict->exact_batches += exact;
    if (batch == 1) verdict->reward_before = figures->reward;
    rewards.push_back(figures->reward);
    if (rewards.size() > kRewardBatches) rewards.pop_front();
    if (exact && !IsShown(batch, options.batches)) continue;
    absl::PrintF(
        "   batch %3d   reward %.3f   KL %.3f   clipped %4.1f %%   first ratio exactly 1: %s\n",
        batch, figures->reward, figures->kl, 100 * figures->clipped, exact ? "yes" : "NO");
    if (exact) continue;
    absl::PrintF("      %d of %d tokens differ; %s\n", figures->ratios_not_one, kBatchRows,
                 figures->first_not_one);
  }
  verdict->reward_after =
      std::accumulate(rewards.begin(), rewards.end(), 0.0) / static_cast<double>(rewards.size());
  return absl::OkStatus();
}

double SecondsSince(int64_t began_ns) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec * 1'000'000'000 + now.tv_nsec - began_ns) * 1e-9;
}

// What was promised and not kept.
std::vector<std::string> BrokenPromises(const Verdict& verdict) {
  std::vector<std::string> broken;
  // Written so that a NaN is a failure.
  if (!(verdict.loss_before - verdict.loss_after >= kLeastLossFall)) {
    broken.push_back(absl::StrFormat("loss: must fall by at least %g, fell by %.3f", kLeastLossFall,
                                     verdict.loss_before - verdict.loss_after));
  }
  if (!(verdict.reward_after - verdict.reward_before >= kLeastRewardRise)) {
    broken.push_back(absl::StrFormat("reward: must rise by at least %g, rose by %.3f",
                                     kLeastRewardRise,
                                     verdict.reward_after - verdict.reward_before));
  }
  if (verdict.exact_batches != verdict.batches) {
    broken.push_back(absl::StrFormat("first ratio: must be exactly 1 in all %d batches, is in %d",
                                     verdict.batches, verdict.exact_batches));
  }
  return broken;
}

}  // namespace

absl::StatusOr<bool> RunTrainer(Session& session) {
  auto trainer = Trainer::Create(session);
  if (!trainer.ok()) return trainer.status();
  Introduce(session);
  Verdict verdict;
  absl::Status done = LearnText(**trainer, session.options.steps, &verdict);
  if (!done.ok()) return done;
  const auto before = (*trainer)->Show();
  if (!before.ok()) return before.status();
  done = LearnPolicy(**trainer, session.options, &verdict);
  if (!done.ok()) return done;
  const auto after = (*trainer)->Show();
  if (!after.ok()) return after.status();
  done = session.channel->Send({.kind = MessageKind::kEnd});
  if (!done.ok()) return done;

  absl::PrintF("\n   before phase 2:\n%s   after:\n%s", *before, *after);
  const std::vector<std::string> broken = BrokenPromises(verdict);
  for (const std::string& promise : broken) absl::PrintF("\nFAILED   %s\n", promise);
  absl::PrintF(
      "\ndemo: loss %.2f -> %.2f, reward %.2f -> %.2f, first ratio exactly 1 in %d of %d batches, "
      "%.0f s, backend %s\n",
      verdict.loss_before, verdict.loss_after, verdict.reward_before, verdict.reward_after,
      verdict.exact_batches, verdict.batches, SecondsSince(session.options.began_ns),
      session.client->server_info().backend());
  return broken.empty();
}

}  // namespace lossd::demo
