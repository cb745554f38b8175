// Every kind of loss at 8 x 512 tokens beside the cuBLASLt products that it needs: interleaved, hot, medians. Then the losses on
// log-probabilities, beside an empty kernel.
// Usage: bench_losses [seconds [workspace_bytes [part of a name[|part of a name]...]]]; the name "plain" stands for the losses on
// log-probabilities
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/text_format.h"
#include "kernels/core/registry.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/gpu/bench_data.h"
#include "tests/gpu/bench_device.h"
#include "tests/gpu/bench_kernels.h"
#include "tests/gpu/bench_products.h"

namespace lossd {
namespace {

constexpr int64_t kSequences = 8, kLength = 512, kRows = kSequences * kLength;
constexpr int64_t kHidden = 4096, kVocab = 128256;
constexpr int64_t kStudentHidden = 2048;
const char kPlain[] = "plain";

// A tensor in text format, and its memory.
class Tensors {
 public:
  template <class T>
  std::string Input(const char* dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
    const uint64_t id = regions_.Add(values.size() * sizeof(T));
    Check(cudaMemcpy(regions_.data(id), values.data(), values.size() * sizeof(T),
                     cudaMemcpyHostToDevice));
    return Text(dtype, shape, id);
  }
  std::string Output(const char* dtype, std::vector<int64_t> shape, uint64_t element_bytes) {
    uint64_t bytes = element_bytes;
    for (const int64_t extent : shape) bytes *= static_cast<uint64_t>(extent);
    return Text(dtype, shape, regions_.Add(bytes));
  }
  const Regions& regions() const { return regions_; }
  void* last() const { return last_; }

 private:
  std::string Text(const char* dtype, const std::vector<int64_t>& shape, uint64_t id) {
    last_ = regions_.data(id);
    std::string text = absl::StrCat("{dtype: ", dtype);
    for (const int64_t extent : shape) absl::StrAppend(&text, " shape: ", extent);
    return absl::StrCat(text, " region {region: ", id, " byte_offset: 0}}");
  }
  Regions regions_;
  void* last_ = nullptr;
};

struct Row {
  std::string name;
  v1::Op op;
  int products = 0;  // 0: none, the time in microseconds
  std::function<absl::Status(CublasLt&)> yardstick;
};

v1::Op Parse(const std::string& text) {
  v1::Op op;
  if (google::protobuf::TextFormat::ParseFromString(text, &op)) return op;
  std::fprintf(stderr, "not an operation: %s\n", text.c_str());
  std::exit(1);
}

class Bench {
 public:
  static constexpr uint64_t kFlushedBytes = uint64_t{256} << 20;

  Bench(int64_t seconds, uint64_t workspace, std::string only)
      : seconds_(seconds),
        only_(std::move(only)),
        cuda_(OrDie(CudaBackend::Create({0, workspace}))),
        registry_(OrDie(Registry::Create())),
        library_(OrDie(CublasLt::Create(uint64_t{64} << 20, false))),
        by_table_(OrDie(CublasLt::Create(uint64_t{64} << 20))) {}

  void MakeHeads();
  void MakeDistillation();
  void MakeDivergences();
  void MakePlain(int64_t rows, int64_t sequences);
  void Run();
  void RunPlain();

 private:
  void Add(const std::string& name, int products, const std::string& text,
           std::function<absl::Status(CublasLt&)> yardstick) {
    for (const absl::string_view part : absl::StrSplit(only_, '|')) {
      if (!absl::StrContains(name, part)) continue;
      rows_.push_back({name, Parse(text), products, yardstick});
      return;
    }
  }
  std::string RunOnce(const v1::Op& op);
  cudaStream_t stream() const { return cuda_->device().stream(); }
  void RunBesideProducts(Row& row);
  void RunAlone(Row& row);
  // Device time in microseconds of what is enqueued while the device is busy, median; with `cold` behind a write of 256 MB.
  double DeviceTime(bool cold, const std::function<void()>& enqueue);
  size_t CountLaunches(AdmittedOp& admitted);

