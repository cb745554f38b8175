// LinearCrossEntropy forward and backward on the CPU beside its three products by OpenBLAS on as many threads, in one loop.
//
//   cpu_head_bench [rounds] [N H V] [f32|bf16|f16] [threads]
//
// Prints both of every round, then medians, quartiles and ratios: of wall time, and of the process's CPU time. On a machine that is not
// quiet only the latter says anything, and only with one thread (waiting threads of OpenBLAS spin). Not part of ctest.
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/core/registry.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_head.h"

namespace lossd {
namespace {

using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int,
                       float, float*, int);

struct Shape {
  int64_t rows = 512;
  int64_t hidden = 512;
  int64_t vocab = 32000;
  v1::DType dtype = v1::F32;
  int threads = 0;  // 0: all
};

// One buffer for each tensor; the region's number is its place.
class Buffers final : public RegionResolver {
 public:
  absl::StatusOr<Region> Resolve(uint64_t region) const override {
    Region found;
    found.base = const_cast<std::byte*>(buffers_[region].data());
    found.bytes = buffers_[region].size();
    found.writable = true;
    return found;
  }
  std::byte* Add(v1::Tensor* tensor, v1::DType dtype, std::vector<int64_t> shape) {
    int64_t bytes = static_cast<int64_t>(SizeOf(static_cast<DType>(dtype)));
    for (const int64_t extent : shape) {
      tensor->add_shape(extent);
      bytes *= extent;
    }
    tensor->set_dtype(dtype);
    tensor->mutable_region()->set_region(buffers_.size());
    buffers_.emplace_back(bytes);
    return buffers_.back().data();
  }

 private:
  std::vector<std::vector<std::byte>> buffers_;
};

void FillNormal(std::byte* to, int64_t count, v1::DType dtype, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  StoreFromF32(values.data(), count, false, static_cast<DType>(dtype), to);
}

v1::Op MakeOp(const Shape& shape, Buffers* buffers) {
  v1::Op op;
  v1::LinearCrossEntropy& request = *op.mutable_linear_cross_entropy();
  v1::LinearInput& linear = *request.mutable_linear();
  FillNormal(buffers->Add(linear.mutable_hidden(), shape.dtype, {shape.rows, shape.hidden}),
             shape.rows * shape.hidden, shape.dtype, 1, 1);
  FillNormal(buffers->Add(linear.mutable_weight(), shape.dtype, {shape.vocab, shape.hidden}),
             shape.vocab * shape.hidden, shape.dtype, 0.05f, 2);
  auto* target = reinterpret_cast<int64_t*>(
      buffers->Add(request.mutable_head()->mutable_target(), v1::I64, {shape.rows}));
  for (int64_t i = 0; i < shape.rows; ++i) target[i] = i * 7919 % shape.vocab;
  request.set_reduction(v1::REDUCTION_MEAN);
  request.set_denominator_from(v1::CROSS_ENTROPY_DENOMINATOR_COUNT);
  buffers->Add(request.mutable_loss(), v1::F32, {1});
  buffers->Add(request.mutable_gradients()->mutable_grad_hidden(), shape.dtype,
               {shape.rows, shape.hidden});
  buffers->Add(request.mutable_gradients()->mutable_grad_weight(), shape.dtype,
               {shape.vocab, shape.hidden});
  return op;
}

struct Time {
  double wall = 0;
  double cpu = 0;  // of all threads
};

double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Body>
Time Measure(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  const double cpu = CpuSeconds();
  body();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
          CpuSeconds() - cpu};
}

double Quantile(std::vector<double> values, double at) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(std::lround(at * static_cast<double>(values.size() - 1)))];
}

void Print(const char* name, const std::vector<double>& products, const std::vector<double>& ours) {
  for (const bool mine : {false, true}) {
    const std::vector<double>& seconds = mine ? ours : products;
    std::printf("%s %-8s median %.1f ms, quartiles %.1f ... %.1f, range %.1f ... %.1f\n", name,
                mine ? "lossd" : "products", 1e3 * Quantile(seconds, 0.5),
                1e3 * Quantile(seconds, 0.25), 1e3 * Quantile(seconds, 0.75),
                1e3 * Quantile(seconds, 0), 1e3 * Quantile(seconds, 1));
  }
  std::vector<double> ratios;
  for (size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / products[i]);
  std::printf("%s ratio of medians %.3f; of rounds: median %.3f, quartiles %.3f ... %.3f\n", name,
              Quantile(ours, 0.5) / Quantile(products, 0.5), Quantile(ratios, 0.5),
              Quantile(ratios, 0.25), Quantile(ratios, 0.75));
}

