// A device that fails for good while memory is registered: the server stops as if a call had seen it.
#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>
#include <functional>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/frame.h"
#include "server/grpc_status.h"
#include "server/rich_status.h"
#include "server/server.h"
#include "tests/fault/raw_call.h"
#include "tests/testing/fake_backend.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

class FakeHolder final : public BackendHolder {
 public:
  Backend backend() override { return {&device, nullptr}; }
  absl::StatusOr<int> Enter(void*) override { return 0; }
  void Leave(int) override {}
  DeviceDescription Describe() override { return DeviceDescription(); }
  FakeDevice device{/*is_host=*/false};
};

class DeviceLossTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = P_tmpdir "/lossd-loss-XXXXXX";
    directory_ = ::mkdtemp(name);
    Options options;
    options.listen = {*ParseListenAddress(absl::StrCat("unix:", directory_, "/x.sock")),
                      *ParseListenAddress("127.0.0.1:0")};
    auto holder = std::make_unique<FakeHolder>();
    device_ = &holder->device;
    auto server = Server::Start(
        options, log_, [this] { lost_.set_value(); }, std::move(holder));
    ASSERT_OK(server);
    server_ = *std::move(server);
    channel_ = RawChannel(server_->addresses()[1].ToString());
    ASSERT_EQ(HealthOf(channel_, ""), Health::kServing);
  }
  void TearDown() override {
    server_ = nullptr;
    std::filesystem::remove_all(directory_);
  }

  // After the loss was seen once, whoever saw it.
  void ExpectStopped() {
    ASSERT_EQ(lost_.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
    EXPECT_TRUE(server_->lost());
    for (const char* service : {"", "lossd.v1.Losses", "lossd.v1.Sessions", "lossd.v1.Buffers"}) {
      EXPECT_EQ(HealthOf(channel_, service), Health::kNotServing) << service;
    }
    v1::RunRequest request;
    v1::LinearLogprob& op = *request.add_ops()->mutable_linear_logprob();
    const auto place = [](v1::Tensor* tensor, std::vector<int64_t> shape, size_t bytes) {
      tensor->set_dtype(v1::F32);
      for (int64_t extent : shape) tensor->add_shape(extent);
      tensor->set_inline_data(std::string(bytes, '\0'));
    };
    place(op.mutable_linear()->mutable_hidden(), {2, 3}, 24);
    place(op.mutable_linear()->mutable_weight(), {4, 3}, 48);
    *op.mutable_head()->mutable_target() = v1::Tensor();
    op.mutable_head()->mutable_target()->set_dtype(v1::I64);
    op.mutable_head()->mutable_target()->add_shape(2);
    op.mutable_head()->mutable_target()->set_inline_data(std::string(16, '\0'));
    place(op.mutable_logprob(), {2}, 0);
    const absl::Status status =
        FromGrpcStatus(RawCall(channel_, "/lossd.v1.Losses/Run", request.SerializeAsString()));
    EXPECT_TRUE(IsDeviceLost(status)) << status;
  }

  const Logger log_{LogLevel::kError};
  std::string directory_;
  FakeDevice* device_ = nullptr;
  std::promise<void> lost_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(DeviceLossTest, SeenByARequestOverGrpc) {
  v1::OpenSessionRequest open;
  open.set_protocol(1);
  v1::OpenSessionReply session;
  grpc::ClientContext opening;
  ASSERT_TRUE(v1::Sessions::NewStub(channel_)->Open(&opening, open, &session).ok());
  device_->Lose();
  v1::AllocateRegionRequest request;
  request.set_kind(v1::HOST);
  request.set_bytes(4096);
  grpc::ClientContext context;
  context.AddMetadata("x-lossd-session-bin", session.token());
  v1::AllocateRegionReply reply;
  const grpc::Status status = v1::Buffers::NewStub(channel_)->Allocate(&context, request, &reply);
  EXPECT_TRUE(IsDeviceLost(FromGrpcStatus(status))) << status.error_message();
  ExpectStopped();
}

TEST_F(DeviceLossTest, SeenByARequestOnTheSessionSocket) {
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::snprintf(name.sun_path, sizeof(name.sun_path), "%s/x.sock.session", directory_.c_str());
  ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  FrameReader reader(1 << 20);
  const auto ask = [&](const v1::SessionRequest& request) {
    FrameWriter writer;
    writer.Add(request.SerializeAsString(), UniqueFd());
    EXPECT_TRUE(writer.Flush(fd.get()));
    v1::SessionReply reply;
    for (int i = 0; i < 5000; ++i) {
      const auto progress = reader.Read(fd.get());
      if (progress == FrameReader::Progress::kFrame) {
        EXPECT_TRUE(reply.ParseFromString(reader.TakeFrame()));
        return reply;
      }
      if (progress == FrameReader::Progress::kEnd) break;
      absl::SleepFor(absl::Milliseconds(1));
    }
    ADD_FAILURE() << "no reply";
    return reply;
  };
  v1::SessionRequest open, request;
  open.mutable_open()->set_protocol(1);
  EXPECT_EQ(ask(open).open().server().device_uuid(), std::string(16, 'u'));
  device_->Lose();
  request.mutable_register_()->set_cuda_ipc(std::string(64, 'h'));
  request.mutable_register_()->set_access(v1::READ_WRITE);
  EXPECT_TRUE(IsDeviceLost(FromRichStatus(ask(request).error())));
  ExpectStopped();
}

}  // namespace
}  // namespace lossd
