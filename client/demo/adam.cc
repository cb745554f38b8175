#include "client/demo/adam.h"

#include <cmath>

namespace lossd::demo {
namespace {

constexpr float kBeta1 = 0.9f;
constexpr float kBeta2 = 0.99f;
constexpr float kEpsilon = 1e-8f;

}  // namespace

void Adam::Step(double learning_rate, float* parameters, float* gradient) {
  ++steps_;
  const double correction1 = 1 - std::pow(kBeta1, steps_);
  const double correction2 = 1 - std::pow(kBeta2, steps_);
  const auto rate = static_cast<float>(learning_rate / correction1);
  const auto scale = static_cast<float>(1 / std::sqrt(correction2));
  float* mean = mean_.data();
  float* square = square_.data();
  for (size_t i = 0; i < mean_.size(); ++i) {
    mean[i] += (1 - kBeta1) * (gradient[i] - mean[i]);
    square[i] += (1 - kBeta2) * (gradient[i] * gradient[i] - square[i]);
    parameters[i] -= rate * mean[i] / (std::sqrt(square[i]) * scale + kEpsilon);
    gradient[i] = 0;
  }
}

}  // namespace lossd::demo
