#include "kernels/cuda/tune.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/buffer.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/stream.h"

namespace lossd {
namespace {

// Rows of a product with batch_invariant, as head_plan.cc has them.
constexpr int64_t kInvariantRows = 256;
constexpr double kWarmSeconds = 3;
// A measurement repeats the product for about so long.
constexpr double kMeasureSeconds = 0.01;
// Of two that differ by less the library's own order decides.
constexpr double kSame = 0.997;

class Timer {
 public:
  static absl::StatusOr<Timer> Create() {
    Timer timer;
    for (cudaEvent_t* event : {&timer.start_, &timer.end_}) {
      LOSSD_RETURN_IF_CUDA_ERROR(cudaEventCreate(event), "create an event");
    }
    return timer;
  }
  Timer(Timer&& other) noexcept
      : start_(std::exchange(other.start_, nullptr)), end_(std::exchange(other.end_, nullptr)) {}
  ~Timer() {
    for (cudaEvent_t event : {start_, end_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }

  // Seconds of one of `count` runs in a row.
  template <class Run>
  absl::StatusOr<double> Measure(cudaStream_t stream, int count, const Run& run) {
    LOSSD_RETURN_IF_CUDA_ERROR(cudaEventRecord(start_, stream), "record an event");
    for (int i = 0; i < count; ++i) LOSSD_RETURN_IF_ERROR(run());
    LOSSD_RETURN_IF_CUDA_ERROR(cudaEventRecord(end_, stream), "record an event");
    LOSSD_RETURN_IF_CUDA_ERROR(cudaEventSynchronize(end_), "wait for the product");
    float milliseconds = 0;
    LOSSD_RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&milliseconds, start_, end_), "read a time");
    return milliseconds / 1e3 / count;
  }

 private:
  Timer() = default;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// Bits of a number of a 16-bit or 32-bit type, by cutting off.
uint32_t Encode(float value, DType dtype) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if (dtype == DType::kF32) return bits;
  if (dtype == DType::kBF16) return bits >> 16;
  // fp16 of a normal number: none here is large or small enough for anything else, but zero.
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127 + 15;
  if (exponent <= 0 || exponent >= 31) return bits >> 31 << 15;
  return bits >> 31 << 15 | static_cast<uint32_t>(exponent) << 10 | (bits >> 13 & 0x3ff);
}

// Device memory full of normal numbers: what the multipliers draw, and so how fast a GPU at its power limit runs, depends on them.
absl::StatusOr<DeviceBuffer> MakeOperand(uint64_t bytes, DType dtype, cudaStream_t stream) {
  LOSSD_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                         DeviceBuffer::Create(bytes, "allocate an operand of the products"));
  const uint64_t size = SizeOf(dtype);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::byte> pattern(std::min<uint64_t>(bytes, uint64_t{4} << 20) / size * size);
  for (uint64_t at = 0; at < pattern.size(); at += size) {
    const uint32_t bits = Encode(normal(random), dtype);
    std::memcpy(pattern.data() + at, &bits, size);
  }
  LOSSD_RETURN_IF_CUDA_ERROR(
      cudaMemcpyAsync(buffer.data(), pattern.data(), pattern.size(), cudaMemcpyDefault, stream),
      "fill an operand");
  for (uint64_t done = pattern.size(); done < bytes;) {
    const uint64_t next = std::min(done, bytes - done);
    LOSSD_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(buffer.data() + done, buffer.data(), next,
                                               cudaMemcpyDeviceToDevice, stream),
                               "fill an operand");
    done += next;
  }
  LOSSD_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream), "fill an operand");
  return buffer;
}

struct Operands {
  DeviceBuffer a, b, d;
};

absl::StatusOr<Operands> MakeOperands(Product* product, cudaStream_t stream) {
  const auto bytes = [](int64_t rows, int64_t stride, DType dtype) {
    return static_cast<uint64_t>(rows) * static_cast<uint64_t>(stride) * SizeOf(dtype);
  };
  const int64_t a_rows = product->a.transposed ? product->k : product->m;
  const int64_t b_rows = product->b.transposed ? product->n : product->k;
  Operands out;
  LOSSD_ASSIGN_OR_RETURN(out.a, MakeOperand(bytes(a_rows, product->a.stride, product->inputs),
                                            product->inputs, stream));
  LOSSD_ASSIGN_OR_RETURN(out.b, MakeOperand(bytes(b_rows, product->b.stride, product->inputs),
                                            product->inputs, stream));
  LOSSD_ASSIGN_OR_RETURN(out.d,
                         DeviceBuffer::Create(bytes(product->m, product->d_stride, product->output),
                                              "allocate the result of the products"));
  product->a.data = out.a.data();
  product->b.data = out.b.data();
  product->d = out.d.data();
  return out;
}

struct Candidate {
  Algorithm algorithm;
  std::vector<double> seconds;  // by round

  double Median() {
    std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
    return seconds[seconds.size() / 2];
  }
};

// Measures products one after the other on one GPU.
class Tuner {
 public:
  static absl::StatusOr<Tuner> Create(int rounds) {
    LOSSD_ASSIGN_OR_RETURN(Timer timer, Timer::Create());
    Tuner tuner(std::move(timer), rounds);
    LOSSD_ASSIGN_OR_RETURN(tuner.stream_, Stream::Create());
    // What the products have in a workspace of any usual size.
    LOSSD_ASSIGN_OR_RETURN(
        tuner.lt_, CublasLt::Create(CudaBackend::ProductBytes(CudaOptions().workspace_bytes)));
    return tuner;
  }