  const int64_t seconds_;
  const std::string only_;
  std::unique_ptr<CudaBackend> cuda_;
  const Registry registry_;
  CublasLt library_, by_table_;
  Tensors tensors_;
  std::vector<Row> rows_;
  DeviceBuffer flushed_ = OrDie(DeviceBuffer::Create(kFlushedBytes, "allocate what flushes"));
  std::vector<std::unique_ptr<BenchData>> data_;
  BenchProducts policy_, student_;
  void *hidden_ = nullptr, *weight_ = nullptr, *ref_hidden_ = nullptr, *ref_weight_ = nullptr,
       *teacher_hidden_ = nullptr, *teacher_weight_ = nullptr, *logits_ = nullptr;
};

std::string Bench::RunOnce(const v1::Op& op) {
  Backend backend = cuda_->backend();
  AdmittedOp admitted = OrDie(Admit(registry_, op, tensors_.regions()));
  v1::OpReply reply;
  Check(RunOp(admitted, {}, backend, &reply));
  return reply.plan();
}

// Logits of another head over the same rows.
absl::Status Multiply(CublasLt& with, const void* hidden, const void* weight, int64_t hidden_size,
                      void* logits, cudaStream_t stream) {
  Product product;
  product.inputs = product.output = DType::kBF16;
  product.m = kRows, product.n = kVocab, product.k = hidden_size;
  product.a = {hidden, hidden_size, false};
  product.b = {weight, hidden_size, true};
  product.d = logits, product.d_stride = kVocab;
  return with.Run(product, stream);
}

void Bench::MakeHeads() {
  data_.push_back(std::make_unique<BenchData>(kRows, kHidden, kVocab, 8.6));
  const BenchData& data = *data_.back();
  const std::string hidden = tensors_.Input("BF16", {kRows, kHidden}, data.hidden);
  hidden_ = tensors_.last();
  const std::string weight = tensors_.Input("BF16", {kVocab, kHidden}, data.weight);
  weight_ = tensors_.last();
  std::vector<uint16_t> other = data.hidden;
  for (size_t i = 0; i < other.size(); i += 7) other[i] ^= 0x40;
  const std::string ref_hidden = tensors_.Input("BF16", {kRows, kHidden}, other);
  ref_hidden_ = tensors_.last();
  other = data.weight;
  for (size_t i = 0; i < other.size(); i += 5) other[i] ^= 0x20;
  const std::string ref_weight = tensors_.Input("BF16", {kVocab, kHidden}, other);
  ref_weight_ = tensors_.last();
  const std::string target = tensors_.Input("I32", {kRows}, data.target);
  std::vector<int32_t> ends;
  for (int64_t b = 0; b <= kSequences; ++b) ends.push_back(static_cast<int32_t>(b * kLength));
  const std::string sequences = tensors_.Input("I32", {kSequences + 1}, ends);
  const std::string desirable =
      tensors_.Input("U8", {kSequences}, std::vector<uint8_t>{1, 0, 1, 1, 0, 0, 1, 0});
  const std::string baseline = tensors_.Input("F32", {1}, std::vector<float>{0.1f});
  std::vector<float> values(kRows);
  for (int64_t i = 0; i < kRows; ++i) values[i] = i % 3 == 0 ? 0.7f : -0.4f;
  const std::string advantage = tensors_.Input("F32", {kRows}, values);
  for (int64_t i = 0; i < kRows; ++i) values[i] = -1.5f - 0.001f * static_cast<float>(i % 100);
  const std::string old = tensors_.Input("F32", {kRows}, values);
  const std::string loss = tensors_.Output("F32", {1}, 4);
  const std::string dx = tensors_.Output("BF16", {kRows, kHidden}, 2);
  void* const grad_hidden = tensors_.last();
  const std::string dw = tensors_.Output("BF16", {kVocab, kHidden}, 2);
  void* const grad_weight = tensors_.last();
  tensors_.Output("BF16", {kRows, kVocab}, 2);
  logits_ = tensors_.last();
  policy_ = {kRows, kHidden, kVocab, hidden_, weight_, logits_, grad_hidden, grad_weight};

  const std::string head = absl::StrCat("linear {hidden ", hidden, " weight ", weight,
                                        "} head {target ", target, "} gradients {grad_hidden ", dx,
                                        " grad_weight ", dw, "} results {loss ", loss, "} ");
  const std::string reference =
      absl::StrCat("reference {ref_hidden ", ref_hidden, " ref_weight ", ref_weight, "} ");
  const auto three = [this](CublasLt& with) { return policy_.Run(with, stream()); };
  const auto four = [this](CublasLt& with) {
    LOSSD_RETURN_IF_ERROR(Multiply(with, ref_hidden_, ref_weight_, kHidden, logits_, stream()));
    return policy_.Run(with, stream());
  };
  const auto pairs = [&](const std::string& options, const std::string& terms) {
    return absl::StrCat("linear_preference_loss {", head, options, " preference {cu_seqlens ",
                        sequences, " pairing: PAIRING_HALVES denominator: 4 ", terms, "}}");
  };
  Add("DPO, reference head", 4, pairs(reference, "terms {type: PREFERENCE_TYPE_SIGMOID beta: 0.1}"),
      four);
  Add("DPO, ref_logprob", 3,
      pairs("",
            absl::StrCat("ref_logprob ", old, " terms {type: PREFERENCE_TYPE_SIGMOID beta: 0.1}")),
      three);
  Add("KTO, reference head", 4,
      absl::StrCat("linear_unpaired_loss {", head, reference, "unpaired {cu_seqlens ", sequences,
                   " desirable ", desirable, " kl_baseline ", baseline,
                   " type: UNPAIRED_TYPE_KTO beta: 0.1 denominator: 8}}"),
      four);
  Add("ORPO", 3,
      pairs("",
            "reference_free: true terms {type: PREFERENCE_TYPE_ORPO beta: 0.1 length_average: "
            "true} nll_coef: 1 nll_denominator: 2048"),
      three);
  Add("SimPO", 3,
      pairs("",
            "reference_free: true terms {type: PREFERENCE_TYPE_SIGMOID beta: 2 margin: 0.5 "
            "length_average: true}"),
      three);
  Add("CPO", 3,
      pairs("",
            "reference_free: true terms {type: PREFERENCE_TYPE_SIGMOID beta: 0.1} nll_coef: 1 "
            "nll_denominator: 2048"),
      three);
  const auto policy = [&](const char* options) {
    return absl::StrCat("linear_policy_loss {", head, "policy {cu_seqlens ", sequences,
                        " advantage ", advantage, " old_logprob ", old, " denominator: 4096 ",
                        options, "}}");
  };
  Add("GRPO (PPO)", 3, policy("kind: POLICY_KIND_PPO clip_low: 0.2 clip_high: 0.2"), three);
  Add("GSPO", 3,
      policy("kind: POLICY_KIND_GSPO clip_low: 0.0003 clip_high: 0.0004 gspo_gradient: "
             "GSPO_GRADIENT_THROUGH_MEAN"),
      three);
  Add("cross entropy", 3,
      absl::StrCat("linear_cross_entropy {linear {hidden ", hidden, " weight ", weight,
                   "} head {target ", target, "} gradients {grad_hidden ", dx, " grad_weight ", dw,
                   "} loss ", loss, " reduction: REDUCTION_MEAN denominator: 4096}"),
      three);
}

void Bench::MakeDistillation() {
  data_.push_back(std::make_unique<BenchData>(kRows, kStudentHidden, kVocab, 8.6));
  const BenchData& data = *data_.back();
  const std::string hidden = tensors_.Input("BF16", {kRows, kStudentHidden}, data.hidden);
  void* const student_hidden = tensors_.last();
  const std::string weight = tensors_.Input("BF16", {kVocab, kStudentHidden}, data.weight);
  void* const student_weight = tensors_.last();
  const std::string teacher_hidden =
      tensors_.Input("BF16", {kRows, kHidden}, data_.front()->hidden);
  teacher_hidden_ = tensors_.last();
  const std::string teacher_weight =
      tensors_.Input("BF16", {kVocab, kHidden}, data_.front()->weight);
  teacher_weight_ = tensors_.last();
  const std::string loss = tensors_.Output("F32", {1}, 4);
  const std::string dx = tensors_.Output("BF16", {kRows, kStudentHidden}, 2);
  void* const grad_hidden = tensors_.last();
  const std::string dw = tensors_.Output("BF16", {kVocab, kStudentHidden}, 2);
  void* const grad_weight = tensors_.last();
  const std::string dw32 = tensors_.Output("F32", {kVocab, kStudentHidden}, 4);
  student_ = {kRows,          kStudentHidden, kVocab,      student_hidden,
              student_weight, logits_,        grad_hidden, grad_weight};
  const auto four = [this](CublasLt& with) {
    LOSSD_RETURN_IF_ERROR(
        Multiply(with, teacher_hidden_, teacher_weight_, kHidden, logits_, stream()));
    return student_.Run(with, stream());
  };
  const auto distill = [&](const std::string& grad, const std::string& options) {
    return absl::StrCat("linear_distill_loss {linear {hidden ", hidden, " weight ", weight,
                        "} gradients {grad_hidden ", dx, " grad_weight ", grad, "} outputs {loss ",
                        loss, "} teacher {teacher_hidden ", teacher_hidden, " teacher_weight ",
                        teacher_weight, "} distill {", options,
                        "} reduction: REDUCTION_MEAN denominator: 4096}");
  };
  const char* const jsd = "divergence: DIVERGENCE_JSD beta: 0.5";
  Add("JSD, grad_weight f32", 4, distill(dw32, jsd), four);
  Add("JSD", 4, distill(dw, jsd), four);
  Add("forward KL, grad_weight f32", 4, distill(dw32, "divergence: DIVERGENCE_FORWARD_KL"), four);
  Add("reverse KL, grad_weight f32", 4, distill(dw32, "divergence: DIVERGENCE_REVERSE_KL"), four);
  Add("TVD, grad_weight f32", 4, distill(dw32, "divergence: DIVERGENCE_TVD"), four);
}

// Memory-bound: two tensors of logits read, one gradient written.
void Bench::MakeDivergences() {
  const std::string student = tensors_.Output("BF16", {kRows, kVocab}, 2);
  void* const student_logits = tensors_.last();
  const std::string teacher = tensors_.Output("BF16", {kRows, kVocab}, 2);
  void* const teacher_logits = tensors_.last();
  Check(Multiply(library_, hidden_, weight_, kHidden, student_logits, stream()));
  Check(Multiply(library_, ref_hidden_, ref_weight_, kHidden, teacher_logits, stream()));
  const std::string pair = absl::StrCat(
      "{pair {student ", student, " teacher ", teacher,
      " student_kind: DISTRIBUTION_KIND_LOGITS teacher_kind: DISTRIBUTION_KIND_LOGITS} outputs "
      "{loss ",
      tensors_.Output("F32", {1}, 4), " grad_student ", tensors_.Output("BF16", {kRows, kVocab}, 2),
      "} ");
  Add("KlDivergence", 0, absl::StrCat("kl_divergence ", pair, "}"), nullptr);
  Add("JensenShannon", 0, absl::StrCat("jensen_shannon ", pair, "beta: 0.5}"), nullptr);
  Add("TotalVariation", 0, absl::StrCat("total_variation ", pair, "}"), nullptr);
}

void Bench::MakePlain(int64_t rows, int64_t sequences) {
  std::vector<float> values(rows);
  for (int64_t i = 0; i < rows; ++i) values[i] = i % 3 == 0 ? 0.7f : -0.4f;
  const std::string advantage = tensors_.Input("F32", {rows}, values);
  for (int64_t i = 0; i < rows; ++i) values[i] = -1.5f - 0.001f * static_cast<float>(i % 100);
  const std::string old = tensors_.Input("F32", {rows}, values);
  for (int64_t i = 0; i < rows; ++i) values[i] -= 0.0005f * static_cast<float>(i % 7);
  const std::string logprob = tensors_.Input("F32", {rows}, values);
  std::vector<int32_t> ends;
  std::vector<uint8_t> judgements;
  for (int64_t b = 0; b <= sequences; ++b) {
    ends.push_back(static_cast<int32_t>(b * (rows / sequences)));
    judgements.push_back(b % 2 == 0 ? 1 : 0);
  }
  judgements.pop_back();
  const std::string cu_seqlens = tensors_.Input("I32", {sequences + 1}, ends);
  const std::string desirable = tensors_.Input("U8", {sequences}, judgements);
  const std::string loss = tensors_.Output("F32", {1}, 4);
  const std::string d_logprob = tensors_.Output("F32", {rows}, 4);
  const std::string outputs = absl::StrCat(" results {loss ", loss, "} d_logprob ", d_logprob, "}");
  const auto policy = [&](const char* name, const char* options) {
    Add(absl::StrCat("PolicyLoss, ", name, ", ", rows), 0,
        absl::StrCat("policy_loss {logprob ", logprob, " policy {cu_seqlens ", cu_seqlens,
                     " advantage ", advantage, " old_logprob ", old, " denominator: 4096 ", options,
                     "}", outputs),
        nullptr);
  };
  policy("PPO", "kind: POLICY_KIND_PPO clip_low: 0.2 clip_high: 0.2");
  policy("GSPO",
         "kind: POLICY_KIND_GSPO clip_low: 0.0003 clip_high: 0.0004 gspo_gradient: "
         "GSPO_GRADIENT_THROUGH_MEAN");
  Add(absl::StrCat("PreferenceLoss, DPO, ", rows), 0,
      absl::StrCat("preference_loss {logprob ", logprob, " preference {cu_seqlens ", cu_seqlens,
                   " pairing: PAIRING_HALVES denominator: 4 ref_logprob ", old,
                   " terms {type: PREFERENCE_TYPE_SIGMOID beta: 0.1}}", outputs),
      nullptr);
  Add(absl::StrCat("UnpairedLoss, BCO, ", rows), 0,
      absl::StrCat("unpaired_loss {logprob ", logprob, " unpaired {cu_seqlens ", cu_seqlens,
                   " desirable ", desirable, " ref_logprob ", old,
                   " type: UNPAIRED_TYPE_BCO beta: 0.1 denominator: 8}", outputs),
      nullptr);
}

void Bench::RunBesideProducts(Row& row) {
  const std::string plan = RunOnce(row.op);
  Timer timer;
  std::vector<double> ours, first, table;
  for (const auto start = std::chrono::steady_clock::now();
       std::chrono::steady_clock::now() - start < std::chrono::seconds(seconds_);) {
    for (CublasLt* with : {&library_, &by_table_}) {
      (with == &library_ ? first : table).push_back(timer.Milliseconds(stream(), [&] {
        Check(row.yardstick(*with));
      }));
      ours.push_back(timer.Milliseconds(stream(), [&] { RunOnce(row.op); }));
    }
  }
  double mine = 0, base = 0, by_table = 0;
  const std::string text = Summary(ours, &mine);
  Summary(first, &base);
  Summary(table, &by_table);
  std::printf("%-28s %s  %d products %7.3f  ratio %.3f (by the table %.3f)\n    plan: %s\n",
              row.name.c_str(), text.c_str(), row.products, base, mine / base, mine / by_table,
              plan.c_str());
  std::fflush(stdout);
}

double Bench::DeviceTime(bool cold, const std::function<void()>& enqueue) {
  Timer timer;
  std::vector<double> times;
  for (int i = 0; i < 300; ++i) {
    if (cold) Check(cudaMemsetAsync(flushed_.data(), i, kFlushedBytes, stream()));
    // Until all is enqueued, so that only the device's own time counts.
    Check(LaunchBusy(kBusyMicroseconds, stream()));
    const double ms = timer.Milliseconds(stream(), enqueue);
    if (i >= 100) times.push_back(ms * 1000);
  }
  double median = 0;
  Summary(times, &median);
  return median;
}

size_t Bench::CountLaunches(AdmittedOp& admitted) {
  Backend backend = cuda_->backend();
  RunOptions options;
  options.host_may_wait = false;
  backend.device->workspace().Reset();
  LaunchedOp launched;
  cudaGraph_t graph = nullptr;
  Check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed));
  Check(Launch(admitted, options, backend, &launched));
  Check(cudaStreamEndCapture(stream(), &graph));
  size_t nodes = 0;
  Check(cudaGraphGetNodes(graph, nullptr, &nodes));
  Check(cudaGraphDestroy(graph));
  return nodes;
}

