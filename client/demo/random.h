// A small generator with the same numbers everywhere: the standard library's distributions are free to differ.
#ifndef LOSSD_CLIENT_DEMO_RANDOM_H_
#define LOSSD_CLIENT_DEMO_RANDOM_H_

#include <cmath>
#include <cstdint>

namespace lossd::demo {

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t x = state_ += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
  }
  // In [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  // In [0, below).
  int64_t Below(int64_t below) {
    return static_cast<int64_t>(Uniform() * static_cast<double>(below));
  }
  // Box and Muller's sine branch is dropped: one number a call, no state.
  double Normal() {
    const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
    return radius * std::cos(6.283185307179586 * Uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_RANDOM_H_
