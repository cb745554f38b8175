// Adam (Kingma and Ba 2015) over one array of parameters.
#ifndef LOSSD_CLIENT_DEMO_ADAM_H_
#define LOSSD_CLIENT_DEMO_ADAM_H_

#include <cstdint>
#include <vector>

namespace lossd::demo {

class Adam {
 public:
  explicit Adam(int64_t size) : mean_(size), square_(size) {}

  // One step against the gradient, which is set to 0 for the next one.
  void Step(double learning_rate, float* parameters, float* gradient);

 private:
  std::vector<float> mean_;
  std::vector<float> square_;
  int64_t steps_ = 0;
};

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_ADAM_H_
