// The C++ client against the real server, over each way that tensors can go.
#include "client/cpp/client.h"

#include <gtest/gtest.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cpp/status.h"
#include "grpcpp/grpcpp.h"
#include "lossd/v1/service.grpc.pb.h"

namespace lossd {
namespace {

constexpr int64_t kN = 3;
constexpr int64_t kH = 4;
constexpr int64_t kV = 5;

v1::Tensor Floats(const std::vector<int64_t>& shape, const std::function<float(int64_t)>& element) {
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

v1::Tensor Ids(const std::vector<int64_t>& ids) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::I64);
  tensor.add_shape(static_cast<int64_t>(ids.size()));
  tensor.set_inline_data(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int64_t));
  return tensor;
}

v1::Tensor Output(const std::vector<int64_t>& shape) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::F32);
  for (const int64_t extent : shape) tensor.add_shape(extent);
  return tensor;
}

std::vector<float> ValuesOf(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

void FillHead(v1::LinearInput* linear, v1::HeadOptions* head) {
  *linear->mutable_hidden() = Floats({kN, kH}, [](int64_t i) { return std::sin(0.7f * i); });
  *linear->mutable_weight() = Floats({kV, kH}, [](int64_t i) { return std::cos(0.3f * i); });
  *head->mutable_target() = Ids({1, 4, -100});
}

v1::LinearCrossEntropy CrossEntropy() {
  v1::LinearCrossEntropy op;
  FillHead(op.mutable_linear(), op.mutable_head());
  *op.mutable_loss() = Output({1});
  *op.mutable_lse() = Output({kN});
  *op.mutable_gradients()->mutable_grad_weight() = Output({kV, kH});
  return op;
}

// One call of each operation of the protocol.
std::vector<v1::Op> EveryOp() {
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
  return ops;
}

// A tensor's bytes moved to `offset` of the buffer.
void Move(v1::Tensor* tensor, Buffer& buffer, uint64_t offset) {
  ASSERT_TRUE(buffer.Write(offset, tensor->inline_data()).ok());
  tensor->mutable_region()->set_region(buffer.region());
  tensor->mutable_region()->set_byte_offset(offset);
}

// The inputs of CrossEntropy, and grad_weight at byte 1024, in the buffer.
v1::LinearCrossEntropy InBuffer(Buffer& buffer) {
  v1::LinearCrossEntropy op = CrossEntropy();
  Move(op.mutable_linear()->mutable_hidden(), buffer, 0);
  Move(op.mutable_linear()->mutable_weight(), buffer, 256);
  Move(op.mutable_head()->mutable_target(), buffer, 512);
  *op.mutable_gradients()->mutable_grad_weight() = buffer.Tensor(v1::F32, {kV, kH}, 1024);
  return op;
}

std::vector<float> ReadFloats(Buffer& buffer, uint64_t offset, size_t count) {
  std::vector<float> values(count);
  const absl::Status status = buffer.Read(offset, reinterpret_cast<std::byte*>(values.data()),
                                          values.size() * sizeof(float));
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

std::unique_ptr<Client> Connect(const std::string& address,
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

void ExpectField(const absl::Status& status, absl::StatusCode code, const std::string& field) {
  EXPECT_EQ(status.code(), code) << status;
  const auto detail = ErrorDetailOf(status);
  ASSERT_TRUE(detail.has_value()) << status;
  EXPECT_EQ(detail->field(), field) << status;
  EXPECT_FALSE(detail->must_be().empty()) << status;
}

// A server at an address of our choice, so that another can follow it there.
class ServerAt {
 public:
  explicit ServerAt(const std::string& address) {
    char self[PATH_MAX] = {};
    EXPECT_GT(readlink("/proc/self/exe", self, sizeof self - 1), 0);
    std::string binary = self;
    binary = absl::StrCat(binary.substr(0, binary.rfind('/')), "/lossd");
    std::vector<std::string> words = {binary,        "--listen", address,
                                      "--workspace", "64M",      "--parent-death"};
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

 private:
  pid_t pid_ = 0;
};

std::string FreeTcpAddress() {
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

// One server with a Unix socket and a TCP port for all tests that do not harm it.
class ClientTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    tcp_ = new std::string(FreeTcpAddress());
    PrivateServer::Options options;
    options.flags = {"--listen", *tcp_, "--workspace", "64M"};
    auto server = PrivateServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = server->release();
  }
  static void TearDownTestSuite() {
    delete server_;
    delete tcp_;
    server_ = nullptr;
  }
  void SetUp() override { ASSERT_NE(server_, nullptr); }

  static PrivateServer* server_;
  static std::string* tcp_;
};
PrivateServer* ClientTest::server_ = nullptr;
std::string* ClientTest::tcp_ = nullptr;

TEST_F(ClientTest, EveryOpIsReachableOverBothTransportsWithTheSameBits) {
  const auto unix_client = Connect(server_->address());
  const auto tcp_client = Connect(*tcp_);
  ASSERT_TRUE(unix_client && tcp_client);
  const auto listed = unix_client->ListOps();
  ASSERT_TRUE(listed.ok()) << listed.status();
  ASSERT_EQ(static_cast<size_t>(listed->ops_size()), EveryOp().size());
  for (const v1::Op& op : EveryOp()) {
    const auto here = unix_client->Run(op);
    const auto there = tcp_client->Run(op);
    ASSERT_TRUE(here.ok()) << here.status();
    ASSERT_TRUE(there.ok()) << there.status();
    ASSERT_FALSE(here->outputs().empty());
    for (const auto& [name, tensor] : here->outputs()) {
      EXPECT_FALSE(tensor.inline_data().empty()) << name;
      EXPECT_EQ(tensor.inline_data(), there->outputs().at(name).inline_data()) << name;
    }
    EXPECT_EQ(here->count(), there->count());
  }
}

TEST_F(ClientTest, ValuesAreThoseOfTheFormula) {
  const auto client = Connect(server_->address());
  ASSERT_NE(client, nullptr);
  v1::LinearCrossEntropy op = CrossEntropy();
  *op.mutable_linear()->mutable_hidden() = Floats({kN, kH}, [](int64_t) { return 0.0f; });
  const auto reply = client->Run(op);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_NEAR(ValuesOf(reply->outputs().at("loss").inline_data())[0], 2 * std::log(5.0), 1e-5);
  EXPECT_EQ(reply->count(), 2);
}

TEST_F(ClientTest, BuffersGiveTheBitsOfInlineTensors) {
  for (const std::string& address : {server_->address(), *tcp_}) {
    const auto client = Connect(address);
    ASSERT_NE(client, nullptr);
    const auto inlined = client->Run(CrossEntropy());
    ASSERT_TRUE(inlined.ok()) << inlined.status();
    auto buffer = client->CreateBuffer(4096);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ((*buffer)->data() != nullptr, address == server_->address());
    const auto reply = client->Run(InBuffer(**buffer));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->outputs().count("grad_weight"), 0u);
    EXPECT_EQ(ReadFloats(**buffer, 1024, kV * kH),
              ValuesOf(inlined->outputs().at("grad_weight").inline_data()));
    EXPECT_EQ(reply->outputs().at("loss").inline_data(),
              inlined->outputs().at("loss").inline_data());
  }
}

TEST_F(ClientTest, ServerHeldBuffersMoveLargeDataInOrder) {
  for (const std::string& address : {server_->address(), *tcp_}) {
    const auto client = Connect(address);
    ASSERT_NE(client, nullptr);
    auto buffer = client->AllocateAtServer(5 << 20, v1::HOST);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    std::string sent(4 << 20, '\0');
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>(i * 2654435761u >> 13);
    ASSERT_TRUE((*buffer)->Write(12345, sent).ok());
    std::string got(sent.size(), '\0');
    ASSERT_TRUE((*buffer)->Read(12345, reinterpret_cast<std::byte*>(got.data()), got.size()).ok());
    EXPECT_TRUE(got == sent);
    ExpectField((*buffer)->Write((5 << 20) - 1, "ab"), absl::StatusCode::kInvalidArgument,
                "byte_offset");
    ExpectField((*buffer)->Read(UINT64_MAX, reinterpret_cast<std::byte*>(got.data()), 2),
                absl::StatusCode::kInvalidArgument, "byte_offset");
  }
}

TEST_F(ClientTest, BadInputsNameTheirField) {
  const auto client = Connect(server_->address());
  ASSERT_NE(client, nullptr);
  auto buffer = client->CreateBuffer(4096);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  using Op = v1::LinearCrossEntropy;
  struct Case {
    const char* field;
    absl::StatusCode code;
    std::function<void(Op&)> spoil;
  };
  const auto bad = absl::StatusCode::kInvalidArgument;
  const std::vector<Case> cases = {
      {"hidden", bad, [](Op& op) { op.mutable_linear()->clear_hidden(); }},
      {"weight", bad, [](Op& op) { op.mutable_linear()->mutable_weight()->set_dtype(v1::I32); }},
      {"weight", bad, [](Op& op) { op.mutable_linear()->mutable_weight()->set_shape(1, kH + 1); }},
      {"hidden", bad,
       [](Op& op) { op.mutable_linear()->mutable_hidden()->mutable_inline_data()->pop_back(); }},
      {"target", bad,
       [](Op& op) {
         *op.mutable_head()->mutable_target() = Ids({1, kV, -100});
       }},
      {"temperature", bad, [](Op& op) { op.mutable_head()->set_temperature(-1); }},
      {"label_smoothing", bad, [](Op& op) { op.set_label_smoothing(std::nan("")); }},
      {"denominator", bad, [](Op& op) { op.set_denominator(3); }},
      {"grad_bias", bad,
       [](Op& op) { *op.mutable_gradients()->mutable_grad_bias() = Output({kV}); }},
      {"group", absl::StatusCode::kUnimplemented,
       [](Op& op) { op.mutable_head()->set_group("tp"); }},
      {"lse", bad, [&](Op& op) { *op.mutable_lse() = (*buffer)->Tensor(v1::F32, {kN}, 4090); }},
      {"lse", bad, [&](Op& op) { *op.mutable_lse() = (*buffer)->Tensor(v1::F32, {kN}, 2); }},
      {"lse", bad,
       [&](Op& op) { *op.mutable_lse() = (*buffer)->Tensor(v1::F32, {kN}, UINT64_MAX - 3); }},
      {"lse", absl::StatusCode::kNotFound,
       [](Op& op) { op.mutable_lse()->mutable_region()->set_region(99); }},
      {"loss", bad,
       [&](Op& op) {
         *op.mutable_lse() = (*buffer)->Tensor(v1::F32, {kN}, 0);
         *op.mutable_loss() = (*buffer)->Tensor(v1::F32, {1}, 8);
       }},
  };
  for (const Case& bad_case : cases) {
    Op op = CrossEntropy();
    bad_case.spoil(op);
    const auto reply = client->Run(op);
    SCOPED_TRACE(bad_case.field);
    ExpectField(reply.status(), bad_case.code, bad_case.field);
  }
  EXPECT_TRUE(client->Run(CrossEntropy()).ok());
  ExpectField(client->Run(v1::Tensor()).status(), bad, "op");
}

TEST_F(ClientTest, ClientsDoNotSeeEachOthersRegions) {
  const auto first = Connect(server_->address());
  const auto second = Connect(server_->address());
  ASSERT_TRUE(first && second);
  auto padding = first->CreateBuffer(64);
  auto buffer = first->CreateBuffer(4096);
  ASSERT_TRUE(padding.ok() && buffer.ok());
  const v1::LinearCrossEntropy op = InBuffer(**buffer);
  EXPECT_TRUE(first->Run(op).ok());
  EXPECT_EQ(second->Run(op).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(first->ListRegions()->regions_size(), 2);
  EXPECT_EQ(second->ListRegions()->regions_size(), 0);
  padding->reset();
  EXPECT_EQ(first->ListRegions()->regions_size(), 1);
}

TEST_F(ClientTest, RegionsNeedATokenAndInlineCallsNeedNone) {
  const auto client = Connect(server_->address());
  ASSERT_NE(client, nullptr);
  auto buffer = client->CreateBuffer(4096);
  ASSERT_TRUE(buffer.ok());
  const auto stub = v1::Losses::NewStub(
      grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  const auto run = [&](const v1::LinearCrossEntropy& op, const std::string& token) {
    v1::RunRequest request;
    *request.add_ops()->mutable_linear_cross_entropy() = op;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    if (!token.empty()) context.AddMetadata("x-lossd-session-bin", token);
    v1::RunReply reply;
    return stub->Run(&context, request, &reply).error_code();
  };
  EXPECT_EQ(run(CrossEntropy(), ""), grpc::OK);
  EXPECT_EQ(run(InBuffer(**buffer), ""), grpc::UNAUTHENTICATED);
  EXPECT_EQ(run(InBuffer(**buffer), std::string(16, 'x')), grpc::UNAUTHENTICATED);
}

TEST_F(ClientTest, ManyThreadsShareOneClient) {
  const auto client = Connect(server_->address());
  ASSERT_NE(client, nullptr);
  const auto want = client->Run(CrossEntropy());
  ASSERT_TRUE(want.ok());
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        v1::LinearCrossEntropy op = CrossEntropy();
        const bool wrong = (i + t) % 5 == 0;  // every answer must find its own caller
        if (wrong) op.set_z_loss(-1);
        const auto reply = client->Run(op);
        if (wrong ? absl::IsInvalidArgument(reply.status())
                  : reply.ok() && reply->outputs().at("loss").inline_data() ==
                                      want->outputs().at("loss").inline_data()) {
          ++right;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
}

TEST_F(ClientTest, ARepeatedRequestIdDoesNotAddTwice) {
  const auto client = Connect(server_->address());
  ASSERT_NE(client, nullptr);
  auto buffer = client->CreateBuffer(4096);
  ASSERT_TRUE(buffer.ok());
  v1::LinearCrossEntropy op = InBuffer(**buffer);
  ASSERT_TRUE(client->Run(op).ok());
  const std::vector<float> once = ReadFloats(**buffer, 1024, kV * kH);
  op.mutable_gradients()->set_grad_weight_mode(v1::GRAD_MODE_ACCUMULATE);
  ASSERT_TRUE((*buffer)->Write(1024, std::string(kV * kH * 4, '\0')).ok());
  v1::RunRequest request;
  request.set_request_id("mine");
  *request.add_ops()->mutable_linear_cross_entropy() = op;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(client->Run(request, absl::Seconds(10)).ok());
  EXPECT_EQ(ReadFloats(**buffer, 1024, kV * kH), once);
  // Two calls of the client are two calls.
  ASSERT_TRUE(client->Run(op).ok());
  ASSERT_TRUE(client->Run(op).ok());
  const std::vector<float> thrice = ReadFloats(**buffer, 1024, kV * kH);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(thrice[i], 3 * once[i], 1e-5f);
}

TEST_F(ClientTest, HandlesOfAWrongLengthAreRefusedByTheClient) {
  const auto client = Connect(server_->address());
  ASSERT_NE(client, nullptr);
  for (const size_t size : {0, 63, 65, 67}) {
    ExpectField(client->RegisterDevice(std::string(size, 'h'), 0, "", 1, true).status(),
                absl::StatusCode::kInvalidArgument, "handle");
  }
  // These lengths pass; a server without a GPU then says what it lacks.
  for (const size_t size : {64, 66}) {
    const absl::Status status =
        client->RegisterDevice(std::string(size, 'h'), 0, "", 1, true).status();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.message().find("64 bytes"), absl::string_view::npos) << status;
  }
  ExpectField(client->RegisterEvents({std::string(63, 'e')}).status(),
              absl::StatusCode::kInvalidArgument, "ready_events[0]");
}

void ExpectRecovery(const std::string& address) {
  auto server = std::make_unique<ServerAt>(address);
  const auto client = Connect(address);
  ASSERT_NE(client, nullptr);
  const bool is_unix = address[0] == 'u';
  auto buffer = client->CreateBuffer(4096);
  auto held = client->AllocateAtServer(4096, v1::HOST);
  ASSERT_TRUE(buffer.ok() && held.ok()) << held.status();
  ASSERT_TRUE(client->Run(InBuffer(**buffer)).ok());
  const std::string boot_id = client->server_info().boot_id();

  server->Kill();
  for (int i = 0; i < 2; ++i) {
    const absl::Time start = absl::Now();
    const absl::Status gone = client->Run(CrossEntropy()).status();
    EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable) << gone;
    EXPECT_NE(gone.message().find(is_unix ? "sock" : address), absl::string_view::npos) << gone;
    EXPECT_LT(absl::Now() - start, absl::Seconds(7));
  }
  server = std::make_unique<ServerAt>(address);
  const auto reply = client->Run(CrossEntropy());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_NE(client->server_info().boot_id(), boot_id);
  // Our own memory is there again under its id; the server's is lost, and says so.
  if (is_unix) {
    const absl::Status again = client->Run(InBuffer(**buffer)).status();
    EXPECT_TRUE(again.ok()) << again;
  }
  v1::LinearCrossEntropy lost = CrossEntropy();
  *lost.mutable_lse() = (*held)->Tensor(v1::F32, {kN});
  ExpectField(client->Run(lost).status(), absl::StatusCode::kFailedPrecondition, "lse");
  EXPECT_TRUE(client->CreateBuffer(64).ok());
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

TEST(ServerLossTest, OneClearErrorAndTheNextServerServes) {
  const SocketFolder folder;
  ExpectRecovery(folder.address());
}

TEST(ServerLossTest, TheSameOverTcp) { ExpectRecovery(FreeTcpAddress()); }

TEST(ServerLossTest, ARestartBetweenCallsIsNotNoticed) {
  const SocketFolder folder;
  for (const std::string& address : {folder.address(), FreeTcpAddress()}) {
    auto server = std::make_unique<ServerAt>(address);
    const auto client = Connect(address);
    ASSERT_NE(client, nullptr);
    server->Kill();
    server = std::make_unique<ServerAt>(address);
    absl::Status status = client->Run(CrossEntropy()).status();
    // Over TCP the old connection's end may be what the call meets; never more than one.
    if (address[0] != 'u' && absl::IsUnavailable(status)) {
      status = client->Run(CrossEntropy()).status();
    }
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(ServerLossTest, AServerThatHangsCostsTheDeadlineOnly) {
  PrivateServer::Options options;
  options.flags = {"--workspace", "64M"};
  auto server = PrivateServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto client = Connect((*server)->address());
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Run(CrossEntropy()).ok());
  kill((*server)->pid(), SIGSTOP);
  int stopped = 0;
  ASSERT_EQ(waitpid((*server)->pid(), &stopped, WUNTRACED), (*server)->pid());
  ASSERT_TRUE(WIFSTOPPED(stopped));
  const absl::Time start = absl::Now();
  CallOptions call;
  call.timeout = absl::Milliseconds(300);
  const absl::Status late = client->Run(CrossEntropy(), call).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  ClientOptions second;
  second.address = (*server)->address();
  second.connect_timeout = absl::Milliseconds(300);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Client::Connect(second).status()));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  kill((*server)->pid(), SIGCONT);
  EXPECT_TRUE(client->Run(CrossEntropy()).ok());
}

TEST(PrivateServerTest, SaysWhyItDoesNotStart) {
  PrivateServer::Options options;
  options.flags = {"--no-such-flag"};
  absl::Status status = PrivateServer::Start(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_NE(status.message().find("--no-such-flag"), absl::string_view::npos) << status;
  options.binary = "/no/such/lossd";
  status = PrivateServer::Start(options).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
}

TEST(PrivateServerTest, OutlivesItsThreadAndEndsWithItsObject) {
  std::unique_ptr<PrivateServer> server;
  std::thread([&] {
    PrivateServer::Options options;
    options.flags = {"--workspace", "64M"};
    auto started = PrivateServer::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
  }).join();
  ASSERT_NE(server, nullptr);
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_TRUE(Connect(server->address())->Run(CrossEntropy()).ok());
  const pid_t pid = server->pid();
  const std::string path = server->address().substr(5);
  server.reset();
  EXPECT_NE(kill(pid, 0), 0);
  EXPECT_NE(access(path.substr(0, path.rfind('/')).c_str(), F_OK), 0);
}

}  // namespace
}  // namespace lossd
