// The layers' sweeps of every instruction set against the formulas in double, at widths that end within a vector.
#include "kernels/cpu/layer_sweeps.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/sweeps.h"
#include "kernels/layers/norm.h"
#include "kernels/layers/rope.h"
#include "kernels/layers/softmax.h"

namespace lossd {
namespace {

// Behind the columns lies what must not count.
struct Columns {
  explicit Columns(int64_t count, unsigned seed, float behind = NAN)
      : values((count + kColumnGroup - 1) / kColumnGroup * kColumnGroup, behind) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t j = 0; j < count; ++j) values[j] = normal(random);
  }
  float* data() { return values.data(); }
  float operator[](int64_t j) const { return values[j]; }
  std::vector<float> values;
};

class LayerSweepsTest : public testing::TestWithParam<int64_t> {
 protected:
  template <class F>
  void ForEachSet(const F& f) {
    const LayerSweeps* tables[4];
    const int count = AvailableLayerSweeps(tables, 4);
    ASSERT_GT(count, 0);
    for (int i = 0; i < count; ++i) {
      SCOPED_TRACE(testing::Message() << "set " << i << ", columns " << GetParam());
      f(*tables[i]);
    }
  }
};

TEST_P(LayerSweepsTest, SumsOfARow) {
  const int64_t n = GetParam();
  ForEachSet([n](const LayerSweeps& sweeps) {
    Columns x(n, 1);
    double sum = 0;
    double squares = 0;
    for (int64_t j = 0; j < n; ++j) {
      sum += x[j];
      squares += (x[j] - 0.25) * (x[j] - 0.25);
    }
    EXPECT_NEAR(sweeps.sum(x.data(), n), sum, 1e-5 * n);
    EXPECT_NEAR(sweeps.sum_squares(x.data(), 0.25f, n), squares, 1e-5 * n);
  });
}

TEST_P(LayerSweepsTest, RoundsAsTheConversionsDo) {
  ForEachSet([](const LayerSweeps& sweeps) {
    std::mt19937 random(3);
    for (int round = 0; round < 200; ++round) {
      float x[kColumnGroup];
      float y[kColumnGroup];
      const float zero[kColumnGroup] = {};
      for (const Rounding rounding : {Rounding::kBF16, Rounding::kF16}) {
        for (int j = 0; j < kColumnGroup; ++j) {
          uint32_t bits = random();
          // Half of them in the range of fp16 and below it.
          if (j % 2 == 0) bits = (bits & 0x87ffffffu) | 0x30000000u;
          std::memcpy(&x[j], &bits, 4);
          y[j] = x[j];
        }
        sweeps.add(y, zero, kColumnGroup, rounding);
        for (int j = 0; j < kColumnGroup; ++j) {
          const float want =
              rounding == Rounding::kBF16 ? FromBF16(ToBF16(x[j])) : FromF16(ToF16(x[j]));
          if (std::isnan(x[j])) {
            EXPECT_TRUE(std::isnan(y[j]));
          } else {
            EXPECT_EQ(y[j], want) << x[j];
            const float scalar = rounding == Rounding::kBF16
                                     ? FloatMath::Round<Rounding::kBF16>(x[j])
                                     : FloatMath::Round<Rounding::kF16>(x[j]);
            EXPECT_EQ(scalar, want) << x[j];
          }
        }
      }
    }
  });
}

