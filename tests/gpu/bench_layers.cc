// Every layer, bf16: time on the device and bytes moved a second, beside a copy that moves as many bytes, interleaved in one loop, medians;
// and the host's time for a call that does not wait.
// Usage: bench_layers [seconds for each [name [--json]]]
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "kernels/core/registry.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/gpu/bench_device.h"

namespace lossd {
namespace {

// Calls between two events; their tensors are larger than the second-level cache.
constexpr int kCalls = 8;
constexpr uint64_t kCopyBytes = uint64_t{1} << 30;

struct Row {
  std::string name;
  v1::Op op;
  double bytes = 0;  // read and written once each
};

class Bench {
 public:
  Bench(double seconds, std::string only, bool json)
      : seconds_(seconds),
        only_(std::move(only)),
        json_(json),
        cuda_(OrDie(CudaBackend::Create({0, uint64_t{1} << 30}))),
        registry_(OrDie(Registry::Create())) {
    copy_from_ = regions_.Add(kCopyBytes);
    copy_to_ = regions_.Add(kCopyBytes);
    Fill(copy_from_, kCopyBytes);
  }

  void AddNorms(int64_t rows, int64_t width);
  void AddSoftmax(int64_t rows, int64_t width);
  void AddActivations(int64_t rows, int64_t width);
  void AddRope(int64_t rows, int64_t heads, int64_t dim);
  void Run();

 private:
  cudaStream_t stream() const { return cuda_->device().stream(); }

  // bf16 numbers between 0.5 and 2 of both signs, the same block again and again.
  void Fill(uint64_t region, uint64_t bytes) {
    if (block_.empty()) {
      block_.resize(1 << 20);
      uint64_t state = 88172645463325252u;
      for (uint16_t& value : block_) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        value = static_cast<uint16_t>(0x3f00 + (state & 0x80ff));
      }
    }
    const uint64_t step = block_.size() * 2;
    for (uint64_t at = 0; at < bytes; at += step) {
      Check(cudaMemcpy(static_cast<char*>(regions_.data(region)) + at, block_.data(),
                       std::min(step, bytes - at), cudaMemcpyHostToDevice));
    }
  }

  // A tensor in text format. Tensors with the same tag and size share their memory.
  std::string Tensor(const std::string& tag, const char* dtype, const std::vector<int64_t>& shape) {
    uint64_t bytes = std::strcmp(dtype, "BF16") == 0 ? 2 : 4;
    for (const int64_t extent : shape) bytes *= static_cast<uint64_t>(extent);
    uint64_t region = 0;
    for (const auto& [known_tag, known_bytes, known] : tensors_) {
      if (known_tag == tag && known_bytes >= bytes) region = known;
    }
    if (region == 0) {
      region = regions_.Add(bytes);
      Fill(region, bytes);
      tensors_.emplace_back(tag, bytes, region);
    }
    std::string text = absl::StrCat("{dtype: ", dtype);
    for (const int64_t extent : shape) absl::StrAppend(&text, " shape: ", extent);
    return absl::StrCat(text, " region {region: ", region, " byte_offset: 0}}");
  }
  std::string Matrix(const std::string& tag, int64_t rows, int64_t width) {
    return Tensor(tag, "BF16", {rows, width});
  }

  void Add(const std::string& name, double bytes, const std::string& text) {
    if (!absl::StrContains(name, only_)) return;
    Row row;
    row.name = name;
    row.bytes = bytes;
    if (!google::protobuf::TextFormat::ParseFromString(text, &row.op)) {
      std::fprintf(stderr, "not an operation: %s\n", text.c_str());
      std::exit(1);
    }
    rows_.push_back(std::move(row));
  }
  void RunRow(const Row& row);
  // Enqueues a call, which other calls then repeat.
  std::string Enqueue(const v1::Op& op);

