// The row pass of a pair alone: fp32 tiles of logits to dz in bf16, and bf16 tensors to a gradient in bf16. Each kind back to back, and
// again behind products that bring the clock down to where it is within a loss; first a few rows against the formulas in double.
// Usage: bench_pair [rows [columns [name]]]
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/pair_kernels.h"
#include "tests/gpu/bench_data.h"
#include "tests/gpu/bench_device.h"

namespace lossd {
namespace {

// Rows of the host's data, repeated on the device.
constexpr int64_t kPool = 24;
constexpr float kBeta = 0.5f;
constexpr double kCoefficient = 0.01;

struct Side {
  std::vector<float> logits;  // [kPool, columns]
  DeviceBuffer f32, bf16;     // [rows, stride]
};

struct Kind {
  const char* name;
  Divergence kind;
};
constexpr Kind kKinds[] = {{"forward KL", Divergence::kForwardKl},
                           {"reverse KL", Divergence::kReverseKl},
                           {"mixed", Divergence::kMixed},
                           {"JSD", Divergence::kJsd},
                           {"TVD", Divergence::kTvd}};

class Bench {
 public:
  Bench(int64_t rows, int64_t columns, std::string only)
      : rows_(rows), columns_(columns), stride_((columns + 63) / 64 * 64), only_(std::move(only)) {}
  void Run();

 private:
  void Make();
  void Upload(Side* side);
  PairLaunch MakeLaunch(Divergence kind, bool wide, bool wide_dz) const;
  void Check(const Kind& kind, bool wide, bool wide_dz);
  double Time(const Kind& kind, bool wide, bool behind_products);

