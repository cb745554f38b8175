#include "client/demo/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "client/demo/matrix.h"

namespace lossd::demo {
namespace {

constexpr float kEpsilon = 1e-6f;

void FillNormal(Random& random, double deviation, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(deviation * random.Normal());
}

float Sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

void InitializeBody(Random& random, float* body) {
  FillNormal(random, 0.5, kEmbeddingFloats, body);
  FillNormal(random, 1 / std::sqrt(kInput), kInFloats, body + kEmbeddingFloats);
  FillNormal(random, 1 / std::sqrt(kInner), kOutFloats, body + kEmbeddingFloats + kInFloats);
}

void InitializeHead(Random& random, float* head) { FillNormal(random, 0.02, kHeadFloats, head); }

void Forward(const float* body, const int32_t* contexts, int64_t rows, Activations* activations,
             float* hidden) {
  const float* embedding = body;
  const float* in = body + kEmbeddingFloats;
  const float* out = in + kInFloats;
  Activations& act = *activations;
  act.input.resize(rows * kInput);
  act.gate_up.resize(rows * 2 * kInner);
  act.inner.resize(rows * kInner);
  act.output.resize(rows * kHidden);
  act.inverse_rms.resize(rows);

  for (int64_t i = 0; i < rows * kContext; ++i) {
    std::memcpy(&act.input[i * kEmbedding], embedding + contexts[i] * kEmbedding,
                kEmbedding * sizeof(float));
  }
  Multiply(act.input.data(), in, act.gate_up.data(), rows, kInput, 2 * kInner);
  for (int64_t n = 0; n < rows; ++n) {
    const float* gate = &act.gate_up[n * 2 * kInner];
    const float* up = gate + kInner;
    for (int64_t f = 0; f < kInner; ++f) {
      act.inner[n * kInner + f] = gate[f] * Sigmoid(gate[f]) * up[f];
    }
  }
  Multiply(act.inner.data(), out, act.output.data(), rows, kInner, kHidden);
  for (int64_t n = 0; n < rows; ++n) {
    const float* y = &act.output[n * kHidden];
    float squares = 0;
    for (int64_t h = 0; h < kHidden; ++h) squares += y[h] * y[h];
    const float inverse = 1 / std::sqrt(squares / kHidden + kEpsilon);
    act.inverse_rms[n] = inverse;
    for (int64_t h = 0; h < kHidden; ++h) hidden[n * kHidden + h] = y[h] * inverse;
  }
}

void Backward(const float* body, const int32_t* contexts, int64_t rows,
              const Activations& activations, const float* grad_hidden, float* grad_body) {
  const float* in = body + kEmbeddingFloats;
  const float* out = in + kInFloats;
  float* grad_embedding = grad_body;
  float* grad_in = grad_body + kEmbeddingFloats;
  float* grad_out = grad_in + kInFloats;

  std::vector<float> grad_output(rows * kHidden);
  for (int64_t n = 0; n < rows; ++n) {
    const float* y = &activations.output[n * kHidden];
    const float* upstream = grad_hidden + n * kHidden;
    const float inverse = activations.inverse_rms[n];
    float dot = 0;
    for (int64_t h = 0; h < kHidden; ++h) dot += upstream[h] * y[h];
    const float along = dot * inverse * inverse / kHidden;
    for (int64_t h = 0; h < kHidden; ++h) {
      grad_output[n * kHidden + h] = inverse * (upstream[h] - along * y[h]);
    }
  }

  std::vector<float> transposed(std::max(rows * kInput, kInFloats));
  Transpose(activations.inner.data(), transposed.data(), rows, kInner);
  Multiply(transposed.data(), grad_output.data(), grad_out, kInner, rows, kHidden, true);
  std::vector<float> grad_inner(rows * kInner);
  Transpose(out, transposed.data(), kInner, kHidden);
  Multiply(grad_output.data(), transposed.data(), grad_inner.data(), rows, kHidden, kInner);

  std::vector<float> grad_gate_up(rows * 2 * kInner);
  for (int64_t n = 0; n < rows; ++n) {
    const float* gate = &activations.gate_up[n * 2 * kInner];
    const float* up = gate + kInner;
    for (int64_t f = 0; f < kInner; ++f) {
      const float upstream = grad_inner[n * kInner + f];
      const float sigmoid = Sigmoid(gate[f]);
      float* to = &grad_gate_up[n * 2 * kInner + f];
      to[0] = upstream * up[f] * sigmoid * (1 + gate[f] * (1 - sigmoid));
      to[kInner] = upstream * gate[f] * sigmoid;
    }
  }

  Transpose(activations.input.data(), transposed.data(), rows, kInput);
  Multiply(transposed.data(), grad_gate_up.data(), grad_in, kInput, rows, 2 * kInner, true);
  std::vector<float> grad_input(rows * kInput);
  Transpose(in, transposed.data(), kInput, 2 * kInner);
  Multiply(grad_gate_up.data(), transposed.data(), grad_input.data(), rows, 2 * kInner, kInput);
  for (int64_t i = 0; i < rows * kContext; ++i) {
    float* to = grad_embedding + contexts[i] * kEmbedding;
    for (int64_t e = 0; e < kEmbedding; ++e) to[e] += grad_input[i * kEmbedding + e];
  }
}

}  // namespace lossd::demo
