// The operations on logits, bf16, 8192 rows: time on the device and bytes a second, beside a copy of the same bytes in the same run.
// Usage: bench_logits [iterations [vocab ...]]
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "kernels/core/registry.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/gpu/bench_data.h"
#include "tests/gpu/bench_device.h"

namespace lossd {
namespace {

constexpr int64_t kRows = 8192;
constexpr int64_t kDifferentRows = 32;  // repeated: the kernels cannot tell
constexpr uint64_t kBusyBytes = uint64_t{500} << 20;

std::string Text(const char* dtype, std::initializer_list<int64_t> shape, uint64_t id) {
  std::string text = absl::StrCat("{dtype: ", dtype);
  for (const int64_t extent : shape) absl::StrAppend(&text, " shape: ", extent);
  return absl::StrCat(text, " region {region: ", id, " byte_offset: 0}}");
}

v1::Op Parse(const std::string& text) {
  v1::Op op;
  if (google::protobuf::TextFormat::ParseFromString(text, &op)) return op;
  std::fprintf(stderr, "not an operation: %s\n", text.c_str());
  std::exit(1);
}

class Bench {
 public:
  Bench(int64_t vocab, int iterations)
      : vocab_(vocab),
        iterations_(iterations),
        cuda_(OrDie(CudaBackend::Create({0, uint64_t{64} << 20}))),
        registry_(OrDie(Registry::Create())) {
    const uint64_t bytes = static_cast<uint64_t>(kRows * vocab_) * 2;
    logits_ = regions_.Add(bytes);
    grad_ = regions_.Add(bytes);
    target_ = regions_.Add(kRows * 4);
    for (uint64_t& column : columns_) column = regions_.Add(kRows * 4);
    FillLogits();
    FillColumns();
  }

  void Run() {
    const double copy = MeasureCopy();
    const std::string logits = absl::StrCat(" logits ", Text("BF16", {kRows, vocab_}, logits_),
                                            " head {target ", Text("I32", {kRows}, target_));
    const std::string grad =
        absl::StrCat(" grad_logits ", Text("BF16", {kRows, vocab_}, grad_), "}");
    const std::string over =
        absl::StrCat(" grad_logits ", Text("BF16", {kRows, vocab_}, logits_), "}");
    const auto column = [&](const char* name, int at) {
      return absl::StrCat(" ", name, " ", Text("F32", {kRows}, columns_[at]));
    };
    const std::string entropy =
        absl::StrCat("cross_entropy {", logits, "} ", "loss ", Text("F32", {1}, columns_[7]));
    const std::string backward =
        absl::StrCat("logprob_backward {", logits, "}", column("lse", 0), column("d_logprob", 1));
    Measure("CrossEntropy, gradient", copy, true, entropy + grad);
    Measure("CrossEntropy", copy, false, entropy + "}");
    Measure("CrossEntropy, entropy, gradient", copy, true, entropy + column("entropy", 2) + grad);
    Measure("CrossEntropy, softcap, gradient", copy, true,
            absl::StrCat("cross_entropy {", logits, " softcap: 30} loss ",
                         Text("F32", {1}, columns_[7]), grad));
    Measure("Logprob", copy, false,
            absl::StrCat("logprob {", logits, "}", column("logprob", 3), column("lse", 4), "}"));
    Measure("Logprob, entropy", copy, false,
            absl::StrCat("logprob {", logits, "}", column("logprob", 3), column("lse", 4),
                         column("entropy", 5), "}"));
    Measure("LogprobBackward", copy, true, backward + grad);
    Measure("LogprobBackward, entropy", copy, true,
            backward + column("entropy", 5) + column("d_entropy", 6) + grad);
    Measure("CrossEntropy, gradient in place", copy, true, entropy + over);
  }

 private:
  cudaStream_t stream() const { return cuda_->device().stream(); }

