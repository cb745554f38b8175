// What the tests of the client share: small calls, a server to talk to, and addresses for it.
#ifndef LOSSD_TESTS_INTEGRATION_CLIENT_FIXTURE_H_
#define LOSSD_TESTS_INTEGRATION_CLIENT_FIXTURE_H_

#include <gtest/gtest.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cpp/client.h"
#include "client/cpp/status.h"

namespace lossd {

inline constexpr int64_t kN = 3;
inline constexpr int64_t kH = 4;
inline constexpr int64_t kV = 5;

inline v1::Tensor Floats(const std::vector<int64_t>& shape,
                         const std::function<float(int64_t)>& element) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::F32);
  int64_t count = 1;
  for (const int64_t extent : shape) {
    tensor.add_shape(extent);
    count *= extent;
  }
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    const float value = element(i);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  tensor.set_inline_data(bytes);
  return tensor;
}

inline v1::Tensor Ids(const std::vector<int64_t>& ids) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::I64);
  tensor.add_shape(static_cast<int64_t>(ids.size()));
  tensor.set_inline_data(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int64_t));
  return tensor;
}

inline v1::Tensor Output(const std::vector<int64_t>& shape) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::F32);
  for (const int64_t extent : shape) tensor.add_shape(extent);
  return tensor;
}

