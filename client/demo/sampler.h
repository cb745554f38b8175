// Draws continuations from the model, with logits computed here.
#ifndef LOSSD_CLIENT_DEMO_SAMPLER_H_
#define LOSSD_CLIENT_DEMO_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "client/demo/model.h"
#include "client/demo/random.h"

namespace lossd::demo {

class Sampler {
 public:
  // Weights to sample from: body [kBodyFloats], borrowed, and head [V, H], copied.
  void SetWeights(const float* body, const float* head);

  // pieces: [sequences, kContext + length]; the first kContext of each are the prompt, the others are filled in, drawn at
  // `temperature`. hidden, if not null: [sequences * length, H], the states that the pieces were drawn from.
  void Continue(Random& random, double temperature, int64_t sequences, int64_t length,
                int32_t* pieces, float* hidden);

 private:
  int32_t Draw(const float* logits, double temperature, Random& random);

  const float* body_ = nullptr;
  std::vector<float> head_transposed_;  // [H, V]
  Activations activations_;
  std::vector<float> weights_ = std::vector<float>(kVocab);
};

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_SAMPLER_H_
