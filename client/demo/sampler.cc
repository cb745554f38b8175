#include "client/demo/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "client/demo/matrix.h"

namespace lossd::demo {

void Sampler::SetWeights(const float* body, const float* head) {
  body_ = body;
  head_transposed_.resize(kHeadFloats);
  Transpose(head, head_transposed_.data(), kVocab, kHidden);
}

int32_t Sampler::Draw(const float* logits, double temperature, Random& random) {
  const float largest = *std::max_element(logits, logits + kVocab);
  const auto inverse = static_cast<float>(1 / temperature);
  double sum = 0;
  for (int64_t v = 0; v < kVocab; ++v) {
    weights_[v] = std::exp((logits[v] - largest) * inverse);
    sum += weights_[v];
  }
  double left = random.Uniform() * sum;
  for (int64_t v = 0; v < kVocab; ++v) {
    left -= weights_[v];
    if (left < 0) return static_cast<int32_t>(v);
  }
  return static_cast<int32_t>(std::max_element(logits, logits + kVocab) - logits);
}

void Sampler::Continue(Random& random, double temperature, int64_t sequences, int64_t length,
                       int32_t* pieces, float* hidden) {
  const int64_t stride = kContext + length;
  std::vector<int32_t> contexts(sequences * kContext);
  std::vector<float> states(sequences * kHidden), logits(sequences * kVocab);
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t b = 0; b < sequences; ++b) {
      std::memcpy(&contexts[b * kContext], pieces + b * stride + t, kContext * sizeof(int32_t));
    }
    Forward(body_, contexts.data(), sequences, &activations_, states.data());
    Multiply(states.data(), head_transposed_.data(), logits.data(), sequences, kHidden, kVocab);
    for (int64_t b = 0; b < sequences; ++b) {
      pieces[b * stride + kContext + t] = Draw(&logits[b * kVocab], temperature, random);
      if (hidden == nullptr) continue;
      std::memcpy(hidden + (b * length + t) * kHidden, &states[b * kHidden],
                  kHidden * sizeof(float));
    }
  }
}

}  // namespace lossd::demo