  const double seconds_;
  const std::string only_;
  const bool json_;
  std::unique_ptr<CudaBackend> cuda_;
  const Registry registry_;
  Regions regions_;
  uint64_t copy_from_ = 0, copy_to_ = 0;
  std::vector<uint16_t> block_;
  std::vector<std::tuple<std::string, uint64_t, uint64_t>> tensors_;  // tag, bytes, region
  std::vector<Row> rows_;
};

std::string Size(int64_t rows, int64_t width) { return absl::StrCat(" ", rows, "x", width); }

void Bench::AddNorms(int64_t rows, int64_t width) {
  const std::string size = Size(rows, width);
  const double matrix = 2.0 * rows * width;
  const std::string weight = Tensor("weight", "BF16", {width});
  const std::string bias = Tensor("bias", "BF16", {width});
  const std::string grad_weight = Tensor("grad_weight", "F32", {width});
  const std::string rstd = Tensor("rstd", "F32", {rows});
  const std::string mean = Tensor("mean", "F32", {rows});
  const std::string a = Matrix("a", rows, width), b = Matrix("b", rows, width);
  const std::string c = Matrix("c", rows, width), d = Matrix("d", rows, width);
  Add("RmsNorm" + size, 2 * matrix,
      absl::StrCat("rms_norm {x ", a, " weight ", weight, " y ", c, " rstd ", rstd, "}"));
  Add("RmsNorm add" + size, 4 * matrix,
      absl::StrCat("rms_norm {x ", a, " residual ", b, " weight ", weight, " y ", c,
                   " residual_out ", d, " rstd ", rstd, "}"));
  Add("RmsNormBackward" + size, 3 * matrix,
      absl::StrCat("rms_norm_backward {d_y ", b, " x ", a, " weight ", weight, " rstd ", rstd,
                   " grad_x ", c, " grad_weight ", grad_weight, "}"));
  Add("RmsNormBackward add" + size, 4 * matrix,
      absl::StrCat("rms_norm_backward {d_y ", b, " x ", a, " weight ", weight, " rstd ", rstd,
                   " d_residual_out ", d, " grad_x ", c, " grad_weight ", grad_weight, "}"));
  Add("LayerNorm" + size, 2 * matrix,
      absl::StrCat("layer_norm {x ", a, " weight ", weight, " bias ", bias, " y ", c, " mean ",
                   mean, " rstd ", rstd, "}"));
  Add("LayerNormBackward" + size, 3 * matrix,
      absl::StrCat("layer_norm_backward {d_y ", b, " x ", a, " weight ", weight, " mean ", mean,
                   " rstd ", rstd, " grad_x ", c, " grad_weight ", grad_weight, " grad_bias ",
                   Tensor("grad_bias", "F32", {width}), "}"));
}

void Bench::AddSoftmax(int64_t rows, int64_t width) {
  const double matrix = 2.0 * rows * width;
  const std::string a = Matrix("a", rows, width), b = Matrix("b", rows, width);
  const std::string c = Matrix("c", rows, width);
  Add("Softmax" + Size(rows, width), 2 * matrix, absl::StrCat("softmax {x ", a, " y ", c, "}"));
  Add("SoftmaxBackward" + Size(rows, width), 3 * matrix,
      absl::StrCat("softmax_backward {y ", a, " d_y ", b, " grad_x ", c, "}"));
}

void Bench::AddActivations(int64_t rows, int64_t width) {
  const std::string size = Size(rows, width);
  const double matrix = 2.0 * rows * width;
  const std::string a = Matrix("a", rows, width), b = Matrix("b", rows, width);
  const std::string c = Matrix("c", rows, width), d = Matrix("d", rows, width);
  const std::string e = Matrix("e", rows, width);
  const std::string both = Matrix("both", rows, 2 * width);
  const std::string grad_both = Matrix("grad_both", rows, 2 * width);
  for (const std::string op : {"Swiglu", "Geglu"}) {
    const std::string name = op == "Swiglu" ? "swiglu" : "geglu";
    Add(op + size, 3 * matrix, absl::StrCat(name, " {gated {gate ", a, " up ", b, "} y ", c, "}"));
    Add(op + " merged" + size, 3 * matrix,
        absl::StrCat(name, " {gated {gate_up ", both, "} y ", c, "}"));
    Add(op + "Backward" + size, 5 * matrix,
        absl::StrCat(name, "_backward {gated {gate ", a, " up ", b, "} d_y ", c,
                     " gradients {grad_gate ", d, " grad_up ", e, "}}"));
    Add(op + "Backward merged" + size, 5 * matrix,
        absl::StrCat(name, "_backward {gated {gate_up ", both, "} d_y ", c,
                     " gradients {grad_gate_up ", grad_both, "}}"));
  }
  Add("Geglu erf" + size, 3 * matrix,
      absl::StrCat("geglu {gated {gate ", a, " up ", b,
                   "} approximation: GELU_APPROXIMATION_ERF y ", c, "}"));
  Add("ReluSquared" + size, 2 * matrix, absl::StrCat("relu_squared {x ", a, " y ", c, "}"));
  Add("ReluSquaredBackward" + size, 3 * matrix,
      absl::StrCat("relu_squared_backward {x ", a, " d_y ", b, " grad_x ", c, "}"));
}

void Bench::AddRope(int64_t rows, int64_t heads, int64_t dim) {
  const std::string size = absl::StrCat(Size(rows, heads), "x", dim);
  const double bytes = 4.0 * rows * heads * dim + 4.0 * rows * dim;
  const std::string x = Tensor("a", "BF16", {rows, heads, dim});
  const std::string y = Tensor("c", "BF16", {rows, heads, dim});
  const std::string tables = absl::StrCat(" rotary {cos ", Tensor("cos", "F32", {rows, dim / 2}),
                                          " sin ", Tensor("sin", "F32", {rows, dim / 2}));
  Add("Rope" + size, bytes,
      absl::StrCat("rope {x ", x, tables, " layout: ROPE_LAYOUT_HALF_SPLIT} y ", y, "}"));
  Add("Rope interleaved" + size, bytes,
      absl::StrCat("rope {x ", x, tables, " layout: ROPE_LAYOUT_INTERLEAVED} y ", y, "}"));
  Add("RopeBackward" + size, bytes,
      absl::StrCat("rope_backward {d_y ", x, tables, " layout: ROPE_LAYOUT_HALF_SPLIT} grad_x ", y,
                   "}"));
}

std::string Bench::Enqueue(const v1::Op& op) {
  Backend backend = cuda_->backend();
  RunOptions options;
  options.host_may_wait = false;
  AdmittedOp admitted = OrDie(Admit(registry_, op, regions_));
  backend.device->workspace().Reset();
  LaunchedOp launched;
  Check(Launch(admitted, options, backend, &launched));
  return launched.pending.plan;
}

double Median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void Bench::RunRow(const Row& row) {
  std::string plan;
  for (int i = 0; i < 4; ++i) plan = Enqueue(row.op);
  Check(cudaStreamSynchronize(stream()));
  Timer timer;
  std::vector<double> ours, copies, host;
  void* const from = regions_.data(copy_from_);
  void* const to = regions_.data(copy_to_);
  const auto copied = static_cast<size_t>(std::min<double>(row.bytes / 2, kCopyBytes));
  for (const auto start = std::chrono::steady_clock::now();
       std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
       seconds_;) {
    // The device is kept busy until all is enqueued.
    Check(cudaMemsetAsync(to, 0, kCopyBytes / 2, stream()));
    ours.push_back(timer.Milliseconds(stream(), [&] {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) Enqueue(row.op);
      host.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }));
    Check(cudaMemsetAsync(to, 0, kCopyBytes / 2, stream()));
    copies.push_back(timer.Milliseconds(stream(), [&] {
      for (int i = 0; i < kCalls; ++i) {
        Check(cudaMemcpyAsync(to, from, copied, cudaMemcpyDeviceToDevice, stream()));
      }
    }));
  }
  const double us = Median(ours) * 1e3 / kCalls;
  const double copy_us = Median(copies) * 1e3 / kCalls * (row.bytes / 2 / copied);
  const double speed = row.bytes / us * 1e-3;
  const double copy_speed = row.bytes / copy_us * 1e-3;
  const double host_us = Median(host) * 1e6 / kCalls;
  std::printf(json_ ? "{\"name\": \"%s\", \"us\": %.2f, \"gb_s\": %.0f, \"copy_gb_s\": %.0f, "
                      "\"ratio\": %.3f, \"host_us\": %.2f, \"plan\": \"%s\"}\n"
                    : "%-38s %8.1f us %6.0f GB/s  copy %5.0f  ratio %.3f  host %5.1f us  %s\n",
              row.name.c_str(), us, speed, copy_speed, speed / copy_speed, host_us, plan.c_str());
  std::fflush(stdout);
}