inline std::vector<float> ValuesOf(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

inline void FillHead(v1::LinearInput* linear, v1::HeadOptions* head) {
  *linear->mutable_hidden() = Floats({kN, kH}, [](int64_t i) { return std::sin(0.7f * i); });
  *linear->mutable_weight() = Floats({kV, kH}, [](int64_t i) { return std::cos(0.3f * i); });
  *head->mutable_target() = Ids({1, 4, -100});
}

inline v1::LinearCrossEntropy CrossEntropy() {
  v1::LinearCrossEntropy op;
  FillHead(op.mutable_linear(), op.mutable_head());
  *op.mutable_loss() = Output({1});
  *op.mutable_lse() = Output({kN});
  *op.mutable_gradients()->mutable_grad_weight() = Output({kV, kH});
  return op;
}

// Two tensors of logits and the divergence's outputs, in any of the operations that compare them.
template <class M>
void FillDivergence(M* op) {
  v1::DistributionPair* pair = op->mutable_pair();
  *pair->mutable_student() = Floats({kN, kV}, [](int64_t i) { return std::sin(0.9f * i); });
  *pair->mutable_teacher() = Floats({kN, kV}, [](int64_t i) { return std::cos(0.8f * i); });
  pair->set_student_kind(v1::DISTRIBUTION_KIND_LOGITS);
  pair->set_teacher_kind(v1::DISTRIBUTION_KIND_LOGITS);
  *op->mutable_outputs()->mutable_grad_student() = Output({kN, kV});
}

inline void AddDivergences(std::vector<v1::Op>* ops) {
  v1::LinearDistillLoss* distill = ops->emplace_back().mutable_linear_distill_loss();
  FillHead(distill->mutable_linear(), distill->mutable_head());
  *distill->mutable_teacher()->mutable_teacher_logits() =
      Floats({kN, kV}, [](int64_t i) { return std::cos(0.8f * i); });
  distill->mutable_distill()->set_divergence(v1::DIVERGENCE_FORWARD_KL);
  *distill->mutable_gradients()->mutable_grad_weight() = Output({kV, kH});
  FillDivergence(ops->emplace_back().mutable_kl_divergence());
  FillDivergence(ops->emplace_back().mutable_jensen_shannon());
  ops->back().mutable_jensen_shannon()->set_beta(0.5);
  FillDivergence(ops->emplace_back().mutable_total_variation());
}

// One call of each operation of the protocol.
inline std::vector<v1::Op> EveryOp() {
  std::vector<v1::Op> ops(4);
  v1::LinearLogprob* logprob = ops[0].mutable_linear_logprob();
  FillHead(logprob->mutable_linear(), logprob->mutable_head());
  *logprob->mutable_logprob() = Output({kN});
  v1::LinearLogprobBackward* backward = ops[1].mutable_linear_logprob_backward();
  FillHead(backward->mutable_linear(), backward->mutable_head());
  *backward->mutable_lse() = Floats({kN}, [](int64_t) { return 1.5f; });
  *backward->mutable_d_logprob() = Floats({kN}, [](int64_t) { return 1.0f; });
  *backward->mutable_gradients()->mutable_grad_hidden() = Output({kN, kH});
  *ops[2].mutable_linear_cross_entropy() = CrossEntropy();
  v1::LinearPolicyLoss* policy = ops[3].mutable_linear_policy_loss();
  FillHead(policy->mutable_linear(), policy->mutable_head());
  policy->mutable_policy()->set_kind(v1::POLICY_KIND_REINFORCE);
  *policy->mutable_policy()->mutable_advantage() = Floats({kN}, [](int64_t i) { return 1.0f - i; });
  *policy->mutable_results()->mutable_loss() = Output({1});
  AddDivergences(&ops);
  return ops;
}

// A tensor's bytes moved to `offset` of the buffer.
inline void Move(v1::Tensor* tensor, Buffer& buffer, uint64_t offset) {
  ASSERT_TRUE(buffer.Write(offset, tensor->inline_data()).ok());
  tensor->mutable_region()->set_region(buffer.region());
  tensor->mutable_region()->set_byte_offset(offset);
}

// The inputs of CrossEntropy, and grad_weight at byte 1024, in the buffer.
inline v1::LinearCrossEntropy InBuffer(Buffer& buffer) {
  v1::LinearCrossEntropy op = CrossEntropy();
  Move(op.mutable_linear()->mutable_hidden(), buffer, 0);
  Move(op.mutable_linear()->mutable_weight(), buffer, 256);
  Move(op.mutable_head()->mutable_target(), buffer, 512);
  *op.mutable_gradients()->mutable_grad_weight() = buffer.Tensor(v1::F32, {kV, kH}, 1024);
  return op;
}

inline std::vector<float> ReadFloats(Buffer& buffer, uint64_t offset, size_t count) {
  std::vector<float> values(count);
  const absl::Status status = buffer.Read(offset, reinterpret_cast<std::byte*>(values.data()),
                                          values.size() * sizeof(float));
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

inline std::unique_ptr<Client> Connect(const std::string& address,
                                       absl::Duration call_timeout = absl::Seconds(20)) {
  ClientOptions options;
  options.address = address;
  options.name = "client_test";
  options.connect_timeout = absl::Seconds(5);
  options.call_timeout = call_timeout;
  auto client = Client::Connect(options);
  EXPECT_TRUE(client.ok()) << client.status();
  return client.ok() ? *std::move(client) : nullptr;
}

inline void ExpectField(const absl::Status& status, absl::StatusCode code,
                        const std::string& field) {
  EXPECT_EQ(status.code(), code) << status;
  const auto detail = ErrorDetailOf(status);
  ASSERT_TRUE(detail.has_value()) << status;
  EXPECT_EQ(detail->field(), field) << status;
  EXPECT_FALSE(detail->must_be().empty()) << status;
}

// A server at an address of our choice, so that another can follow it there.
class ServerAt {
 public:
  explicit ServerAt(const std::string& address, const std::vector<std::string>& flags = {}) {
    char self[PATH_MAX] = {};
    EXPECT_GT(readlink("/proc/self/exe", self, sizeof self - 1), 0);
    std::string binary = self;
    binary = absl::StrCat(binary.substr(0, binary.rfind('/')), "/lossd");
    std::vector<std::string> words = {binary,        "--listen", address,
                                      "--workspace", "64M",      "--parent-death"};
    words.insert(words.end(), flags.begin(), flags.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, binary.c_str(), nullptr, nullptr, arguments.data(), environ), 0);
    for (int i = 0; i < 1000; ++i) {
      ClientOptions options;
      options.address = address;
      options.connect_timeout = absl::Seconds(2);
      if (Client::Connect(options).ok()) return;
      absl::SleepFor(absl::Milliseconds(10));
    }
    ADD_FAILURE() << "no server at " << address;
  }
  ~ServerAt() { Kill(); }

  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  pid_t pid() const { return pid_; }
  void Terminate() { kill(pid_, SIGTERM); }
  // Waits for the server's end: its exit code, or -1 if a signal ended it.
  int WaitForExit() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = 0;
};

inline std::string FreeTcpAddress() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(socket);
  return absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
}

// A socket path of our own, and nothing left of it afterwards.
class SocketFolder {
 public:
  SocketFolder() : folder_(P_tmpdir "/lossd-test-XXXXXX") {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }
  ~SocketFolder() {
    for (const char* name : {"/x.sock", "/x.sock.session", "/x.sock.lock"}) {
      unlink((folder_ + name).c_str());
    }
    rmdir(folder_.c_str());
  }
  std::string address() const { return absl::StrCat("unix:", folder_, "/x.sock"); }

 private:
  std::string folder_;
};

}  // namespace lossd

#endif  // LOSSD_TESTS_INTEGRATION_CLIENT_FIXTURE_H_
