// What a call costs beside its kernels: a tiny operation by stream, in shared memory and inline, from one caller and from four.
// Usage: call_bench LOSSD_BINARY [server flags...]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "client/cpp/client.h"

namespace lossd {
namespace {

using Clock = std::chrono::steady_clock;

template <class T>
T OrDie(absl::StatusOr<T> result) {
  if (!result.ok()) {
    std::cerr << result.status() << std::endl;
    std::exit(1);
  }
  return *std::move(result);
}

void Print(const char* what, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const size_t n = times.size();
  std::printf("  %-36s %8.1f us  (10%% %.1f, 90%% %.1f, 99%% %.1f, n %zu)\n", what, times[n / 2],
              times[n / 10], times[n * 9 / 10], times[n * 99 / 100], n);
}

// LinearLogprob of one row: a few microseconds of work.
v1::LinearLogprob MakeOp(const Buffer& buffer) {
  v1::LinearLogprob op;
  *op.mutable_linear()->mutable_hidden() = buffer.Tensor(v1::F32, {1, 8}, 0);
  *op.mutable_linear()->mutable_weight() = buffer.Tensor(v1::F32, {8, 8}, 256);
  *op.mutable_head()->mutable_target() = buffer.Tensor(v1::I32, {1}, 1024);
  *op.mutable_logprob() = buffer.Tensor(v1::F32, {1}, 2048);
  return op;
}

std::vector<double> Measure(Client& client, const google::protobuf::Message& op, int calls) {
  std::vector<double> times;
  for (int i = 0; i < calls + 200; ++i) {
    const auto begin = Clock::now();
    OrDie(client.Run(op));
    if (i >= 200) {
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
  }
  return times;
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: call_bench LOSSD_BINARY [server flags...]\n";
    return 2;
  }
  PrivateServer::Options options;
  options.binary = argv[1];
  options.flags.assign(argv + 2, argv + argc);
  const auto server = OrDie(PrivateServer::Start(options));
  const auto client = OrDie(Client::Connect({.address = server->address(), .name = "call_bench"}));
  std::printf("call overhead, backend %s\n", client->server_info().backend().c_str());
  const auto buffer = OrDie(client->CreateBuffer(4096));
  const v1::LinearLogprob op = MakeOp(*buffer);
  Print("stream, shared memory", Measure(*client, op, 3000));
  v1::LinearLogprob inline_op = op;
  inline_op.mutable_linear()->mutable_hidden()->set_inline_data(std::string(32, '\0'));
  inline_op.mutable_linear()->mutable_weight()->set_inline_data(std::string(256, '\0'));
  inline_op.mutable_head()->mutable_target()->set_inline_data(std::string(4, '\0'));
  inline_op.mutable_logprob()->clear_place();
  Print("stream, inline", Measure(*client, inline_op, 3000));
  std::vector<std::vector<double>> times(4);
  std::vector<std::thread> threads;
  for (auto& row : times) {
    threads.emplace_back([&] {
      const auto own = OrDie(client->CreateBuffer(4096));
      row = Measure(*client, MakeOp(*own), 1500);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> all;
  for (const auto& row : times) all.insert(all.end(), row.begin(), row.end());
  Print("stream, shared memory, 4 callers", all);
  return 0;
}

}  // namespace
}  // namespace lossd

int main(int argc, char** argv) { return lossd::Main(argc, argv); }
