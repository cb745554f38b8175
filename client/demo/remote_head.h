// The head of the model, evaluated by lossd: the three operations that the demo shows.
#ifndef LOSSD_CLIENT_DEMO_REMOTE_HEAD_H_
#define LOSSD_CLIENT_DEMO_REMOTE_HEAD_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "client/demo/shared_tensor.h"

namespace lossd::demo {

// What every call reads: hidden states, the vocabulary matrix and the pieces that came. Fill through data(), then call.
// Each process has its own, in its own session. Must not outlive its client; not thread-safe.
class RemoteHead {
 public:
  // Room for calls of up to `rows` rows.
  static absl::StatusOr<std::unique_ptr<RemoteHead>> Create(Client& client, int64_t rows);

  float* hidden() { return hidden_.data(); }          // [rows, H]
  int32_t* target() { return target_.data(); }        // [rows]
  float* weight() { return weight_.data(); }          // [V, H]
  const float* logprob() { return logprob_.data(); }  // [rows] nats, of the last Logprob
  // To be called after a change of weight().
  absl::Status PushWeight();

  // Log-probability of each target, the same bits whatever other rows are in the call.
  absl::Status Logprob(int64_t rows);

 private:
  friend class TrainableHead;
  explicit RemoteHead(Client& client) : client_(client) {}
  absl::Status PushRows(int64_t rows);
  void Describe(int64_t rows, v1::LinearInput* linear, v1::HeadOptions* head) const;

  Client& client_;
  SharedTensor<float> hidden_, weight_, logprob_;
  SharedTensor<int32_t> target_;
};

// A head with gradients.
class TrainableHead {
 public:
  // Rows of a call, and sequences of a policy call.
  static absl::StatusOr<std::unique_ptr<TrainableHead>> Create(Client& client, int64_t rows,
                                                               int64_t sequences);

  RemoteHead& inputs() { return *inputs_; }
  float* grad_hidden() { return grad_hidden_.data(); }  // [rows, H], overwritten by each call
  float* grad_weight() { return grad_weight_.data(); }  // [V, H], added to by each call
  // To be called after a change of grad_weight() by this process.
  absl::Status PushGradWeight();
  // Where the sum of several calls is wanted by this process.
  absl::Status PullGradWeight();

  // Sum of the rows' losses in nats. With `learn`, the gradients of sum / denominator.
  absl::StatusOr<double> CrossEntropy(int64_t rows, double denominator, bool learn);

  // Inputs of PolicyLoss; rows of sequence b are [b * length, (b + 1) * length).
  float* old_logprob() { return old_logprob_.data(); }              // [rows]
  float* reference_logprob() { return reference_logprob_.data(); }  // [rows]
  float* advantage() { return advantage_.data(); }                  // [sequences]
  const float* ratio() { return ratio_.data(); }                    // [rows], of the last call
  const float* logprob() { return logprob_.data(); }                // [rows] nats, of the last call

  struct PolicyFigures {
    double kl = 0;       // mean over tokens of the K3 estimate, nats
    double clipped = 0;  // share of tokens whose gradient the clip took
  };
  // PPO's clipped loss as GRPO weighs it: mean over sequences of means over their tokens, plus K3 to the reference.
  absl::StatusOr<PolicyFigures> PolicyLoss(int64_t sequences, int64_t length);

 private:
  TrainableHead() = default;
  void Describe(int64_t rows, v1::LinearGradients* gradients) const;

  std::unique_ptr<RemoteHead> inputs_;
  SharedTensor<float> grad_hidden_, grad_weight_;
  SharedTensor<float> old_logprob_, reference_logprob_, advantage_, ratio_, logprob_;
  SharedTensor<int32_t> sequence_starts_;
};

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_REMOTE_HEAD_H_
