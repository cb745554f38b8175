// The server ends, by SIGKILL or SIGTERM, while its clients are at work.
#include <mutex>

#include "tests/fault/processes.h"
#include "tests/fault/raw_call.h"

namespace lossd {
namespace {

std::string ReasonOf(const absl::Status& status) {
  const auto detail = ErrorDetailOf(status);
  return detail.has_value() ? detail->reason() : "";
}

// Calls on many threads, and how they ended.
class Load {
 public:
  Load(int threads, std::function<absl::Status()> call) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this, call] {
        const absl::Status status = call();
        std::lock_guard<std::mutex> lock(mu_);
        ends_.push_back(status);
      });
    }
  }
  std::vector<absl::Status> Wait() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return ends_;
  }

 private:
  std::mutex mu_;
  std::vector<absl::Status> ends_;  // guarded by mu_
  std::vector<std::thread> threads_;
};

struct Work {
  const char* name;
  bool tcp;
  int threads;
  // One step; repeated until it fails.
  std::function<absl::Status(Client&, Buffer&)> step;
};

absl::Status UploadMuch(Client&, Buffer& buffer) {
  return buffer.Write(0, std::string(buffer.bytes(), 'u'));
}

absl::Status DownloadMuch(Client&, Buffer& buffer) {
  std::string bytes(buffer.bytes(), '\0');
  return buffer.Read(0, reinterpret_cast<std::byte*>(bytes.data()), bytes.size());
}

const Work kWorks[] = {
    {"one_call", false, 1,
     [](Client& client, Buffer& buffer) { return client.Run(LongCall(buffer)).status(); }},
    {"queued_calls", false, 6,
     [](Client& client, Buffer& buffer) { return client.Run(LongCall(buffer)).status(); }},
    {"small_calls", false, 4,
     [](Client& client, Buffer&) { return client.Run(CrossEntropy()).status(); }},
    {"small_calls_tcp", true, 4,
     [](Client& client, Buffer&) { return client.Run(CrossEntropy()).status(); }},
    {"registrations", false, 2,
     [](Client& client, Buffer&) { return client.CreateBuffer(1 << 16).status(); }},
    {"lists", false, 2, [](Client& client, Buffer&) { return client.ListRegions().status(); }},
    {"uploads", true, 1, UploadMuch},
    {"downloads", true, 1, DownloadMuch},
};

class ServerKilledTest : public testing::TestWithParam<Work> {};

TEST_P(ServerKilledTest, OneClearErrorForEachCallAndThenTheNextServerServes) {
  const SocketFolder folder;
  const std::string address = GetParam().tcp ? FreeTcpAddress() : folder.address();
  auto server = std::make_unique<ServerAt>(address);
  const auto client = Connect(address);
  ASSERT_NE(client, nullptr);
  const auto buffer = GetParam().tcp ? *client->CreateBuffer(32 << 20) : LongBuffer(*client);
  absl::StatusOr<v1::OpReply> before = absl::UnknownError("not run");
  if (!GetParam().tcp) {
    before = client->Run(LongCall(*buffer));
    ASSERT_TRUE(before.ok()) << before.status();
  }

  std::atomic<int> steps{0};
  Load load(GetParam().threads, [&] {
    while (true) {
      const absl::Status status = GetParam().step(*client, *buffer);
      if (!status.ok()) return status;
      ++steps;
    }
  });
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] { return steps >= 1; }));
  absl::SleepFor(absl::Milliseconds(37));
  const absl::Time killed = absl::Now();
  server->Kill();
  for (const absl::Status& status : load.Wait()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_FALSE(status.message().empty());
  }
  EXPECT_LT(absl::Now() - killed, absl::Seconds(6));

  server = std::make_unique<ServerAt>(address);
  if (GetParam().tcp) {
    // The connection's end may be met once more.
    if (client->Run(CrossEntropy()).ok()) return;
    EXPECT_TRUE(client->Run(CrossEntropy()).ok());
    return;
  }
  const auto after = client->Run(LongCall(*buffer));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->outputs().at("lse").inline_data(), before->outputs().at("lse").inline_data());
}