  void FillLogits() {
    std::vector<uint16_t> rows(kDifferentRows * vocab_);
    InParallel(kDifferentRows, [&](int64_t i) {
      std::mt19937 random(static_cast<unsigned>(i + 1));
      std::normal_distribution<float> normal(0, 2.5f);
      for (int64_t j = 0; j < vocab_; ++j) rows[i * vocab_ + j] = ToBf16(normal(random));
    });
    const uint64_t bytes = rows.size() * 2;
    for (int64_t i = 0; i < kRows; i += kDifferentRows) {
      Check(cudaMemcpy(static_cast<char*>(regions_.data(logits_)) + i * vocab_ * 2, rows.data(),
                       bytes, cudaMemcpyHostToDevice));
    }
  }

  void FillColumns() {
    std::mt19937 random(7);
    std::vector<int32_t> target(kRows);
    for (int32_t& y : target) y = static_cast<int32_t>(random() % vocab_);
    Check(cudaMemcpy(regions_.data(target_), target.data(), kRows * 4, cudaMemcpyHostToDevice));
    for (const uint64_t column : columns_) {
      std::vector<float> values(kRows, 15.0f);
      Check(cudaMemcpy(regions_.data(column), values.data(), kRows * 4, cudaMemcpyHostToDevice));
    }
  }

  // GB/s, read and written.
  double MeasureCopy() {
    const uint64_t bytes = static_cast<uint64_t>(kRows * vocab_) * 2;
    Timer timer;
    std::vector<double> times;
    for (int i = 0; i < iterations_; ++i) {
      times.push_back(timer.Milliseconds(stream(), [&] {
        Check(cudaMemcpyAsync(regions_.data(grad_), regions_.data(logits_), bytes,
                              cudaMemcpyDeviceToDevice, stream()));
      }));
    }
    double median = 0;
    Summary(times, &median);
    const double rate = 2e-6 * static_cast<double>(bytes) / median;
    std::printf("[%lld, %lld]: copy %.3f ms, %.0f GB/s\n", static_cast<long long>(kRows),
                static_cast<long long>(vocab_), median, rate);
    return rate;
  }

  void Measure(const char* name, double copy, bool writes, const std::string& text) {
    const v1::Op op = Parse(text);
    Backend backend = cuda_->backend();
    Timer timer;
    std::vector<double> times;
    RunOptions options;
    options.host_may_wait = false;
    std::string plan;
    for (int i = 0; i < iterations_; ++i) {
      AdmittedOp admitted = OrDie(Admit(registry_, op, regions_, {"logits"}));
      LaunchedOp launched;
      backend.device->workspace().Reset();
      // The device is kept busy until all is enqueued, so that only its own time counts. It also empties the cache.
      Check(cudaMemsetAsync(regions_.data(grad_), 0, kBusyBytes, stream()));
      times.push_back(timer.Milliseconds(
          stream(), [&] { Check(Launch(admitted, options, backend, &launched)); }));
      plan = launched.pending.plan;
    }
    double median = 0;
    const std::string summary = Summary(times, &median);
    const double bytes = static_cast<double>(kRows * vocab_) * (writes ? 4 : 2);
    const double rate = 1e-6 * bytes / median;
    std::printf("%-32s %s %6.0f GB/s  %.2f of the copy  %s\n", name, summary.c_str(), rate,
                rate / copy, plan.c_str());
    std::fflush(stdout);
  }

  const int64_t vocab_;
  const int iterations_;
  std::unique_ptr<CudaBackend> cuda_;
  const Registry registry_;
  Regions regions_;
  uint64_t logits_, grad_, target_, columns_[8];
};

int Main(int argc, char** argv) {
  const int iterations = argc > 1 ? std::atoi(argv[1]) : 50;
  std::vector<int64_t> vocabs;
  for (int i = 2; i < argc; ++i) vocabs.push_back(std::atoll(argv[i]));
  if (vocabs.empty()) vocabs = {32000, 128256, 151936, 256000};
  PrintClocks();
  for (const int64_t vocab : vocabs) Bench(vocab, iterations).Run();
  PrintClocks();
  return 0;
}

}  // namespace
}  // namespace lossd

int main(int argc, char** argv) { return lossd::Main(argc, argv); }
