// A client process and a server process on one GPU: results over CUDA IPC, order by events, what the boundary costs, and the whole
// LinearCrossEntropy beside the three products. Usage: remote_bench LOSSD_BINARY [small] [client-spin-us=N] [server flags...]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/client.h"
#include "kernels/core/registry.h"
#include "kernels/core/result_record.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/gpu/bench_data.h"
#include "tests/gpu/bench_device.h"
#include "tests/gpu/bench_products.h"

namespace lossd {
namespace {

using Clock = std::chrono::steady_clock;

int failures = 0;

void Expect(bool good, const char* what) {
  std::printf("  %-4s %s\n", good ? "ok" : "FAIL", what);
  if (!good) ++failures;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string Spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  char text[80];
  std::snprintf(text, sizeof(text), "%9.1f us  (10%% %.1f, 90%% %.1f, n %zu)",
                values[values.size() / 2], values[values.size() / 10],
                values[values.size() * 9 / 10], values.size());
  return text;
}

// Device memory of this process that the server has opened.
struct Shared {
  void* data = nullptr;
  std::unique_ptr<Buffer> buffer;
};

Shared Share(Client& client, uint64_t bytes, bool writable) {
  static uint64_t next_id = 1;
  Shared shared;
  bytes = (bytes + (2 << 20) - 1) / (2 << 20) * (2 << 20);
  Check(cudaMalloc(&shared.data, bytes));
  Check(cudaMemset(shared.data, 0, bytes));
  cudaIpcMemHandle_t handle;
  Check(cudaIpcGetMemHandle(&handle, shared.data));
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0));
  shared.buffer = OrDie(client.RegisterDevice(
      absl::string_view(reinterpret_cast<const char*>(&handle), sizeof(handle)), bytes,
      absl::string_view(properties.uuid.bytes, 16), next_id++, writable));
  return shared;
}

// The events of a session: one that this process records, one that the server records.
struct Events {
  cudaEvent_t ready;
  cudaEvent_t done;
  explicit Events(Client& client) {
    Check(cudaEventCreateWithFlags(&ready, cudaEventInterprocess | cudaEventDisableTiming));
    cudaIpcEventHandle_t handle;
    Check(cudaIpcGetEventHandle(&handle, ready));
    const auto done_handles = OrDie(client.RegisterEvents(
        {std::string(reinterpret_cast<const char*>(&handle), sizeof(handle))}));
    std::memcpy(&handle, done_handles.at(0).data(), sizeof(handle));
    Check(cudaIpcOpenEventHandle(&done, handle));
  }
};

// A cross-entropy call over shared memory, and the memory.
struct Call {
  int64_t n, h, v;
  Shared hidden, weight, target, grad_hidden, grad_weight, loss, record;
  v1::LinearCrossEntropy op;

  Call(Client& client, int64_t rows, int64_t width, int64_t vocab)
      : n(rows),
        h(width),
        v(vocab),
        hidden(Share(client, n * h * 2, false)),
        weight(Share(client, v * h * 2, false)),
        target(Share(client, n * 4, false)),
        grad_hidden(Share(client, n * h * 2, true)),
        grad_weight(Share(client, v * h * 4, true)),
        loss(Share(client, 4, true)),
        record(Share(client, sizeof(ResultRecord), true)) {
    *op.mutable_linear()->mutable_hidden() = hidden.buffer->Tensor(v1::BF16, {n, h});
    *op.mutable_linear()->mutable_weight() = weight.buffer->Tensor(v1::BF16, {v, h});
    *op.mutable_head()->mutable_target() = target.buffer->Tensor(v1::I32, {n});
    *op.mutable_gradients()->mutable_grad_hidden() = grad_hidden.buffer->Tensor(v1::BF16, {n, h});
    *op.mutable_gradients()->mutable_grad_weight() = grad_weight.buffer->Tensor(v1::F32, {v, h});
    *op.mutable_loss() = loss.buffer->Tensor(v1::F32, {1});
  }

