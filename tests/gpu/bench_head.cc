// LinearCrossEntropy, forward and backward, beside the three cuBLASLt products of the same shape: interleaved, hot, medians.
// Usage: bench_head [rows hidden vocab workspace_bytes [seconds [filter [times]]]]; with a last argument without the errors against
// float64.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "kernels/core/registry.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/gpu/bench_data.h"
#include "tests/gpu/bench_device.h"
#include "tests/gpu/bench_products.h"

namespace lossd {
namespace {

// Relative error of sampled rows of grad_hidden and grad_weight against float64, and of grad_hidden as a pipeline would have it that
// rounds logits to bf16.
void PrintErrors(const BenchData& data, const std::vector<float>& grad_hidden_rows,
                 const std::vector<int64_t>& rows, const std::vector<float>& grad_weight_rows,
                 const std::vector<int64_t>& ids, const std::vector<float>& lse,
                 const std::vector<float>& logprob, double scale) {
  const int64_t h = data.hidden_size;
  std::vector<double> errors(rows.size()), norms(rows.size()), peers(rows.size()),
      lse_errors(rows.size()), logprob_errors(rows.size());
  InParallel(static_cast<int64_t>(rows.size()), [&](int64_t r) {
    const int64_t i = rows[r];
    std::vector<double> z(data.vocab), want(h), peer(h);
    double max = -INFINITY;
    for (int64_t j = 0; j < data.vocab; ++j) max = std::max(max, z[j] = data.Logit(i, j));
    double sum = 0, rounded_sum = 0;
    for (const double v : z) sum += std::exp(v - max);
    for (const double v : z) rounded_sum += std::exp(FromBf16(ToBf16(static_cast<float>(v))) - max);
    lse_errors[r] = std::abs(lse[i] - max - std::log(sum));
    const double want_logprob = z[data.target[i]] - max - std::log(sum);
    logprob_errors[r] = (logprob[i] - want_logprob) / want_logprob;
    for (int64_t j = 0; j < data.vocab; ++j) {
      const double hit = j == data.target[i] ? 1 : 0;
      const double g = scale * (std::exp(z[j] - max) / sum - hit);
      const double bf16_z = FromBf16(ToBf16(static_cast<float>(z[j])));
      const double p = FromBf16(
          ToBf16(static_cast<float>(scale * (std::exp(bf16_z - max) / rounded_sum - hit))));
      const uint16_t* w = &data.weight[j * h];
      for (int64_t k = 0; k < h; ++k) {
        want[k] += g * FromBf16(w[k]);
        peer[k] += p * FromBf16(w[k]);
      }
    }
    for (int64_t k = 0; k < h; ++k) {
      const double got = grad_hidden_rows[r * h + k];
      const double peer_got = FromBf16(ToBf16(static_cast<float>(peer[k])));
      errors[r] += (got - want[k]) * (got - want[k]);
      peers[r] += (peer_got - want[k]) * (peer_got - want[k]);
      norms[r] += want[k] * want[k];
    }
  });
  std::vector<double> weight_errors(ids.size()), weight_norms(ids.size());
  InParallel(static_cast<int64_t>(ids.size()), [&](int64_t c) {
    const int64_t j = ids[c];
    std::vector<double> want(h);
    for (int64_t i = 0; i < data.rows; ++i) {
      const double hit = j == data.target[i] ? 1 : 0;
      const double g = scale * (std::exp(data.Logit(i, j) - lse[i]) - hit);
      for (int64_t k = 0; k < h; ++k) want[k] += g * FromBf16(data.hidden[i * h + k]);
    }
    for (int64_t k = 0; k < h; ++k) {
      const double got = grad_weight_rows[c * h + k];
      weight_errors[c] += (got - want[k]) * (got - want[k]);
      weight_norms[c] += want[k] * want[k];
    }
  });
  const auto total = [](const std::vector<double>& v) {
    double sum = 0;
    for (const double x : v) sum += x;
    return sum;
  };
  std::printf(
      "  error against float64: dX %.2e (bf16 logits: %.2e), dW %.2e, lse at most %.1e nats, "
      "log-probability at most %.1e and on average %.1e of it\n",
      std::sqrt(total(errors) / total(norms)), std::sqrt(total(peers) / total(norms)),
      std::sqrt(total(weight_errors) / total(weight_norms)),
      *std::max_element(lse_errors.begin(), lse_errors.end()),
      std::max(*std::max_element(logprob_errors.begin(), logprob_errors.end()),
               -*std::min_element(logprob_errors.begin(), logprob_errors.end())),
      total(logprob_errors) / static_cast<double>(rows.size()));
}

template <class T>
std::vector<float> ReadFloats(const void* device, int64_t offset, int64_t count) {
  std::vector<T> raw(count);
  Check(cudaMemcpy(raw.data(), static_cast<const T*>(device) + offset, count * sizeof(T),
                   cudaMemcpyDeviceToHost));
  std::vector<float> out(count);
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (sizeof(T) == 2) {
      out[i] = FromBf16(raw[i]);
    } else {
      out[i] = raw[i];
    }
  }
  return out;
}

int Main(int argc, char** argv) {
  const int64_t n = argc > 1 ? std::atoll(argv[1]) : 8192;
  const int64_t h = argc > 2 ? std::atoll(argv[2]) : 4096;
  const int64_t v = argc > 3 ? std::atoll(argv[3]) : 128256;
  const uint64_t workspace = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 2200000000;
  const int64_t seconds = argc > 5 ? std::atoll(argv[5]) : 8;
  const float filter_bound = argc > 6 ? std::strtof(argv[6], nullptr) : 4e-3f;
  const BenchData data(n, h, v, 8.6);
  auto cuda = OrDie(CudaBackend::Create({0, workspace}));
  const Registry registry = OrDie(Registry::Create());
  Backend backend = cuda->backend();
  const cudaStream_t stream = cuda->device().stream();
  CublasLt reference = OrDie(CublasLt::Create(uint64_t{64} << 20));
  CublasLt first_choice = OrDie(CublasLt::Create(uint64_t{64} << 20, false));

  Regions regions;
  const uint64_t hidden = regions.Add(n * h * 2), weight = regions.Add(v * h * 2),
                 target = regions.Add(n * 4), dx = regions.Add(n * h * 2),
                 dw = regions.Add(v * h * 4), loss = regions.Add(256), lse = regions.Add(n * 4),
                 entropy = regions.Add(n * 4), logprob = regions.Add(n * 4), mask = regions.Add(n),
                 logits = regions.Add(n * v * 2), dw16 = regions.Add(v * h * 2),
                 dx16 = regions.Add(n * h * 2);
  Check(cudaMemcpy(regions.data(hidden), data.hidden.data(), n * h * 2, cudaMemcpyHostToDevice));
  Check(cudaMemcpy(regions.data(weight), data.weight.data(), v * h * 2, cudaMemcpyHostToDevice));
  Check(cudaMemcpy(regions.data(target), data.target.data(), n * 4, cudaMemcpyHostToDevice));
  // The backend's stream does not wait for the default one.
  Check(cudaDeviceSynchronize());
  const BenchProducts products = {n,
                                  h,
                                  v,
                                  regions.data(hidden),
                                  regions.data(weight),
                                  regions.data(logits),
                                  regions.data(dx16),
                                  regions.data(dw16)};
  // Every second row.
  std::vector<uint8_t> half(n);
  for (int64_t i = 0; i < n; ++i) half[i] = i % 2;
  Check(cudaMemcpy(regions.data(mask), half.data(), n, cudaMemcpyHostToDevice));
  v1::Op ops[4];
  const char* names[] = {"grad_weight f32 ", "grad_weight bf16", "forward, entropy"};
  for (int i = 0; i < 4; ++i) {
    v1::LinearCrossEntropy& op = *ops[i].mutable_linear_cross_entropy();
    Describe(op.mutable_linear()->mutable_hidden(), v1::BF16, {n, h}, hidden);
    Describe(op.mutable_linear()->mutable_weight(), v1::BF16, {v, h}, weight);
    Describe(op.mutable_head()->mutable_target(), v1::I32, {n}, target);
    if (i == 3) Describe(op.mutable_head()->mutable_mask(), v1::U8, {n}, mask);
    Describe(op.mutable_loss(), v1::F32, {1}, loss);
    Describe(op.mutable_lse(), v1::F32, {n}, lse);
    Describe(op.mutable_logprob(), v1::F32, {n}, logprob);
    op.set_reduction(v1::REDUCTION_MEAN);
    op.set_denominator(static_cast<double>(n));
    if (i == 2) {
      Describe(op.mutable_entropy(), v1::F32, {n}, entropy);
      continue;
    }
    Describe(op.mutable_gradients()->mutable_grad_hidden(), v1::BF16, {n, h}, dx);
    Describe(op.mutable_gradients()->mutable_grad_weight(), i != 1 ? v1::F32 : v1::BF16, {v, h},
             dw);
  }
  const auto run = [&](int i, bool wait, float filter = 0) {
    AdmittedOp admitted = OrDie(Admit(registry, ops[i], regions));
    RunOptions options;
    options.host_may_wait = wait;
    options.gradient_filter = filter;
    backend.device->workspace().Reset();
    LaunchedOp launched;
    Check(Launch(admitted, options, backend, &launched));
    if (wait) Check(backend.device->Synchronize());
    return launched.pending.plan;
  };

  Timer timer;
  std::printf("N %lld H %lld V %lld bf16, workspace %.2f GB, filter %g\n",
              static_cast<long long>(n), static_cast<long long>(h), static_cast<long long>(v),
              workspace / 1e9, static_cast<double>(filter_bound));
  for (int i = 0; i < 3; ++i) std::printf("  %s plan: %s\n", names[i], run(i, true).c_str());
  // Hot: three seconds of the same load first.
  for (const auto start = std::chrono::steady_clock::now();
       std::chrono::steady_clock::now() - start < std::chrono::seconds(3);) {
    Check(products.Run(reference, stream));
    run(0, true);
  }
  PrintClocks();
  const char* rows[] = {"grad_weight f32 ", "grad_weight bf16", "forward, entropy",
                        "f32, enqueued   ", "f32, filtered   ", "forward enqueued",
                        "f32, half masked"};
  constexpr int kRows = 7;
  const auto run_products = [&] { Check(products.Run(reference, stream)); };
  const auto run_row = [&](int i) {
    run(i == 6 ? 3 : i == 5 ? 2 : i < 3 ? i : 0, i != 3 && i != 5, i == 4 ? filter_bound : 0);
  };
  // Plain: products, the call, products, the call. Preceded: each follows an untimed run of itself, since the card is limited by power
  // and what ran before decides about the clock.
  for (const bool preceded : {false, true}) {
    std::printf("  %s\n", preceded ? "each after an untimed run of itself" : "plain interleaving");
    std::vector<double> products_times, first_choice_times, logits_times[2], times[kRows];
    for (const auto start = std::chrono::steady_clock::now();
         std::chrono::steady_clock::now() - start < std::chrono::seconds(seconds);) {
      for (int i = 0; i < kRows; ++i) {
        if (preceded) run_products();
        products_times.push_back(timer.Milliseconds(stream, run_products));
        if (i == 0) {
          const auto run_first = [&] { Check(products.Run(first_choice, stream)); };
          if (preceded) run_first();
          first_choice_times.push_back(timer.Milliseconds(stream, run_first));
        }
        if (i == 2) {
          for (int k = 0; k < 2; ++k) {
            const auto run_logits = [&] {
              Check(products.RunLogits(k == 0 ? first_choice : reference, stream));
            };
            if (preceded) run_logits();
            logits_times[k].push_back(timer.Milliseconds(stream, run_logits));
          }
        }
        if (preceded) run_row(i);
        times[i].push_back(timer.Milliseconds(stream, [&] { run_row(i); }));
      }
    }
    double base = 0, median = 0, logits[2] = {};
    std::printf("  products          %s\n", Summary(first_choice_times, &median).c_str());
    std::printf("    by our table    %s\n", Summary(products_times, &base).c_str());
    const double first_choice_ms = median;
    std::printf("  logits alone      %s\n", Summary(logits_times[0], &logits[0]).c_str());
    std::printf("    by our table    %s\n", Summary(logits_times[1], &logits[1]).c_str());
    for (int i = 0; i < kRows; ++i) {
      const std::string text = Summary(times[i], &median);
      std::printf("  %s  %s  ratio %.3f (%.3f)\n", rows[i], text.c_str(),
                  median / (i == 2 || i == 5 ? logits[0] : first_choice_ms),
                  median / (i == 2 || i == 5 ? logits[1] : base));
    }
    PrintClocks();
  }
  if (argc > 7) return 0;
  std::vector<int64_t> sample_rows, ids;
  for (int64_t i = 0; i < 16; ++i) sample_rows.push_back((i * (n / 16) + i) % n);
  for (int64_t i = 0; i < 8; ++i) ids.push_back(i * i % v);
  for (int64_t i = 0; i < 24; ++i) ids.push_back((i * 7919 + 100) % v);
  for (int k = 0; k < 3; ++k) {
    const int i = k % 2;
    std::printf("  plan %s\n", run(i, true, k == 2 ? filter_bound : 0).c_str());
    const std::vector<float> all_lse = ReadFloats<float>(regions.data(lse), 0, n);
    const float value = ReadFloats<float>(regions.data(loss), 0, 1)[0];
    std::vector<float> dx_rows, dw_rows;
    for (const int64_t r : sample_rows) {
      const auto row = ReadFloats<uint16_t>(regions.data(dx), r * h, h);
      dx_rows.insert(dx_rows.end(), row.begin(), row.end());
    }
    for (const int64_t j : ids) {
      const auto row = i == 0 ? ReadFloats<float>(regions.data(dw), j * h, h)
                              : ReadFloats<uint16_t>(regions.data(dw), j * h, h);
      dw_rows.insert(dw_rows.end(), row.begin(), row.end());
    }
    std::printf("  %s loss %.6f\n", names[i], value);
    PrintErrors(data, dx_rows, sample_rows, dw_rows, ids, all_lse,
                ReadFloats<float>(regions.data(logprob), 0, n), 1.0 / static_cast<double>(n));
  }
  return 0;
}

}  // namespace
}  // namespace lossd

int main(int argc, char** argv) { return lossd::Main(argc, argv); }
