// The demo's language model without its head: the last pieces -> a hidden state. Forward and backward by hand.
//
//   x = the embeddings of the context, side by side            [N, kContext * kEmbedding]
//   (g, u) = x W_in ;  a = silu(g) u                           [N, kInner]
//   y = a W_out ;  hidden = y / sqrt(mean y^2 + epsilon)       [N, kHidden]
#ifndef LOSSD_CLIENT_DEMO_MODEL_H_
#define LOSSD_CLIENT_DEMO_MODEL_H_

#include <cstdint>
#include <vector>

#include "client/demo/random.h"
#include "client/demo/shape.h"

namespace lossd::demo {

inline constexpr int64_t kInput = kContext * kEmbedding;
inline constexpr int64_t kEmbeddingFloats = kVocab * kEmbedding;
inline constexpr int64_t kInFloats = kInput * 2 * kInner;
inline constexpr int64_t kOutFloats = kInner * kHidden;
// All parameters of the body in one array, in this order.
inline constexpr int64_t kBodyFloats = kEmbeddingFloats + kInFloats + kOutFloats;
// The head, [V, H]; it is the server's business.
inline constexpr int64_t kHeadFloats = kVocab * kHidden;

// What the backward pass needs of the forward pass, and scratch. Grows to the largest batch.
struct Activations {
  std::vector<float> input;        // x
  std::vector<float> gate_up;      // g in the first half of a row, u in the second
  std::vector<float> inner;        // a
  std::vector<float> output;       // y
  std::vector<float> inverse_rms;  // [N]
};

void InitializeBody(Random& random, float* body);
void InitializeHead(Random& random, float* head);

// contexts: [rows, kContext] pieces, oldest first. hidden: [rows, kHidden]; a row's bits do not depend on the others.
void Forward(const float* body, const int32_t* contexts, int64_t rows, Activations* activations,
             float* hidden);

// Adds the gradient to grad_body [kBodyFloats].
void Backward(const float* body, const int32_t* contexts, int64_t rows,
              const Activations& activations, const float* grad_hidden, float* grad_body);

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_MODEL_H_