  v1::RunRequest Enqueued() const {
    v1::RunRequest request;
    *request.add_ops()->mutable_linear_cross_entropy() = op;
    request.set_completion(v1::ENQUEUED);
    request.mutable_ready()->set_event(0);
    request.set_done_event(0);
    *request.mutable_result_record() = record.buffer->Tensor(v1::U8, {sizeof(ResultRecord)});
    return request;
  }

  void Fill(const BenchData& data) {
    Check(cudaMemcpy(hidden.data, data.hidden.data(), n * h * 2, cudaMemcpyHostToDevice));
    Check(cudaMemcpy(weight.data, data.weight.data(), v * h * 2, cudaMemcpyHostToDevice));
    Check(cudaMemcpy(target.data, data.target.data(), n * 4, cudaMemcpyHostToDevice));
  }

  std::vector<char> Results() const {
    std::vector<char> bytes(n * h * 2 + v * h * 4 + 4);
    Check(cudaMemcpy(bytes.data(), grad_hidden.data, n * h * 2, cudaMemcpyDeviceToHost));
    Check(
        cudaMemcpy(bytes.data() + n * h * 2, grad_weight.data, v * h * 4, cudaMemcpyDeviceToHost));
    Check(cudaMemcpy(bytes.data() + n * h * 2 + v * h * 4, loss.data, 4, cudaMemcpyDeviceToHost));
    return bytes;
  }
  void Poison() {
    Check(cudaMemset(grad_hidden.data, 0xff, n * h * 2));
    Check(cudaMemset(grad_weight.data, 0xff, v * h * 4));
    Check(cudaMemset(loss.data, 0xff, 4));
    Check(cudaDeviceSynchronize());
  }
};

std::string Bytes(const void* data, uint64_t bytes) {
  return std::string(static_cast<const char*>(data), bytes);
}

// The same call with every byte in the message, as a client without a GPU would send it.
std::vector<char> RunInline(Client& client, const Call& call, const BenchData& data) {
  v1::LinearCrossEntropy op = call.op;
  op.mutable_linear()->mutable_hidden()->set_inline_data(
      Bytes(data.hidden.data(), call.n * call.h * 2));
  op.mutable_linear()->mutable_weight()->set_inline_data(
      Bytes(data.weight.data(), call.v * call.h * 2));
  op.mutable_head()->mutable_target()->set_inline_data(Bytes(data.target.data(), call.n * 4));
  op.mutable_gradients()->mutable_grad_hidden()->clear_place();
  op.mutable_gradients()->mutable_grad_weight()->clear_place();
  op.mutable_loss()->clear_place();
  const auto reply = OrDie(client.Run(op));
  std::string all;
  for (const char* name : {"grad_hidden", "grad_weight", "loss"})
    all += reply.outputs().at(name).inline_data();
  return {all.begin(), all.end()};
}