INSTANTIATE_TEST_SUITE_P(Works, ServerKilledTest, testing::ValuesIn(kWorks),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ServerDrainTest, FinishesWhatRunsRefusesTheRestAndSaysSo) {
  const SocketFolder folder;
  ServerAt server(folder.address(), {"--threads", "1"});
  const auto client = Connect(folder.address());
  const auto buffer = LongBuffer(*client);
  ASSERT_NE(buffer, nullptr);
  const auto before = client->Run(LongCall(*buffer));
  ASSERT_TRUE(before.ok()) << before.status();
  const auto channel = RawChannel(folder.address());
  for (const char* service : {"", "lossd.v1.Losses", "lossd.v1.Sessions", "lossd.v1.Buffers"}) {
    EXPECT_EQ(HealthOf(channel, service), Health::kServing) << service;
  }

  std::atomic<int> right{0};
  Load accepted(4, [&] {
    const auto reply = client->Run(LongCall(*buffer));
    if (reply.ok() &&
        reply->outputs().at("lse").inline_data() == before->outputs().at("lse").inline_data()) {
      ++right;
    }
    return reply.status();
  });
  absl::SleepFor(absl::Milliseconds(100));
  server.Terminate();
  EXPECT_TRUE(Eventually(absl::Seconds(2), [&] {
    return HealthOf(channel, "lossd.v1.Losses") == Health::kNotServing;
  }));
  EXPECT_EQ(HealthOf(channel, ""), Health::kNotServing);
  const absl::Status refused = client->Run(CrossEntropy()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  EXPECT_EQ(ReasonOf(refused), "DRAINING") << refused;
  ClientOptions late;
  late.address = folder.address();
  const absl::Status unopened = Client::Connect(late).status();
  EXPECT_EQ(unopened.code(), absl::StatusCode::kUnavailable) << unopened;
  for (const absl::Status& status : accepted.Wait()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(right, 4);
  EXPECT_EQ(server.WaitForExit(), 0);
}

TEST(ServerDrainTest, UnderLoadEveryCallIsRightOrRefused) {
  const SocketFolder folder;
  const std::string tcp = FreeTcpAddress();
  ServerAt server(folder.address(), {"--listen", tcp});
  const auto by_socket = Connect(folder.address());
  const auto by_tcp = Connect(tcp);
  const auto expected = by_socket->Run(CrossEntropy());
  ASSERT_TRUE(expected.ok());
  std::atomic<int> turn{0}, done{0}, wrong{0};
  Load load(6, [&] {
    Client& client = turn++ % 2 == 0 ? *by_socket : *by_tcp;
    while (true) {
      const auto reply = client.Run(CrossEntropy());
      if (!reply.ok()) return reply.status();
      ++done;
      wrong +=
          reply->outputs().at("loss").inline_data() != expected->outputs().at("loss").inline_data();
    }
  });
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] { return done > 200; }));
  server.Terminate();
  for (const absl::Status& status : load.Wait()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(server.WaitForExit(), 0);
}

TEST(ServerDrainTest, ACallThatTakesTooLongEndsWithExitCodeOne) {
  const SocketFolder folder;
  ServerAt server(folder.address(), {"--threads", "1", "--drain-timeout", "1ms"});
  const auto client = Connect(folder.address());
  const auto buffer = LongBuffer(*client);
  ASSERT_NE(buffer, nullptr);
  Load load(6, [&] { return client->Run(LongCall(*buffer)).status(); });
  absl::SleepFor(absl::Milliseconds(100));
  server.Terminate();
  EXPECT_EQ(server.WaitForExit(), 1);
  int refused = 0;
  for (const absl::Status& status : load.Wait()) {
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    ++refused;
  }
  EXPECT_GE(refused, 4);
}

}  // namespace
}  // namespace lossd