int Run(int rounds, const Shape& shape) {
  CpuOptions options;
  options.workspace_bytes = uint64_t{1} << 30;
  options.threads = shape.threads;
  auto device = CpuDevice::Create(options);
  auto registry = Registry::Create();
  if (!device.ok() || !registry.ok()) return 1;
  CpuHead head(**device);
  Backend backend{device->get(), &head};

  void* library = dlopen("libopenblas.so.0", RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "libopenblas.so.0 was not found: there is nothing to compare with\n");
    return 1;
  }
  const auto sgemm = reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
  const auto set_threads =
      reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"));
  const int threads = (*device)->pool().threads();

  Buffers buffers;
  const v1::Op op = MakeOp(shape, &buffers);
  const int n = static_cast<int>(shape.rows);
  const int h = static_cast<int>(shape.hidden);
  const int v = static_cast<int>(shape.vocab);
  std::vector<float> hidden(shape.rows * shape.hidden, 0.5f);
  std::vector<float> weight(shape.vocab * shape.hidden, 0.25f);
  std::vector<float> logits(shape.rows * shape.vocab);
  std::vector<float> grad_hidden(hidden.size());
  std::vector<float> grad_weight(weight.size());

  std::vector<double> products, ours, products_cpu, ours_cpu;
  std::string plan;
  for (int round = -1; round < rounds; ++round) {
    set_threads(threads);
    const Time blas = Measure([&] {
      sgemm(101, 111, 112, n, v, h, 1, hidden.data(), h, weight.data(), h, 0, logits.data(), v);
      sgemm(101, 111, 111, n, h, v, 1, logits.data(), v, weight.data(), h, 0, grad_hidden.data(),
            h);
      sgemm(101, 112, 111, v, h, n, 1, logits.data(), v, hidden.data(), h, 0, grad_weight.data(),
            h);
    });
    set_threads(1);
    usleep(200000);  // the library's threads spin for a while before they sleep
    absl::Status status;
    v1::OpReply reply;
    const Time mine = Measure([&] {
      auto admitted = Admit(*registry, op, buffers);
      status = admitted.ok() ? RunOp(*admitted, RunOptions(), backend, &reply) : admitted.status();
    });
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 1;
    }
    plan = reply.plan();
    if (round < 0) continue;  // first touch of all memory
    products.push_back(blas.wall);
    ours.push_back(mine.wall);
    products_cpu.push_back(blas.cpu);
    ours_cpu.push_back(mine.cpu);
    std::printf("round %2d: products %.1f ms (cpu %.1f), lossd %.1f ms (cpu %.1f)\n", round,
                1e3 * blas.wall, 1e3 * blas.cpu, 1e3 * mine.wall, 1e3 * mine.cpu);
  }
  std::printf("N %d, H %d, V %d, %s, %d threads; %s\n%s\n", n, h, v,
              NameOf(static_cast<DType>(shape.dtype)), threads, plan.c_str(),
              (*device)->gemm().name().c_str());
  Print("wall", products, ours);
  Print("cpu ", products_cpu, ours_cpu);
  return 0;
}

}  // namespace
}  // namespace lossd

int main(int argc, char** argv) {
  lossd::Shape shape;
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 11;
  if (argc > 4) {
    shape.rows = std::atoll(argv[2]);
    shape.hidden = std::atoll(argv[3]);
    shape.vocab = std::atoll(argv[4]);
  }
  if (argc > 5) {
    const std::string dtype = argv[5];
    shape.dtype = dtype == "bf16"  ? lossd::v1::BF16
                  : dtype == "f16" ? lossd::v1::F16
                                   : lossd::v1::F32;
  }
  if (argc > 6) shape.threads = std::atoi(argv[6]);
  return lossd::Run(rounds, shape);
}
