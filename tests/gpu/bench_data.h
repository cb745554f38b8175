// Trained-like data of any size: Zipf(1.1) targets, weight N(0, 0.02^2), hidden = s w_y / |w_y| + N(0, 1).
#ifndef LOSSD_TESTS_GPU_BENCH_DATA_H_
#define LOSSD_TESTS_GPU_BENCH_DATA_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace lossd {

inline uint16_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float FromBf16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

// f(i) for i in [0, count), on all cores.
template <class F>
void InParallel(int64_t count, F f) {
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([=] {
      for (int64_t i = t; i < count; i += threads) f(i);
    });
  }
  for (std::thread& thread : pool) thread.join();
}

struct BenchData {
  int64_t rows, hidden_size, vocab;
  std::vector<uint16_t> hidden, weight;
  std::vector<int32_t> target;

  BenchData(int64_t n, int64_t h, int64_t v, double s)
      : rows(n), hidden_size(h), vocab(v), hidden(n * h), weight(v * h), target(n) {
    InParallel(vocab, [this](int64_t j) {
      std::mt19937 random(static_cast<unsigned>(2 * j + 1));
      std::normal_distribution<float> normal(0, 0.02f);
      for (int64_t k = 0; k < hidden_size; ++k)
        weight[j * hidden_size + k] = ToBf16(normal(random));
    });
    std::vector<double> sums(vocab);
    double sum = 0;
    for (int64_t j = 0; j < vocab; ++j) sums[j] = sum += std::pow(j + 1.0, -1.1);
    std::mt19937_64 random(7);
    std::uniform_real_distribution<double> uniform(0, sum);
    for (int32_t& y : target) {
      y = static_cast<int32_t>(std::lower_bound(sums.begin(), sums.end(), uniform(random)) -
                               sums.begin());
    }
    InParallel(rows, [this, s](int64_t i) {
      std::mt19937 generator(static_cast<unsigned>(2 * i + 2));
      std::normal_distribution<float> normal(0, 1);
      const uint16_t* w = &weight[target[i] * hidden_size];
      double norm = 0;
      for (int64_t k = 0; k < hidden_size; ++k) norm += FromBf16(w[k]) * FromBf16(w[k]);
      const auto factor = static_cast<float>(s / std::sqrt(norm));
      for (int64_t k = 0; k < hidden_size; ++k) {
        hidden[i * hidden_size + k] = ToBf16(factor * FromBf16(w[k]) + normal(generator));
      }
    });
  }

  double Logit(int64_t i, int64_t j) const {
    const uint16_t* x = &hidden[i * hidden_size];
    const uint16_t* w = &weight[j * hidden_size];
    // Products of bf16 are exact in fp32 pairs of double sums.
    double sum = 0;
    for (int64_t k = 0; k < hidden_size; ++k) {
      sum += static_cast<double>(FromBf16(x[k])) * FromBf16(w[k]);
    }
    return sum;
  }
};

}  // namespace lossd

#endif  // LOSSD_TESTS_GPU_BENCH_DATA_H_
