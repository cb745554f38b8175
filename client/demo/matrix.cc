#include "client/demo/matrix.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

namespace lossd::demo {
namespace {

constexpr int64_t kPanel = 16;  // columns of a tile: two 32-byte vectors
constexpr int64_t kTileRows = 6;
// Below this a thread costs more than it brings (it takes about 30 us to start one).
constexpr int64_t kFlopsPerThread = 4'000'000;

typedef float Vector __attribute__((vector_size(32)));

// Memory need not be aligned. Vectors travel by reference, since their calling convention depends on the target.
inline __attribute__((always_inline)) void Load(const float* from, Vector& to) {
  std::memcpy(&to, from, sizeof(to));
}

// The columns of one panel for all rows. A short last tile repeats its last row and throws the copies away, so that every row goes
// through the same instructions.
inline __attribute__((always_inline)) void PanelBody(const float* a, const float* packed, float* c,
                                                     int64_t rows, int64_t inner, int64_t columns,
                                                     bool accumulate) {
  for (int64_t first = 0; first < rows; first += kTileRows) {
    const float* source[kTileRows];
    for (int64_t r = 0; r < kTileRows; ++r) source[r] = a + std::min(first + r, rows - 1) * inner;
    Vector sum[kTileRows][2] = {};
    for (int64_t k = 0; k < inner; ++k) {
      Vector b0, b1;
      Load(packed + k * kPanel, b0);
      Load(packed + k * kPanel + 8, b1);
      for (int64_t r = 0; r < kTileRows; ++r) {
        sum[r][0] += source[r][k] * b0;
        sum[r][1] += source[r][k] * b1;
      }
    }
    for (int64_t r = 0; r < kTileRows && first + r < rows; ++r) {
      float* to = c + (first + r) * columns;
      Vector before[2] = {};
      if (accumulate) {
        Load(to, before[0]);
        Load(to + 8, before[1]);
      }
      before[0] += sum[r][0];
      before[1] += sum[r][1];
      std::memcpy(to, before, sizeof(before));
    }
  }
}

using PanelFunction = void (*)(const float*, const float*, float*, int64_t, int64_t, int64_t, bool);

void PanelPlain(const float* a, const float* packed, float* c, int64_t rows, int64_t inner,
                int64_t columns, bool accumulate) {
  PanelBody(a, packed, c, rows, inner, columns, accumulate);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void PanelAvx2(const float* a, const float* packed, float* c,
                                                   int64_t rows, int64_t inner, int64_t columns,
                                                   bool accumulate) {
  PanelBody(a, packed, c, rows, inner, columns, accumulate);
}
#endif

PanelFunction ChoosePanel() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return PanelAvx2;
#endif
  return PanelPlain;
}

}  // namespace

void Multiply(const float* a, const float* b, float* c, int64_t rows, int64_t inner,
              int64_t columns, bool accumulate) {
  const PanelFunction panel = ChoosePanel();
  auto work = [=](int64_t first_panel, int64_t step) {
    std::vector<float> packed(inner * kPanel);
    for (int64_t column = first_panel * kPanel; column < columns; column += step * kPanel) {
      for (int64_t k = 0; k < inner; ++k) {
        std::memcpy(&packed[k * kPanel], b + k * columns + column, kPanel * sizeof(float));
      }
      panel(a, packed.data(), c + column, rows, inner, columns, accumulate);
    }
  };
  const int64_t useful = 2 * rows * inner * columns / kFlopsPerThread;
  const int64_t cores = std::min<int64_t>(std::thread::hardware_concurrency(), 8);
  const int64_t threads = std::max<int64_t>(1, std::min({cores, useful, columns / kPanel}));
  std::vector<std::thread> others;
  for (int64_t t = 1; t < threads; ++t) others.emplace_back(work, t, threads);
  work(0, threads);
  for (std::thread& other : others) other.join();
}

void Transpose(const float* from, float* to, int64_t rows, int64_t columns) {
  constexpr int64_t kBlock = 16;  // a cache line of floats
  for (int64_t r0 = 0; r0 < rows; r0 += kBlock) {
    for (int64_t c0 = 0; c0 < columns; c0 += kBlock) {
      for (int64_t r = r0; r < std::min(r0 + kBlock, rows); ++r) {
        for (int64_t c = c0; c < std::min(c0 + kBlock, columns); ++c) {
          to[c * rows + r] = from[r * columns + c];
        }
      }
    }
  }
}

}  // namespace lossd::demo