void Bench::Run() {
  // Hot first.
  for (const auto start = std::chrono::steady_clock::now();
       std::chrono::steady_clock::now() - start < std::chrono::seconds(1);) {
    Check(cudaMemcpyAsync(regions_.data(copy_to_), regions_.data(copy_from_), kCopyBytes,
                          cudaMemcpyDeviceToDevice, stream()));
    Check(cudaStreamSynchronize(stream()));
  }
  PrintClocks();
  for (const Row& row : rows_) RunRow(row);
  PrintClocks();
}

int Main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.5;
  Bench bench(seconds, argc > 2 ? argv[2] : "", argc > 3 && std::strcmp(argv[3], "--json") == 0);
  for (const int64_t width : {int64_t{4096}, int64_t{8192}, int64_t{2048}}) {
    bench.AddNorms((int64_t{1} << 26) / width, width);
  }
  bench.AddActivations(8192, 14336);
  bench.AddRope(16384, 40, 128);
  bench.AddSoftmax(16384, 4096);
  bench.AddSoftmax(2048, 32000);
  bench.AddSoftmax(1024, 128256);
  for (const int64_t width : {int64_t{1024}, int64_t{5120}, int64_t{16384}, int64_t{32768},
                              int64_t{65536}, int64_t{131072}, int64_t{262144}}) {
    bench.AddNorms((int64_t{1} << 26) / width, width);
    bench.AddSoftmax((int64_t{1} << 26) / width, width);
  }
  bench.AddNorms(8, 4096);
  bench.Run();
  return 0;
}

}  // namespace
}  // namespace lossd

int main(int argc, char** argv) { return lossd::Main(argc, argv); }