void Bench::RunAlone(Row& row) {
  Backend backend = cuda_->backend();
  backend.launches = nullptr;
  RunOptions options;
  options.host_may_wait = false;
  AdmittedOp admitted = OrDie(Admit(registry_, row.op, tensors_.regions()));
  const auto enqueue = [&] {
    LaunchedOp launched;
    backend.device->workspace().Reset();
    Check(Launch(admitted, options, backend, &launched));
  };
  enqueue();
  const size_t launches = CountLaunches(admitted);
  std::printf("%-28s %8.1f us on the device, %.1f with a cold cache, launches: %zu\n",
              row.name.c_str(), DeviceTime(false, enqueue), DeviceTime(true, enqueue), launches);
}

void Bench::RunPlain() {
  const auto empty = [this] { Check(LaunchEmpty(stream())); };
  std::printf("%-28s %8.1f us on the device, %.1f with a cold cache\n", "an empty kernel",
              DeviceTime(false, empty), DeviceTime(true, empty));
  for (Row& row : rows_) RunAlone(row);
}

void Bench::Run() {
  std::printf("%lld x %lld tokens, H %lld, V %lld, bf16; distillation student H %lld\n",
              static_cast<long long>(kSequences), static_cast<long long>(kLength),
              static_cast<long long>(kHidden), static_cast<long long>(kVocab),
              static_cast<long long>(kStudentHidden));
  // Hot first.
  for (const auto start = std::chrono::steady_clock::now();
       std::chrono::steady_clock::now() - start < std::chrono::seconds(3);) {
    Check(policy_.Run(library_, stream()));
    Check(cudaStreamSynchronize(stream()));
  }
  PrintClocks();
  for (Row& row : rows_) row.products > 0 ? RunBesideProducts(row) : RunAlone(row);
  PrintClocks();
}

int Main(int argc, char** argv) {
  const int64_t seconds = argc > 1 ? std::atoll(argv[1]) : 2;
  const uint64_t workspace = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2200000000;
  const std::string only = argc > 3 ? argv[3] : "";
  Bench bench(seconds, workspace, only == kPlain ? "" : only);
  const auto make_plain = [&] {
    bench.MakePlain(kRows, kSequences);
    bench.MakePlain(16 * kRows, 2 * kSequences);
    Check(cudaDeviceSynchronize());
  };
  if (only == kPlain) {
    make_plain();
    bench.RunPlain();
    return 0;
  }
  bench.MakeHeads();
  bench.MakeDistillation();
  bench.MakeDivergences();
  make_plain();
  bench.Run();
  return 0;
}

}  // namespace
}  // namespace lossd

int main(int argc, char** argv) { return lossd::Main(argc, argv); }
