// The C++ client against the real server: calls and buffers over each way that tensors can go.
#include <atomic>
#include <thread>

#include "grpcpp/grpcpp.h"
#include "kernels/core/registry.h"
#include "lossd/v1/service.grpc.pb.h"
#include "tests/integration/client_fixture.h"
#include "tests/testing/full_spec.h"

namespace lossd {
namespace {

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
  const auto registry = Registry::Create();
  ASSERT_TRUE(registry.ok()) << registry.status();
  ASSERT_EQ(static_cast<size_t>(listed->ops_size()), registry->ops().size());
  for (const auto& known : registry->ops()) {
    SCOPED_TRACE(known->name());
    const v1::Op op = RequestBuilder().Build(known->schema(), FullSpec(known->name()));
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

}  // namespace
}  // namespace lossd