void TestResults(Client& client, Events& events, cudaStream_t stream) {
  std::printf("results over CUDA IPC (N 300, H 256, V 1000, bf16)\n");
  const BenchData data(300, 256, 1000, 8.6);
  Call call(client, 300, 256, 1000);
  call.Fill(data);
  call.Poison();
  OrDie(client.Run(call.op));
  const std::vector<char> done = call.Results();
  Expect(done == RunInline(client, call, data), "the same bits by handle and inline");

  call.Poison();
  Check(cudaEventRecord(events.ready, stream));
  OrDie(client.Run(call.Enqueued(), absl::Seconds(20)));
  Check(cudaStreamWaitEvent(stream, events.done));
  Check(cudaStreamSynchronize(stream));
  Expect(call.Results() == done, "the same bits with completion ENQUEUED");
  ResultRecord record;
  Check(cudaMemcpy(&record, call.record.data, sizeof(record), cudaMemcpyDeviceToHost));
  Expect(record.code == 0 && record.count == 300, "the record says 300 rows and no error");

  // The inputs arrive on the client's stream behind slow work: the server must not read before the ready point.
  call.Poison();
  Check(cudaMemset(call.hidden.data, 0, call.n * call.h * 2));
  void *slow, *source;
  const uint64_t slow_bytes = uint64_t{8} << 30;
  Check(cudaMalloc(&slow, slow_bytes));
  Check(cudaMalloc(&source, call.n * call.h * 2));
  Check(cudaMemcpy(source, data.hidden.data(), call.n * call.h * 2, cudaMemcpyHostToDevice));
  Check(cudaDeviceSynchronize());
  for (int i = 0; i < 10; ++i) Check(cudaMemsetAsync(slow, i, slow_bytes, stream));
  Check(cudaMemcpyAsync(call.hidden.data, source, call.n * call.h * 2, cudaMemcpyDeviceToDevice,
                        stream));
  Check(cudaEventRecord(events.ready, stream));
  const auto begin = Clock::now();
  OrDie(client.Run(call.Enqueued(), absl::Seconds(20)));
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  const bool early = cudaEventQuery(events.ready) == cudaErrorNotReady;
  Check(cudaStreamWaitEvent(stream, events.done));
  Check(cudaStreamSynchronize(stream));
  Expect(call.Results() == done, "the ready point is honoured");
  std::printf("       ENQUEUED came back after %.2f ms, %s the client's work was done\n", ms,
              early ? "before" : "after");
  Expect(early, "ENQUEUED does not wait for the client's stream");

  // A wrong label that only the GPU can see: the record names it, accumulated memory keeps its value.
  call.op.mutable_gradients()->set_grad_weight_mode(v1::GRAD_MODE_ACCUMULATE);
  std::vector<int32_t> wrong = data.target;
  wrong[17] = 1000;
  Check(cudaMemcpy(call.target.data, wrong.data(), call.n * 4, cudaMemcpyHostToDevice));
  const std::vector<char> before = call.Results();
  Check(cudaEventRecord(events.ready, stream));
  OrDie(client.Run(call.Enqueued(), absl::Seconds(20)));
  Check(cudaStreamWaitEvent(stream, events.done));
  Check(cudaStreamSynchronize(stream));
  Check(cudaMemcpy(&record, call.record.data, sizeof(record), cudaMemcpyDeviceToHost));
  Expect(record.code == 3 && record.row == 17, "a wrong label is in the record with its row");
  const std::vector<char> after = call.Results();
  const auto weight_at = call.n * call.h * 2;
  Expect(std::equal(before.begin() + weight_at, before.begin() + weight_at + call.v * call.h * 4,
                    after.begin() + weight_at),
         "and grad_weight keeps its value");
  const auto refused = client.Run(call.op);
  Expect(refused.status().code() == absl::StatusCode::kInvalidArgument,
         "with DONE it is INVALID_ARGUMENT");
  Check(cudaFree(slow));
  Check(cudaFree(source));
}

