// The trainer's model and its two kinds of steps. Progress and verdict: run_trainer.cc.
#ifndef LOSSD_CLIENT_DEMO_TRAINER_H_
#define LOSSD_CLIENT_DEMO_TRAINER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/demo/adam.h"
#include "client/demo/model.h"
#include "client/demo/remote_head.h"
#include "client/demo/session.h"

namespace lossd::demo {

struct BatchFigures {
  double reward = 0;   // mean of the batch
  double kl = 0;       // of the last update, nats a token
  double clipped = 0;  // share of tokens of the last update
  // Of the first update: how many ratios have other bits than 1.0f, and the first of them in words.
  int64_t ratios_not_one = 0;
  std::string first_not_one;
};

class Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(Session& session);

  // Phase 1: one step on the next rows of a shuffled text. Returns its mean loss in nats.
  absl::StatusOr<double> LearnText(double learning_rate);
  absl::StatusOr<double> HeldOutLoss();

  // Makes the present weights the reference of phase 2.
  absl::Status BeginPolicy();
  // One batch of the rollout, kUpdatesPerBatch updates on it.
  absl::StatusOr<BatchFigures> LearnPolicy(uint64_t seed, double learning_rate);

  // Continuations of the shown prompts from the present weights.
  absl::StatusOr<std::string> Show();

 private:
  Trainer(Session& session, std::unique_ptr<TrainableHead> head);
  // Rows of the head's inputs from positions in the text, or from contexts that are in place.
  void LoadPositions(const int64_t* positions, int64_t rows);
  absl::Status ReferenceLogprob();
  void CheckRatios(BatchFigures* figures);
  absl::Status Update(double learning_rate);
  void Publish();

  Session& session_;
  const std::unique_ptr<TrainableHead> head_;
  RemoteHead& inputs_;
  std::vector<float> body_ = std::vector<float>(kBodyFloats);
  std::vector<float> grad_body_ = std::vector<float>(kBodyFloats);
  std::vector<float> reference_body_;
  std::unique_ptr<RemoteHead> reference_head_;
  Activations activations_;
  std::vector<int32_t> contexts_;
  std::unique_ptr<Adam> body_adam_ = std::make_unique<Adam>(kBodyFloats);
  std::unique_ptr<Adam> head_adam_ = std::make_unique<Adam>(kHeadFloats);
  Random random_;
  std::vector<int64_t> order_;  // shuffled positions that are learnt
  size_t next_ = 0;
};

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_TRAINER_H_