TEST_P(LayerSweepsTest, Norms) {
  const int64_t n = GetParam();
  ForEachSet([n](const LayerSweeps& sweeps) {
    Columns x(n, 1), d_y(n, 2), weight(n, 3), bias(n, 4), more(n, 5), out(n, 6);
    Columns weight_sums(n, 7), bias_sums(n, 8);
    const Columns old_weight = weight_sums;
    const Columns old_bias = bias_sums;
    NormPiece piece;
    piece.x = x.data();
    piece.d_y = d_y.data();
    piece.weight = weight.data();
    piece.bias = bias.data();
    piece.columns = n;
    piece.mean = 0.3f;
    piece.rstd = 0.7f;
    NormSums sums;
    sums.m = 1;
    sums.m_n = 2;
    sweeps.norm_sums(piece, &sums);
    double m_sum = 1;
    double m_n = 2;
    for (int64_t j = 0; j < n; ++j) {
      m_sum += static_cast<double>(d_y[j]) * weight[j];
      m_n += static_cast<double>(d_y[j]) * weight[j] * (x[j] - 0.3) * 0.7;
    }
    EXPECT_NEAR(sums.m, m_sum, 1e-5 * n);
    EXPECT_NEAR(sums.m_n, m_n, 1e-5 * n);
    sweeps.norm(piece, out.data());
    for (int64_t j = 0; j < n; ++j) {
      EXPECT_NEAR(out[j], (x[j] - 0.3) * 0.7 * weight[j] + bias[j], 2e-6) << j;
    }
    sweeps.norm_gradient(piece, 0.1f, 0.2f, more.data(), out.data());
    sweeps.norm_columns(piece, weight_sums.data(), bias_sums.data());
    for (int64_t j = 0; j < n; ++j) {
      const double hat = (x[j] - 0.3) * 0.7;
      EXPECT_NEAR(out[j], 0.7 * (d_y[j] * weight[j] - 0.1 - hat * 0.2) + more[j], 3e-6) << j;
      EXPECT_NEAR(weight_sums[j], old_weight[j] + d_y[j] * hat, 3e-6) << j;
      EXPECT_NEAR(bias_sums[j], old_bias[j] + d_y[j], 3e-6) << j;
    }
    piece.rounding = Rounding::kBF16;
    piece.weight = piece.bias = nullptr;
    sweeps.norm(piece, out.data());
    for (int64_t j = 0; j < n; ++j) {
      const float hat = (x[j] - 0.3f) * 0.7f;
      EXPECT_EQ(out[j], FromBF16(ToBF16(hat))) << j;
    }
  });
}

TEST_P(LayerSweepsTest, SoftmaxOfPieces) {
  const int64_t n = GetParam();
  ForEachSet([n](const LayerSweeps& sweeps) {
    Columns first(n, 1), second(n, 2), d_y(n, 3);
    for (int64_t j = 0; j < n; ++j) second.values[j] += 9;  // the maximum moves
    first.values[0] = -INFINITY;
    SoftmaxSums sums;
    sweeps.softmax_sums(first.data(), n, &sums);
    sweeps.softmax_sums(second.data(), n, &sums);
    double sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      sum += std::exp(static_cast<double>(first[j])) + std::exp(static_cast<double>(second[j]));
    }
    EXPECT_EQ(sums.max, *std::max_element(second.values.begin(), second.values.begin() + n));
    EXPECT_NEAR(sums.sum * std::exp(static_cast<double>(sums.max)), sum, 3e-6 * sum);
    Columns y = second;
    sweeps.softmax(sums.max, static_cast<float>(1 / sums.sum), n, y.data());
    double dot = 0;
    for (int64_t j = 0; j < n; ++j) {
      EXPECT_NEAR(y[j], std::exp(static_cast<double>(second[j])) / sum, 3e-6) << j;
      dot += static_cast<double>(y[j]) * d_y[j];
    }
    EXPECT_NEAR(sweeps.softmax_dot(y.data(), d_y.data(), n), dot, 1e-6 * n);
    const Columns old = d_y;
    sweeps.softmax_gradient(y.data(), 0.3f, n, d_y.data());
    for (int64_t j = 0; j < n; ++j) EXPECT_NEAR(d_y[j], y[j] * (old[j] - 0.3), 1e-6) << j;

    for (const float bad : {NAN, INFINITY}) {
      SoftmaxSums degenerate;
      first.values[n - 1] = bad;
      sweeps.softmax_sums(first.data(), n, &degenerate);
      sweeps.softmax_sums(second.data(), n, &degenerate);
      EXPECT_TRUE(std::isnan(degenerate.sum));
    }
  });
}