void MeasureOverhead(Client& client, Events& events, cudaStream_t stream) {
  std::printf("overhead, LinearCrossEntropy N 16 H 64 V 128 (medians)\n");
  const BenchData data(16, 64, 128, 8.6);
  Call call(client, 16, 64, 128);
  call.Fill(data);
  void* scratch;
  Check(cudaMalloc(&scratch, 4 << 20));
  const v1::RunRequest request = call.Enqueued();
  std::vector<double> enqueue, trip, done, local;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  };
  for (int i = 0; i < 600; ++i) {
    const auto begin = Clock::now();
    Check(cudaMemsetAsync(scratch, i, 4 << 20, stream));
    Check(cudaEventRecord(events.ready, stream));
    const auto called = Clock::now();
    OrDie(client.Run(request, absl::Seconds(20)));
    if (i >= 100) enqueue.push_back(since(called));
    Check(cudaStreamWaitEvent(stream, events.done));
    Check(cudaStreamSynchronize(stream));
    if (i >= 100) trip.push_back(since(begin));
  }
  for (int i = 0; i < 600; ++i) {
    const auto begin = Clock::now();
    OrDie(client.Run(call.op));
    if (i >= 100) done.push_back(since(begin));
  }
  for (int i = 0; i < 600; ++i) {
    const auto begin = Clock::now();
    Check(cudaMemsetAsync(scratch, i, 4 << 20, stream));
    Check(cudaMemsetAsync(scratch, i, 4 << 20, stream));
    Check(cudaStreamSynchronize(stream));
    if (i >= 100) local.push_back(since(begin));
  }
  std::vector<double> idle;
  for (int i = 0; i < 600; ++i) {
    const auto called = Clock::now();
    OrDie(client.Run(request, absl::Seconds(20)));
    if (i >= 100) idle.push_back(since(called));
    Check(cudaStreamWaitEvent(stream, events.done));
    Check(cudaStreamSynchronize(stream));
  }
  std::printf("  enqueue on the stream                      %s\n", Spread(enqueue).c_str());
  std::printf("  the same, the client's stream idle         %s\n", Spread(idle).c_str());
  std::printf("  client kernel -> server op -> client sync  %s\n", Spread(trip).c_str());
  std::printf("  DONE, call to reply                        %s\n", Spread(done).c_str());
  std::printf("  two local kernels and a sync               %s\n", Spread(local).c_str());
  Check(cudaFree(scratch));
}

