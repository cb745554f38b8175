// The C++ client when servers end, hang, restart or do not start.
#include <thread>

#include "tests/integration/client_fixture.h"

namespace lossd {
namespace {

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
