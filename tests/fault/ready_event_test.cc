// Ready events that come late or never: their session waits, the device does not.
#include <future>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/call.h"
#include "server/session_memory.h"
#include "tests/testing/fake_backend.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

class ReadyEventTest : public ::testing::Test {
 protected:
  void SetUp() override {
    registry_ = *FakeRegistry(&hooks_);
    dispatcher_ = std::make_unique<Dispatcher>(Backend{&device_, nullptr}, Dispatcher::Options(),
                                               [this](const absl::Status&) { lost_ = true; });
    context_.registry = &*registry_;
    context_.dispatcher = dispatcher_.get();
    context_.inline_limit_bytes = 1 << 20;
    context_.is_host = false;
    waiting_ = MakeSession(1);
    other_ = MakeSession(2);
    auto event = waiting_->ReadyEvent(0);
    ASSERT_OK(event);
    event_ = std::static_pointer_cast<FakeDevice::Event>(*event);
    event_->point = kNever;
  }
  void TearDown() override { dispatcher_ = nullptr; }

  std::shared_ptr<Session> MakeSession(uint64_t id) {
    auto session =
        std::make_shared<Session>(id, Session::Kind::kSocket, "token", "test", SessionLimits());
    v1::RegisterEventsRequest events;
    events.add_ready_events(std::string(64, 'e'));
    EXPECT_OK(RegisterEvents(device_, *session, events));
    return session;
  }

  std::future<absl::Status> Start(std::shared_ptr<Session> session, bool ready) {
    auto request = std::make_shared<v1::RunRequest>();
    v1::LinearLogprob& op = *request->add_ops()->mutable_linear_logprob();
    const auto place = [](v1::Tensor* tensor, std::vector<int64_t> shape, size_t bytes) {
      tensor->set_dtype(v1::F32);
      for (int64_t extent : shape) tensor->add_shape(extent);
      tensor->set_inline_data(std::string(bytes, '\0'));
    };
    place(op.mutable_linear()->mutable_hidden(), {2, 3}, 24);
    place(op.mutable_linear()->mutable_weight(), {4, 3}, 48);
    place(op.mutable_logprob(), {2}, 0);
    if (ready) request->mutable_ready()->set_event(0);
    auto reply = std::make_shared<v1::RunReply>();
    auto done = std::make_shared<std::promise<absl::Status>>();
    auto result = done->get_future();
    std::make_shared<Call>(
        context_, std::move(session), request.get(), reply.get(), absl::InfiniteFuture(),
        [request, reply, done](const absl::Status& status) { done->set_value(status); })
        ->Start();
    return result;
  }
  static bool IsDone(std::future<absl::Status>& call) {
    return call.wait_for(std::chrono::milliseconds(30)) == std::future_status::ready;
  }

  static constexpr int64_t kNever = int64_t{1} << 60;
  FakeOpHooks hooks_;
  absl::optional<Registry> registry_;
  FakeDevice device_;
  CallContext context_;
  std::shared_ptr<Session> waiting_, other_;
  std::shared_ptr<FakeDevice::Event> event_;
  std::atomic<bool> lost_{false};
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(ReadyEventTest, OthersRunMeanwhileAndItsOwnSessionKeepsItsOrder) {
  auto first = Start(waiting_, true);
  auto second = Start(waiting_, false);
  for (int i = 0; i < 20; ++i) EXPECT_OK(Start(other_, false).get());
  EXPECT_FALSE(IsDone(first));
  EXPECT_FALSE(IsDone(second));
  EXPECT_EQ(hooks_.runs, 20);
  event_->point = 0;
  EXPECT_OK(first.get());
  EXPECT_OK(second.get());
  // What was seen is not waited for again: the client could have recorded it anew.
  EXPECT_EQ(device_.waits(), 0);
}

TEST_F(ReadyEventTest, OneThatNeverComesEndsItsCallUnlaunched) {
  context_.ready_timeout = absl::Milliseconds(50);
  const absl::Status status = Start(waiting_, true).get();
  EXPECT_EQ(Refusal(status), "DEADLINE_EXCEEDED ready.event");
  EXPECT_EQ(GetErrorDetail(status)->reason(), "READY_TIMEOUT");
  EXPECT_EQ(hooks_.runs, 0);
  EXPECT_OK(Start(waiting_, false).get());
  EXPECT_EQ(waiting_->calls(), 0);
}

TEST_F(ReadyEventTest, TheEndOfItsSessionEndsTheWait) {
  auto call = Start(waiting_, true);
  EXPECT_FALSE(IsDone(call));
  waiting_->Close();
  dispatcher_->Drop(1, absl::AbortedError("gone"));
  EXPECT_TRUE(absl::IsAborted(call.get()));
  EXPECT_EQ(hooks_.runs, 0);
}

TEST_F(ReadyEventTest, TheEndOfTheDispatcherEndsTheWait) {
  auto call = Start(waiting_, true);
  EXPECT_FALSE(IsDone(call));
  EXPECT_FALSE(dispatcher_->Drain(absl::Now() + absl::Milliseconds(20)));
  dispatcher_ = nullptr;
  EXPECT_FALSE(call.get().ok());
  EXPECT_EQ(hooks_.runs, 0);
}

TEST_F(ReadyEventTest, ALossEndsTheWait) {
  auto call = Start(waiting_, true);
  EXPECT_FALSE(IsDone(call));
  device_.Lose();
  EXPECT_TRUE(IsDeviceLost(call.get()));
  EXPECT_TRUE(IsDeviceLost(Start(other_, false).get()));
}

TEST_F(ReadyEventTest, ALossThatAnotherThreadSawFailsWhatIsQueued) {
  auto call = Start(waiting_, true);
  EXPECT_FALSE(IsDone(call));
  dispatcher_->ReportLost(FakeDevice::Lost());
  dispatcher_->ReportLost(FakeDevice::Lost());
  EXPECT_TRUE(IsDeviceLost(call.get()));
  EXPECT_TRUE(lost_);
  EXPECT_EQ(hooks_.runs, 0);
}

}  // namespace
}  // namespace lossd