// The operation alone in this process, to tell the boundary's cost from the kernels'.
void MeasureLocal() {
  auto cuda = OrDie(CudaBackend::Create({0, uint64_t{256} << 20}));
  const Registry registry = OrDie(Registry::Create());
  const BenchData data(16, 64, 128, 8.6);
  struct Memory final : RegionResolver {
    void* data = nullptr;
    absl::StatusOr<Region> Resolve(uint64_t) const override {
      return Region{static_cast<std::byte*>(data), 1 << 20, true, nullptr};
    }
  } memory;
  Check(cudaMalloc(&memory.data, 1 << 20));
  Check(cudaMemset(memory.data, 0, 1 << 20));
  v1::Op op;
  v1::LinearCrossEntropy& ce = *op.mutable_linear_cross_entropy();
  const auto at = [](v1::Tensor* tensor, v1::DType dtype, std::vector<int64_t> shape,
                     uint64_t offset) {
    tensor->set_dtype(dtype);
    for (const int64_t extent : shape) tensor->add_shape(extent);
    tensor->mutable_region()->set_byte_offset(offset);
  };
  at(ce.mutable_linear()->mutable_hidden(), v1::BF16, {16, 64}, 0);
  at(ce.mutable_linear()->mutable_weight(), v1::BF16, {128, 64}, 65536);
  at(ce.mutable_head()->mutable_target(), v1::I32, {16}, 131072);
  at(ce.mutable_gradients()->mutable_grad_hidden(), v1::BF16, {16, 64}, 196608);
  at(ce.mutable_gradients()->mutable_grad_weight(), v1::F32, {128, 64}, 262144);
  at(ce.mutable_loss(), v1::F32, {1}, 524288);
  Check(cudaDeviceSynchronize());
  std::vector<double> times;
  Backend backend = cuda->backend();
  for (int i = 0; i < 600; ++i) {
    AdmittedOp admitted = OrDie(Admit(registry, op, memory));
    v1::OpReply reply;
    const auto begin = Clock::now();
    Check(RunOp(admitted, {}, backend, &reply));
    if (i >= 100)
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::printf("  the same op in this process, with sync     %s\n", Spread(times).c_str());
  times.clear();
  for (int i = 0; i < 600; ++i) {
    AdmittedOp admitted = OrDie(Admit(registry, op, memory));
    LaunchedOp launched;
    RunOptions options;
    options.host_may_wait = false;
    backend.device->workspace().Reset();
    const auto begin = Clock::now();
    Check(Launch(admitted, options, backend, &launched));
    if (i >= 100)
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    Check(backend.device->Synchronize());
  }
  std::printf("  its launches alone                         %s\n", Spread(times).c_str());
  Check(cudaFree(memory.data));
}

void MeasureLarge(Client& client, cudaStream_t stream) {
  const int64_t n = 8192, h = 4096, v = 128256;
  const BenchData data(n, h, v, 8.6);
  Call call(client, n, h, v);
  call.Fill(data);
  void *logits, *dw16, *dx16;
  Check(cudaMalloc(&logits, n * v * 2));
  Check(cudaMalloc(&dw16, v * h * 2));
  Check(cudaMalloc(&dx16, n * h * 2));
  CublasLt library = OrDie(CublasLt::Create(uint64_t{64} << 20, false));
  CublasLt by_table = OrDie(CublasLt::Create(uint64_t{64} << 20));
  const BenchProducts products = {n, h, v, call.hidden.data, call.weight.data, logits, dx16, dw16};
  std::vector<double> remote, plain, table, ratio, table_ratio;
  std::string plan;
  const auto start = Clock::now();
  for (int i = 0; i < 400; ++i) {
    const auto time_ms = [](auto work) {
      const auto begin = Clock::now();
      work();
      return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    };
    const auto multiply = [&](CublasLt& with) {
      Check(products.Run(with, stream));
      Check(cudaStreamSynchronize(stream));
    };
    v1::OpReply reply;
    // Every second time the yardstick is the library's own choice of algorithms.
    const bool own = i % 2 == 0;
    const double product_ms = time_ms([&] { multiply(own ? library : by_table); });
    const double remote_ms = time_ms([&] { reply = OrDie(client.Run(call.op)); });
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    if (elapsed < 3) continue;  // hot first
    (own ? plain : table).push_back(product_ms * 1000);
    remote.push_back(remote_ms * 1000);
    (own ? ratio : table_ratio).push_back(remote_ms / product_ms);
    plan = reply.plan();
    if (elapsed > 12) break;
  }
  std::printf(
      "LinearCrossEntropy from another process, N 8192 H 4096 V 128256 bf16, grad_weight f32, "
      "server workspace 2.2 GB\n");
  std::printf("  three products                             %s\n", Spread(plain).c_str());
  std::printf("    by our table of algorithms               %s\n", Spread(table).c_str());
  std::printf("  lossd, call to reply                       %s\n", Spread(remote).c_str());
  std::printf(
      "  ratio                                      %9.3f     (by the table %.3f; plan: %s)\n",
      Median(ratio), Median(table_ratio), plan.c_str());
  std::fflush(stdout);
  if (std::system(
          "nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv,noheader") !=
      0) {
    std::printf("  nvidia-smi is not there\n");
  }
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: remote_bench LOSSD_BINARY [small] [client-spin-us=N] [server flags...]\n";
    return 2;
  }
  bool small = false;
  std::optional<absl::Duration> spin;
  PrivateServer::Options options;
  options.binary = argv[1];
  options.flags = {"--backend=cuda", "--workspace=2200000000"};
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "small") {
      small = true;
    } else if (argument.rfind("client-spin-us=", 0) == 0) {
      spin = absl::Microseconds(std::atoi(argument.c_str() + 15));
    } else {
      options.flags.push_back(argument);
    }
  }
  const auto server = OrDie(PrivateServer::Start(options));
  const auto client =
      OrDie(Client::Connect({.address = server->address(), .name = "remote_bench", .spin = spin}));
  std::printf("server: %s, MPS %s\n", client->server_info().device().c_str(),
              client->server_info().mps() ? "on" : "off");
  cudaStream_t stream;
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  {
    Events events(*client);
    TestResults(*client, events, stream);
    MeasureOverhead(*client, events, stream);
    MeasureLocal();
    if (!small) MeasureLarge(*client, stream);
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lossd

int main(int argc, char** argv) { return lossd::Main(argc, argv); }
