// The device fails at its n-th call, for every n: one status, no call left, nothing run twice, the next call works.
#include <future>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/call.h"
#include "server/dispatcher.h"
#include "tests/testing/fake_backend.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

// Fails the n-th call of those that the dispatcher makes (from 0); passes the others on.
class FaultyDevice final : public Device {
 public:
  FaultyDevice(Device& device, int fail_at, absl::Status error)
      : device_(device), fail_at_(fail_at), error_(std::move(error)) {}

  const char* backend() const override { return device_.backend(); }
  std::string name() const override { return device_.name(); }
  Arena& workspace() override { return device_.workspace(); }
  bool is_host() const override { return device_.is_host(); }
  absl::Status CopyIn(void* to, const void* from, uint64_t bytes) override {
    return Fails() ? error_ : device_.CopyIn(to, from, bytes);
  }
  absl::Status CopyOut(void* to, const void* from, uint64_t bytes) override {
    return Fails() ? error_ : device_.CopyOut(to, from, bytes);
  }
  absl::Status Zero(void* to, uint64_t bytes) override {
    return Fails() ? error_ : device_.Zero(to, bytes);
  }
  absl::Status Synchronize() override { return Fails() ? error_ : device_.Synchronize(); }
  absl::Status WaitEvent(DeviceEvent& event) override {
    return Fails() ? error_ : device_.WaitEvent(event);
  }
  absl::Status RecordEvent(DeviceEvent& event) override {
    return Fails() ? error_ : device_.RecordEvent(event);
  }
  absl::StatusOr<bool> QueryEvent(DeviceEvent& event) override {
    if (Fails()) return error_;
    return device_.QueryEvent(event);
  }
  absl::StatusOr<std::shared_ptr<DeviceEvent>> CreateEvent() override {
    return device_.CreateEvent();
  }

  bool failed() const { return calls_ > fail_at_; }

 private:
  bool Fails() { return calls_++ == fail_at_; }

  Device& device_;
  const int fail_at_;
  const absl::Status error_;
  std::atomic<int> calls_{0};
};

v1::RunRequest InlineRequest() {
  v1::RunRequest request;
  for (int i = 0; i < 2; ++i) {
    v1::LinearLogprob& op = *request.add_ops()->mutable_linear_logprob();
    const auto place = [](v1::Tensor* tensor, std::vector<int64_t> shape, int64_t bytes) {
      tensor->set_dtype(v1::F32);
      for (int64_t extent : shape) tensor->add_shape(extent);
      tensor->set_inline_data(std::string(static_cast<size_t>(bytes), '\0'));
    };
    place(op.mutable_linear()->mutable_hidden(), {2, 3}, 24);
    place(op.mutable_linear()->mutable_weight(), {4, 3}, 48);
    place(op.mutable_logprob(), {2}, 0);
  }
  return request;
}

class DeviceFaultTest : public ::testing::Test {
 protected:
  // Runs three calls, one after the other, on a device that fails once; returns how they ended.
  std::vector<absl::Status> RunThree(int fail_at, const absl::Status& error, bool* failed,
                                     bool* lost) {
    FakeOpHooks hooks;
    const Registry registry = *FakeRegistry(&hooks);
    FakeDevice fake(/*is_host=*/true);
    FaultyDevice device(fake, fail_at, error);
    std::atomic<bool> was_lost{false};
    CallContext context;
    context.registry = &registry;
    context.inline_limit_bytes = 1 << 20;
    context.anonymous_inline_quota = std::make_shared<ByteQuota>(1 << 20);
    std::vector<absl::Status> statuses;
    {
      Dispatcher dispatcher(Backend{&device, nullptr}, Dispatcher::Options(),
                            [&](const absl::Status&) { was_lost = true; });
      context.dispatcher = &dispatcher;
      const v1::RunRequest request = InlineRequest();
      for (int i = 0; i < 3; ++i) {
        v1::RunReply reply;
        std::promise<absl::Status> done;
        auto call =
            std::make_shared<Call>(context, nullptr, &request, &reply, absl::InfiniteFuture(),
                                   [&](const absl::Status& status) { done.set_value(status); });
        call->Start();
        statuses.push_back(done.get_future().get());
      }
      EXPECT_TRUE(dispatcher.Drain(absl::Now() + absl::Seconds(5)) || was_lost);
    }
    EXPECT_EQ(context.anonymous_inline_quota->used(), 0u);
    *failed = device.failed();
    *lost = was_lost;
    return statuses;
  }
};

TEST_F(DeviceFaultTest, AnErrorEndsItsCallOnly) {
  const absl::Status error = absl::InternalError("injected");
  int n = 0;
  for (bool failed = true; failed; ++n) {
    bool lost = false;
    const auto statuses = RunThree(n, error, &failed, &lost);
    int errors = 0;
    for (const absl::Status& status : statuses)
      errors += status.code() == absl::StatusCode::kInternal;
    EXPECT_EQ(errors, failed ? 1 : 0) << "call " << n;
    EXPECT_FALSE(lost);
    ASSERT_LT(n, 1000);
  }
  EXPECT_GT(n, 20);  // three calls of two ops with two inline inputs each
}

TEST_F(DeviceFaultTest, ALossEndsItsCallAndEveryLaterOne) {
  int n = 0;
  for (bool failed = true; failed; ++n) {
    bool lost = false;
    const auto statuses = RunThree(n, FakeDevice::Lost(), &failed, &lost);
    EXPECT_EQ(lost, failed) << "call " << n;
    bool after = false;
    for (const absl::Status& status : statuses) {
      after = after || !status.ok();
      EXPECT_EQ(IsDeviceLost(status), after) << "call " << n << ": " << status;
    }
    EXPECT_EQ(after, failed);
    ASSERT_LT(n, 1000);
  }
}

}  // namespace
}  // namespace lossd