  // *progress says what was found.
  absl::StatusOr<AlgorithmLine> Measure(const ProductShape& shape, std::string* progress) {
    Product product = ProductOf(shape);
    LOSSD_ASSIGN_OR_RETURN(const Operands operands, MakeOperands(&product, stream_.get()));
    LOSSD_ASSIGN_OR_RETURN(const Algorithm chosen, lt_.ChosenAlgorithm(product));
    LOSSD_ASSIGN_OR_RETURN(const std::vector<Algorithm> proposed, lt_.ListAlgorithms(product));
    std::vector<Candidate> candidates;
    for (const Algorithm& algorithm : proposed) candidates.push_back({algorithm, {}});
    LOSSD_RETURN_IF_ERROR(Warm(product));
    for (int round = 0; round < rounds_; ++round) {
      for (Candidate& candidate : candidates) {
        LOSSD_RETURN_IF_ERROR(MeasureOnce(product, &candidate));
      }
    }
    const auto seconds_of = [&](const Algorithm& algorithm) {
      for (Candidate& candidate : candidates) {
        if (candidate.algorithm == algorithm) return candidate.Median();
      }
      return std::numeric_limits<double>::quiet_NaN();
    };
    Candidate* best = &candidates[0];
    for (Candidate& candidate : candidates) {
      if (candidate.Median() < kSame * best->Median()) best = &candidate;
    }
    AlgorithmLine line;
    line.product = shape;
    line.algorithm = best->algorithm;
    const double built_in = seconds_of(chosen);
    line.comment =
        absl::StrFormat("%.4f ms, the best of %d; %.3f of the build's choice", best->Median() * 1e3,
                        candidates.size(), best->Median() / built_in);
    *progress = absl::StrCat(Describe(shape), ": ", line.comment);
    return line;
  }

 private:
  Tuner(Timer timer, int rounds) : timer_(std::move(timer)), rounds_(rounds) {}

  absl::Status MeasureOnce(const Product& product, Candidate* candidate) {
    LOSSD_RETURN_IF_ERROR(lt_.SetAlgorithm(product, candidate->algorithm));
    const auto run = [&] { return lt_.Run(product, stream_.get()); };
    LOSSD_ASSIGN_OR_RETURN(const double once, timer_.Measure(stream_.get(), 1, run));
    const int count = static_cast<int>(std::clamp(kMeasureSeconds / once, 1.0, 1000.0));
    LOSSD_ASSIGN_OR_RETURN(const double seconds, timer_.Measure(stream_.get(), count, run));
    candidate->seconds.push_back(seconds);
    return absl::OkStatus();
  }

  // Before the first measurement of all; the measurements keep it so.
  absl::Status Warm(const Product& product) {
    const auto until = std::chrono::steady_clock::now() +
                       std::chrono::duration<double>(warm_ ? 0.2 : kWarmSeconds);
    while (std::chrono::steady_clock::now() < until) {
      for (int i = 0; i < 8; ++i) LOSSD_RETURN_IF_ERROR(lt_.Run(product, stream_.get()));
      LOSSD_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_.get()), "wait for products");
    }
    warm_ = true;
    return absl::OkStatus();
  }

  Timer timer_;
  int rounds_;
  bool warm_ = false;
  Stream stream_;
  CublasLt lt_;
};

}  // namespace

std::vector<ProductShape> TunedProducts(const std::vector<TuneShape>& shapes) {
  std::vector<ProductShape> products;
  const auto add = [&](const TuneShape& of, ProductKind kind, int64_t rows, DType output,
                       bool fixed_order) {
    const ProductShape product = {kind, rows, of.hidden, of.vocab, of.model, output, fixed_order};
    if (std::find(products.begin(), products.end(), product) == products.end()) {
      products.push_back(product);
    }
  };
  for (const TuneShape& shape : shapes) {
    add(shape, ProductKind::kLogits, shape.rows, DType::kF32, false);
    add(shape, ProductKind::kLogits, kInvariantRows, DType::kF32, true);
    for (const ProductKind kind : {ProductKind::kGradHidden, ProductKind::kGradWeight}) {
      add(shape, kind, shape.rows, DType::kF32, false);
      add(shape, kind, shape.rows, shape.model, false);
    }
  }
  return products;
}

absl::StatusOr<AlgorithmTable> Tune(const TuneOptions& options) {
  LOSSD_ASSIGN_OR_RETURN(const int devices, CudaBackend::CountDevices());
  if (devices <= options.device) {
    return absl::NotFoundError("no GPU that this process can use: there is nothing to measure");
  }
  LOSSD_RETURN_IF_CUDA_ERROR(cudaSetDevice(options.device), "select the device");
  cudaDeviceProp properties;
  LOSSD_RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, options.device),
                             "read the device's properties");
  AlgorithmTable table(properties.name, static_cast<int64_t>(cublasLtGetVersion()));
  LOSSD_ASSIGN_OR_RETURN(Tuner tuner, Tuner::Create(options.rounds));
  for (const ProductShape& shape : TunedProducts(options.shapes)) {
    std::string progress;
    LOSSD_ASSIGN_OR_RETURN(AlgorithmLine line, tuner.Measure(shape, &progress));
    if (options.progress) options.progress(progress);
    table.Add(std::move(line));
  }
  return table;
}

}  // namespace lossd