  const int64_t rows_, columns_, stride_;
  const std::string only_;
  Side student_, teacher_;
  DeviceBuffer dz_, index_, rows_out_, record_, product_;
  cudaStream_t stream_ = nullptr;
  int cluster_ = 1;
  std::unique_ptr<CublasLt> products_;
};

DeviceBuffer Allocate(uint64_t bytes) {
  return OrDie(DeviceBuffer::Create(bytes, "allocate the benchmark's tensors"));
}

void Bench::Upload(Side* side) {
  side->f32 = Allocate(rows_ * stride_ * 4);
  side->bf16 = Allocate(rows_ * stride_ * 2);
  std::vector<uint16_t> narrow(side->logits.size());
  InParallel(kPool, [&](int64_t i) {
    for (int64_t j = i * columns_; j < (i + 1) * columns_; ++j) narrow[j] = ToBf16(side->logits[j]);
  });
  const auto copy = [this](auto* to, const auto* from) {
    for (int64_t r = 0; r < rows_; ++r) {
      const auto* row = r < kPool ? from + r * columns_ : to + (r - kPool) * stride_;
      lossd::Check(cudaMemcpyAsync(to + r * stride_, row, columns_ * sizeof(*to), cudaMemcpyDefault,
                                   stream_));
    }
  };
  copy(reinterpret_cast<float*>(side->f32.data()), side->logits.data());
  copy(reinterpret_cast<uint16_t*>(side->bf16.data()), narrow.data());
  lossd::Check(cudaStreamSynchronize(stream_));
}

void Bench::Make() {
  lossd::Check(cudaStreamCreate(&stream_));
  student_.logits.resize(kPool * columns_);
  teacher_.logits.resize(kPool * columns_);
  InParallel(kPool, [&](int64_t i) {
    std::mt19937 random(static_cast<unsigned>(i));
    std::normal_distribution<float> normal;
    // Some rows are near each other, some far apart; some are far from 0; some hide columns, the first ones too.
    const float distance = 0.01f * static_cast<float>(1 << i % 8);
    const float offset = i % 5 == 4 ? 90.0f : 0.0f;
    for (int64_t j = 0; j < columns_; ++j) {
      const float z = 2 * normal(random);
      teacher_.logits[i * columns_ + j] = z + offset;
      student_.logits[i * columns_ + j] = z + distance * normal(random);
      if (i % 6 == 5 && (j / 512 % 3 == 0 || j % 64 < 8)) {
        teacher_.logits[i * columns_ + j] = student_.logits[i * columns_ + j] = -INFINITY;
      }
      if (i % 6 == 3 && j % 20000 < 5) {
        teacher_.logits[i * columns_ + j] += 120;
        student_.logits[i * columns_ + j] += 120;
      }
    }
  });
  Upload(&student_);
  Upload(&teacher_);
  dz_ = Allocate(rows_ * stride_ * 4);
  product_ = Allocate(uint64_t{3} * 8192 * 8192 * 2);
  std::vector<uint16_t> noise(uint64_t{2} * 8192 * 8192);
  InParallel(64, [&](int64_t i) {
    std::mt19937 random(static_cast<unsigned>(i));
    for (size_t j = i * noise.size() / 64; j < (i + 1) * noise.size() / 64; ++j) {
      noise[j] = static_cast<uint16_t>(0x3f80 ^ (random() & 0x80ff));
    }
  });
  lossd::Check(cudaMemcpy(product_.data(), noise.data(), noise.size() * 2, cudaMemcpyDefault));
  std::vector<int32_t> index(rows_);
  for (int64_t r = 0; r < rows_; ++r) index[r] = static_cast<int32_t>(r);
  index_ = Allocate(rows_ * 4);
  lossd::Check(cudaMemcpy(index_.data(), index.data(), rows_ * 4, cudaMemcpyDefault));
  // value, degenerate, negative, counted, live; 8 bytes each are enough.
  rows_out_ = Allocate(5 * rows_ * 8);
  lossd::Check(cudaMemset(rows_out_.data(), 1, 5 * rows_ * 8));
  record_ = Allocate(sizeof(ResultRecord));
  lossd::Check(cudaMemset(record_.data(), 0, sizeof(ResultRecord)));
  int limit = 0;
  lossd::Check(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  lossd::Check(PreparePairKernels(limit));
  cluster_ = LargestPairCluster(true);
  products_ = std::make_unique<CublasLt>(OrDie(CublasLt::Create(uint64_t{64} << 20)));
}

RowsView RowsOf(const void* data, int64_t rows, int64_t width, int64_t stride) {
  RowsView view;
  view.data = const_cast<void*>(data);
  view.dtype = DType::kBF16;
  view.rows = rows;
  view.width = width;
  view.lead_shape[0] = rows;
  view.lead_strides[0] = stride;
  view.present = true;
  return view;
}

PairLaunch Bench::MakeLaunch(Divergence kind, bool wide, bool wide_dz) const {
  PairLaunch launch;
  const auto side = [&](const Side& from) {
    PairValues values;
    values.columns = static_cast<int32_t>(columns_);
    if (wide) {
      values.tile = reinterpret_cast<const float*>(from.f32.data());
      values.tile_stride = stride_;
    } else {
      values.values = RowsOf(from.bf16.data(), rows_, columns_, stride_);
    }
    return values;
  };
  launch.student = side(student_);
  launch.teacher = side(teacher_);
  launch.program.divergence = MakeDivergence<float>(kind, kBeta, 0.5);
  launch.program.denominator = 1 / kCoefficient;
  launch.program.has_head = wide;
  std::byte* const out = rows_out_.data();
  launch.program.value = reinterpret_cast<float*>(out);
  launch.program.degenerate = reinterpret_cast<uint8_t*>(out + rows_ * 8);
  launch.program.negative = reinterpret_cast<uint8_t*>(out + rows_ * 16);
  launch.columns = static_cast<int32_t>(columns_);
  launch.rows = rows_;
  launch.record = reinterpret_cast<const ResultRecord*>(record_.data());
  if (wide) {
    launch.index = reinterpret_cast<const int32_t*>(index_.data());
    launch.live = reinterpret_cast<uint8_t*>(out + rows_ * 32);
    launch.written = static_cast<int32_t>(stride_);
    launch.dz_mode = wide_dz ? DzMode::kF32 : DzMode::kBF16;
    launch.dz = dz_.data();
    launch.dz_stride = stride_;
  } else {
    launch.counted = reinterpret_cast<const uint8_t*>(out + rows_ * 24);
    launch.written = static_cast<int32_t>(columns_);
    launch.grad = RowsOf(dz_.data(), rows_, columns_, stride_);
  }
  int limit = 0;
  lossd::Check(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  ChoosePairShape(cluster_, limit, &launch);
  return launch;
}

// Value and dz of a row by TermsOf, SlopeOf and ValueOf.
double Reference(Divergence name, const float* student, const float* teacher, bool wide,
                 int64_t columns, std::vector<double>* dz) {
  const DivergenceKind<double> kind = MakeDivergence<double>(name, kBeta, 0.5);
  const auto distribution = [&](const float* raw) {
    std::vector<Outcome<double>> out(columns);
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < columns; ++j) {
      out[j].log = wide ? raw[j] : FromBf16(ToBf16(raw[j]));
      max = std::max(max, out[j].log);
    }
    for (auto& column : out) sum += std::exp(column.log - max);
    for (auto& column : out) {
      column.log -= max + std::log(sum);
      column.p = std::exp(column.log);
    }
    return out;
  };
  const auto q = distribution(student);
  const auto p = distribution(teacher);
  DivergenceSums<double> sums;
  dz->resize(columns);
  for (int64_t j = 0; j < columns; ++j) {
    const DivergenceTerms<double> terms = TermsOf(kind, p[j], q[j]);
    sums.x += terms.x;
    sums.y += terms.y;
    (*dz)[j] = SlopeOf(kind, p[j].p, terms);
  }
  const DivergenceValue<double> value = ValueOf(kind, sums);
  for (int64_t j = 0; j < columns; ++j) {
    (*dz)[j] = kCoefficient * ((*dz)[j] - q[j].p * value.total);
  }
  return value.value;
}

void Bench::Check(const Kind& kind, bool wide, bool wide_dz) {
  lossd::Check(cudaMemset(dz_.data(), 0xff, dz_.bytes()));
  bool lean = false;
  lossd::Check(LaunchPairRows(MakeLaunch(kind.kind, wide, wide_dz), stream_, &lean));
  lossd::Check(cudaStreamSynchronize(stream_));
  std::vector<float> values(rows_);
  lossd::Check(cudaMemcpy(values.data(), rows_out_.data(), rows_ * 4, cudaMemcpyDefault));
  const int64_t row_bytes = stride_ * (wide_dz ? 4 : 2);
  std::vector<std::byte> dz(kPool * row_bytes);
  int64_t differ = 0;
  for (int64_t i = 0; i < kPool; ++i) {
    // The last row of these data, which every cluster has long reached.
    const int64_t r = i + (rows_ - 1 - i) / kPool * kPool;
    lossd::Check(
        cudaMemcpy(&dz[i * row_bytes], dz_.data() + r * row_bytes, row_bytes, cudaMemcpyDefault));
    for (int64_t k = i; k < rows_; k += kPool) {
      differ += std::memcmp(&values[k], &values[i], 4) != 0;
    }
  }
  const auto dz_at = [&](int64_t i, int64_t j) {
    const std::byte* row = &dz[i * row_bytes];
    return wide_dz ? reinterpret_cast<const float*>(row)[j]
                   : FromBf16(reinterpret_cast<const uint16_t*>(row)[j]);
  };
  std::vector<double> loss_errors(kPool), dz_errors(kPool);
  InParallel(kPool, [&](int64_t i) {
    std::vector<double> want;
    const double value = Reference(kind.kind, &student_.logits[i * columns_],
                                   &teacher_.logits[i * columns_], wide, columns_, &want);
    // A small KL is a difference of two numbers of order 1.
    const double floor = kind.kind == Divergence::kJsd ? 0 : 0.1;
    loss_errors[i] = std::fabs(values[i] - value) / (std::fabs(value) + floor);
    want.resize(wide ? stride_ : columns_);
    double difference = 0, norm = 0;
    for (size_t j = 0; j < want.size(); ++j) {
      const double d = dz_at(i, j) - want[j];
      difference += d * d;
      norm += want[j] * want[j];
    }
    dz_errors[i] = std::sqrt(difference / norm);
  });
  // A NaN wins.
  const auto largest = [](const std::vector<double>& errors) {
    double most = 0;
    for (const double error : errors) most = error <= most ? most : error;
    return most;
  };
  std::printf("  %s, dz %s: largest relative error of the loss %.1e, of dz %.1e%s%s\n",
              wide ? "f32" : "bf16", wide_dz ? "f32" : "bf16", largest(loss_errors),
              largest(dz_errors), lean ? "" : ", not lean",
              differ == 0 ? "" : ", equal rows differ");
}

double Bench::Time(const Kind& kind, bool wide, bool behind_products) {
  const PairLaunch launch = MakeLaunch(kind.kind, wide, false);
  Timer timer;
  std::vector<double> times;
  bool lean = false;
  uint16_t* const data = reinterpret_cast<uint16_t*>(product_.data());
  Product product;
  product.inputs = product.output = DType::kBF16;
  product.m = product.n = product.k = 8192;
  product.a = {data, 8192, false};
  product.b = {data + 8192 * 8192, 8192, true};
  product.d = data + 2 * 8192 * 8192;
  product.d_stride = 8192;
  for (int i = 0; i < (behind_products ? 25 : 40); ++i) {
    for (int k = 0; behind_products && k < 6; ++k) lossd::Check(products_->Run(product, stream_));
    times.push_back(
        timer.Milliseconds(stream_, [&] { lossd::Check(LaunchPairRows(launch, stream_, &lean)); }));
  }
  double median = 0;
  Summary({times.begin() + 5, times.end()}, &median);
  return median;
}

void Bench::Run() {
  Make();
  std::printf("%lld rows, %lld columns, cluster %d\n", static_cast<long long>(rows_),
              static_cast<long long>(columns_), cluster_);
  for (const Kind& kind : kKinds) {
    if (std::string(kind.name).find(only_) == std::string::npos) continue;
    std::printf("%s\n", kind.name);
    Check(kind, true, true);
    Check(kind, true, false);
    Check(kind, false, false);
    for (const bool wide : {true, false}) {
      const double bytes =
          static_cast<double>(rows_) * static_cast<double>(columns_) * (wide ? 10 : 6);
      const double alone = Time(kind, wide, false);
      const double behind = Time(kind, wide, true);
      std::printf("  %-4s %8.1f us, %5.0f GB/s; behind products %8.1f us, %5.0f GB/s\n",
                  wide ? "f32" : "bf16", alone * 1000, bytes / alone / 1e6, behind * 1000,
                  bytes / behind / 1e6);
    }
    std::fflush(stdout);
  }
}

int Main(int argc, char** argv) {
  const int64_t rows = argc > 1 ? std::atoll(argv[1]) : 4096;
  const int64_t columns = argc > 2 ? std::atoll(argv[2]) : 128256;
  Bench(rows, columns, argc > 3 ? argv[3] : "").Run();
  return 0;
}

}  // namespace
}  // namespace lossd

int main(int argc, char** argv) { return lossd::Main(argc, argv); }