TEST_P(LayerSweepsTest, GatedActivations) {
  const int64_t n = GetParam();
  ForEachSet([n](const LayerSweeps& sweeps) {
    for (const GatedKind kind : {GatedKind::kSilu, GatedKind::kGeluTanh, GatedKind::kGeluErf}) {
      GatedOptions options;
      options.kind = kind;
      if (kind == GatedKind::kSilu) options.gate_scale = 0.6f;
      options.down_scale = 1.5f;
      Columns gate(n, 1), up(n, 2), d_y(n, 3), y(n, 4);
      for (int64_t j = 0; j < n; ++j) gate.values[j] *= 4;
      sweeps.gated(options, Rounding::kNone, gate.data(), up.data(), n, y.data());
      const Columns old_gate = gate;
      const Columns old_up = up;
      sweeps.gated_gradient(options, Rounding::kNone, d_y.data(), n, gate.data(), up.data());
      for (int64_t j = 0; j < n; ++j) {
        const auto value = [&](auto known) {
          constexpr GatedKind kKind = decltype(known)::value;
          EXPECT_NEAR(
              y[j],
              (GatedValue<DoubleMath, kKind, Rounding::kNone>(options, old_gate[j], old_up[j])),
              1e-5);
          const auto slopes = GatedGradient<DoubleMath, kKind, Rounding::kNone>(
              options, old_gate[j], old_up[j], d_y[j]);
          EXPECT_NEAR(gate[j], slopes.gate, 1e-5) << old_gate[j];
          EXPECT_NEAR(up[j], slopes.up, 1e-5) << old_gate[j];
        };
        if (kind == GatedKind::kSilu) value(std::integral_constant<GatedKind, GatedKind::kSilu>());
        if (kind == GatedKind::kGeluTanh) {
          value(std::integral_constant<GatedKind, GatedKind::kGeluTanh>());
        }
        if (kind == GatedKind::kGeluErf) {
          value(std::integral_constant<GatedKind, GatedKind::kGeluErf>());
        }
      }
    }
  });
}

TEST_P(LayerSweepsTest, SquaredReluAndRotation) {
  const int64_t n = GetParam();
  ForEachSet([n](const LayerSweeps& sweeps) {
    Columns x(n, 1), d_y(n, 2);
    Columns slope = x;
    const Columns old = x;
    sweeps.relu_squared(n, x.data());
    sweeps.relu_squared_gradient(d_y.data(), n, slope.data());
    for (int64_t j = 0; j < n; ++j) {
      EXPECT_EQ(x[j], ReluSquaredValue<FloatMath>(old[j]));
      EXPECT_EQ(slope[j], ReluSquaredGradient<FloatMath>(old[j], d_y[j]));
    }
    const int64_t pairs = n;
    Columns cosine(pairs, 3), sine(pairs, 4);
    for (const bool interleaved : {false, true}) {
      Columns head(2 * pairs + 5, 5);
      const Columns before = head;
      sweeps.rope(cosine.data(), sine.data(), -1, interleaved, pairs, head.data());
      for (int64_t k = 0; k < pairs; ++k) {
        const int64_t one = interleaved ? 2 * k : k;
        const int64_t other = interleaved ? 2 * k + 1 : pairs + k;
        EXPECT_NEAR(head[one], before[one] * cosine[k] + before[other] * sine[k], 2e-6);
        EXPECT_NEAR(head[other], before[other] * cosine[k] - before[one] * sine[k], 2e-6);
      }
      for (int64_t j = 2 * pairs; j < 2 * pairs + 5; ++j) EXPECT_EQ(head[j], before[j]);
    }
  });
}

// One column; one vector; one and a half; more than one block of partial sums.
INSTANTIATE_TEST_SUITE_P(Widths, LayerSweepsTest, testing::Values(1, 16, 23, 600, 4096));

}  // namespace
}  // namespace lossd
