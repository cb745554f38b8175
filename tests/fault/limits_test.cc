// What a client may not hold for ever: queue places, handler threads, memory under a running call, time that has run out.
#include <sys/resource.h>
#include <sys/un.h>

#include <future>

#include "client/cpp/unique_fd.h"
#include "lossd/v1/service.grpc.pb.h"
#include "tests/fault/processes.h"
#include "tests/fault/raw_call.h"

namespace lossd {
namespace {

constexpr char kTokenKey[] = "x-lossd-session-bin";

std::string ReasonOf(const absl::Status& status) {
  const auto detail = ErrorDetailOf(status);
  return detail.has_value() ? detail->reason() : "";
}

std::chrono::system_clock::time_point In(int seconds) {
  return std::chrono::system_clock::now() + std::chrono::seconds(seconds);
}

TEST(QueueTest, AFullQueueIsResourceExhaustedWithATimeToRetry) {
  const SocketFolder folder;
  const ServerAt server(folder.address(), {"--threads", "1", "--queue-depth", "2"});
  const auto client = Connect(folder.address());
  const auto buffer = LongBuffer(*client);
  ASSERT_NE(buffer, nullptr);
  std::vector<std::future<absl::Status>> calls;
  for (int i = 0; i < 5; ++i) {
    calls.push_back(
        std::async(std::launch::async, [&] { return client->Run(LongCall(*buffer)).status(); }));
  }
  int done = 0, refused = 0;
  for (auto& call : calls) {
    const absl::Status status = call.get();
    if (status.ok()) {
      ++done;
      continue;
    }
    ++refused;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(ReasonOf(status), "QUEUE_FULL") << status;
    EXPECT_GE(ErrorDetailOf(status)->retry_after_ms(), 1u) << status;
  }
  EXPECT_EQ(done, 2);
  EXPECT_EQ(refused, 3);
}

TEST(DescriptorTest, AServerThatRanOutOfThemServesAgain) {
  const SocketFolder folder;
  const std::string tcp = FreeTcpAddress();
  const ServerAt server(folder.address(), {"--listen", tcp});
  const rlimit few = {64, 64};
  ASSERT_EQ(prlimit(server.pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  for (const char* suffix : {"", ".session"}) {
    std::vector<client::UniqueFd> connections;
    for (int i = 0; i < 90; ++i) {
      client::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      sockaddr_un name = {};
      name.sun_family = AF_UNIX;
      std::snprintf(name.sun_path, sizeof name.sun_path, "%s%s", folder.address().c_str() + 5,
                    suffix);
      ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0) << i;
      connections.push_back(std::move(fd));
    }
    EXPECT_TRUE(Eventually(absl::Seconds(2), [&] {
      return HoldingsOf(server.pid()).descriptors >= 64;
    })) << HoldingsOf(server.pid());
    connections.clear();
    for (const std::string& address : {folder.address(), tcp}) {
      const auto client = Connect(address);
      ASSERT_NE(client, nullptr);
      EXPECT_TRUE(client->Run(CrossEntropy()).ok());
    }
  }
}

TEST(UnregisterTest, ACallThatRunsKeepsTheMemoryItUses) {
  const SocketFolder folder;
  const ServerAt server(folder.address(), {"--threads", "1"});
  const auto client = Connect(folder.address());
  auto buffer = LongBuffer(*client);
  ASSERT_NE(buffer, nullptr);
  const v1::LinearCrossEntropy op = LongCall(*buffer);
  const auto before = client->Run(op);
  ASSERT_TRUE(before.ok()) << before.status();
  const Holdings held = HoldingsOf(server.pid());
  auto running = std::async(std::launch::async, [&] { return client->Run(op); });
  absl::SleepFor(absl::Milliseconds(40));
  buffer.reset();
  EXPECT_EQ(running.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  const auto during = running.get();
  ASSERT_TRUE(during.ok()) << during.status();
  for (const char* output : {"loss", "lse"}) {
    EXPECT_EQ(during->outputs().at(output).inline_data(),
              before->outputs().at(output).inline_data());
  }
  EXPECT_TRUE(absl::IsNotFound(client->Run(op).status()));
  EXPECT_TRUE(Eventually(absl::Seconds(2), [&] {
    return HoldingsOf(server.pid()).memfd_mappings == held.memfd_mappings - 1;
  }));
}

TEST(TimeoutTest, ACallWhoseTimeHasRunOutWritesNothing) {
  const SocketFolder folder;
  const ServerAt server(folder.address(), {"--threads", "1"});
  const auto slow = Connect(folder.address());
  const auto buffer = LongBuffer(*slow);
  ASSERT_NE(buffer, nullptr);
  const auto client = Connect(folder.address());
  const auto own = client->CreateBuffer(4096);
  ASSERT_TRUE(own.ok());
  const v1::LinearCrossEntropy op = InBuffer(**own);
  auto running = std::async(std::launch::async, [&] { return slow->Run(LongCall(*buffer)); });
  absl::SleepFor(absl::Milliseconds(40));
  CallOptions options;
  options.timeout = absl::Milliseconds(20);
  const absl::Status late = client->Run(op, options).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_EQ(running.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  EXPECT_TRUE(running.get().ok());
  // In the order of the session: whatever was queued before is over when this is answered.
  EXPECT_TRUE(client->Run(CrossEntropy()).ok());
  EXPECT_EQ(ReadFloats(**own, 1024, kV * kH), std::vector<float>(kV * kH, 0.0f));
}

// TCP sessions and their streams, by hand.
class StandingStreamTest : public testing::Test {
 protected:
  StandingStreamTest()
      : tcp_(FreeTcpAddress()),
        server_(folder_.address(), {"--listen", tcp_, "--stream-timeout", "1s"}),
        channel_(RawChannel(tcp_)),
        buffers_(v1::Buffers::NewStub(channel_)) {
    grpc::ClientContext context;
    context.set_deadline(In(5));
    v1::OpenSessionRequest request;
    request.set_protocol(1);
    v1::OpenSessionReply reply;
    EXPECT_TRUE(v1::Sessions::NewStub(channel_)->Open(&context, request, &reply).ok());
    token_ = reply.token();
  }

  void Prepare(grpc::ClientContext* context) const {
    context->set_deadline(In(20));
    context->AddMetadata(kTokenKey, token_);
  }
  uint64_t Allocate(uint64_t bytes) const {
    grpc::ClientContext context;
    Prepare(&context);
    v1::AllocateRegionRequest request;
    request.set_kind(v1::HOST);
    request.set_bytes(bytes);
    v1::AllocateRegionReply reply;
    EXPECT_TRUE(buffers_->Allocate(&context, request, &reply).ok());
    return reply.region().region();
  }

  const SocketFolder folder_;
  const std::string tcp_;
  const ServerAt server_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Buffers::Stub> buffers_;
  std::string token_;
};

TEST_F(StandingStreamTest, IdleUploadsBlockNobodyAndEnd) {
  const uint64_t region = Allocate(4096);
  struct Upload {
    grpc::ClientContext context;
    v1::UploadReply reply;
    std::unique_ptr<grpc::ClientWriter<v1::UploadChunk>> writer;
  };
  std::vector<std::unique_ptr<Upload>> uploads;
  for (int i = 0; i < 100; ++i) {
    auto upload = std::make_unique<Upload>();
    Prepare(&upload->context);
    upload->writer = buffers_->Upload(&upload->context, &upload->reply);
    v1::UploadChunk chunk;
    chunk.set_region(region);
    chunk.set_data("abc");
    EXPECT_TRUE(upload->writer->Write(chunk));
    uploads.push_back(std::move(upload));
  }
  // More streams than the server has threads; others are served all the same.
  const absl::Time start = absl::Now();
  const auto other = Connect(tcp_);
  ASSERT_NE(other, nullptr);
  EXPECT_TRUE(other->CreateBuffer(64).ok());
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(900));
  for (auto& upload : uploads) {
    const grpc::Status status = upload->writer->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
    EXPECT_NE(status.error_details().find("STREAM_TIMEOUT"), std::string::npos);
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST_F(StandingStreamTest, ASlowUploadThatMovesGoesOn) {
  const uint64_t region = Allocate(4096);
  grpc::ClientContext context;
  Prepare(&context);
  v1::UploadReply reply;
  const auto writer = buffers_->Upload(&context, &reply);
  for (int i = 0; i < 5; ++i) {
    v1::UploadChunk chunk;
    chunk.set_region(region);
    chunk.set_data("abc");
    EXPECT_TRUE(writer->Write(chunk));
    absl::SleepFor(absl::Milliseconds(450));
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.bytes(), 15u);
}

TEST_F(StandingStreamTest, ADownloadThatNobodyReadsIsCutOff) {
  constexpr uint64_t kBytes = 256 << 20;
  const uint64_t region = Allocate(kBytes);
  grpc::ClientContext context;
  Prepare(&context);
  v1::DownloadRequest request;
  request.set_region(region);
  request.set_bytes(kBytes);
  const auto reader = buffers_->Download(&context, request);
  absl::SleepFor(absl::Milliseconds(3500));
  v1::DownloadChunk chunk;
  uint64_t bytes = 0;
  while (reader->Read(&chunk)) bytes += chunk.data().size();
  EXPECT_LT(bytes, kBytes);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace lossd
