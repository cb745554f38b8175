#include "server/dispatcher.h"

#include <future>
#include <string>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_backend.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

class TestWork final : public Work {
 public:
  explicit TestWork(std::function<absl::Status(bool* pending)> run = nullptr)
      : run_(std::move(run)) {}
  ~TestWork() override {
    if (on_destroyed) on_destroyed();
  }

  absl::Status CheckStillWanted() override { return unwanted; }
  absl::Status Run(Backend&, bool* pending) override {
    return run_ ? run_(pending) : absl::OkStatus();
  }
  void Settle(const absl::Status& status, bool launched) override {
    was_launched = launched;
    result_.set_value(status);
  }
  absl::Status Wait() { return result_.get_future().get(); }

  absl::Status unwanted;
  std::atomic<bool> was_launched{false};
  std::function<void()> on_destroyed;

 private:
  const std::function<absl::Status(bool*)> run_;
  std::promise<absl::Status> result_;
};

// Keeps the dispatcher busy until it is told to go on.
struct Gate {
  std::shared_ptr<TestWork> work = std::make_shared<TestWork>([this](bool*) {
    entered.set_value();
    open.get_future().wait();
    return absl::OkStatus();
  });
  std::promise<void> entered;
  std::promise<void> open;

  void Close(Dispatcher& dispatcher, uint64_t session = 99) {
    ASSERT_OK(dispatcher.Submit(session, work));
    entered.get_future().wait();
  }
  void Open() {
    open.set_value();
    EXPECT_OK(work->Wait());
  }
};

class DispatcherTest : public ::testing::Test {
 protected:
  Dispatcher& Make(int session_depth = 64, int total_depth = 1024) {
    Dispatcher::Options options;
    options.session_depth = session_depth;
    options.total_depth = total_depth;
    dispatcher_ = std::make_unique<Dispatcher>(
        Backend{&device_, nullptr}, options,
        [this](const absl::Status& status) { lost_.set_value(status); });
    return *dispatcher_;
  }

  FakeDevice device_;
  std::promise<absl::Status> lost_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(DispatcherTest, SessionsTakeTurns) {
  Dispatcher& dispatcher = Make();
  Gate gate;
  gate.Close(dispatcher);
  std::string order;
  std::vector<std::shared_ptr<TestWork>> works;
  const auto add = [&](uint64_t session, char name) {
    works.push_back(std::make_shared<TestWork>([&order, name](bool*) {
      order += name;
      return absl::OkStatus();
    }));
    ASSERT_OK(dispatcher.Submit(session, works.back()));
  };
  for (int i = 0; i < 4; ++i) add(1, 'a');
  add(2, 'b');
  add(3, 'c');
  add(2, 'b');
  gate.Open();
  for (auto& work : works) EXPECT_OK(work->Wait());
  EXPECT_EQ(order, "abcabaa");
}

TEST_F(DispatcherTest, AFullQueueSaysWhenToRetry) {
  Dispatcher& dispatcher = Make(2);
  Gate gate;
  gate.Close(dispatcher, 1);
  auto second = std::make_shared<TestWork>();
  ASSERT_OK(dispatcher.Submit(1, second));
  const absl::Status full = dispatcher.Submit(1, std::make_shared<TestWork>());
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(full)->reason(), "QUEUE_FULL");
  EXPECT_GE(GetErrorDetail(full)->retry_after_ms(), 1u);
  auto other = std::make_shared<TestWork>();
  EXPECT_OK(dispatcher.Submit(2, other));
  gate.Open();
  EXPECT_OK(second->Wait());
  EXPECT_OK(other->Wait());
}

TEST_F(DispatcherTest, AClientWithAsManyCallsAsPlacesIsNeverRefused) {
  Dispatcher& dispatcher = Make(1);
  for (int i = 0; i < 500; ++i) {
    auto work = std::make_shared<TestWork>();
    ASSERT_OK(dispatcher.Submit(1, work));
    ASSERT_OK(work->Wait());
  }
}

TEST_F(DispatcherTest, UnwantedWorkIsNotLaunched) {
  Dispatcher& dispatcher = Make();
  auto work = std::make_shared<TestWork>();
  work->unwanted = absl::DeadlineExceededError("late");
  ASSERT_OK(dispatcher.Submit(1, work));
  EXPECT_EQ(work->Wait().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(work->was_launched);
}

TEST_F(DispatcherTest, DropSettlesWhatIsQueuedAndOnlyThat) {
  Dispatcher& dispatcher = Make();
  Gate gate;
  gate.Close(dispatcher, 1);
  auto queued = std::make_shared<TestWork>();
  auto other = std::make_shared<TestWork>();
  ASSERT_OK(dispatcher.Submit(1, queued));
  ASSERT_OK(dispatcher.Submit(2, other));
  dispatcher.Drop(1, absl::AbortedError("gone"));
  EXPECT_EQ(queued->Wait().code(), absl::StatusCode::kAborted);
  gate.Open();
  EXPECT_OK(other->Wait());
}

TEST_F(DispatcherTest, PendingWorkIsKeptUntilTheDeviceIsDone) {
  Dispatcher& dispatcher = Make();
  std::promise<void> destroyed;
  std::atomic<bool> is_destroyed{false};
  auto work = std::make_shared<TestWork>([](bool* pending) {
    *pending = true;
    return absl::OkStatus();
  });
  work->on_destroyed = [&] {
    is_destroyed = true;
    destroyed.set_value();
  };
  ASSERT_OK(dispatcher.Submit(1, work));
  EXPECT_OK(work->Wait());
  work = nullptr;
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(is_destroyed);
  EXPECT_EQ(dispatcher.outstanding(), 1);
  device_.Reach();
  destroyed.get_future().wait();
  EXPECT_TRUE(dispatcher.Drain(absl::Now() + absl::Seconds(5)));
}

TEST_F(DispatcherTest, DrainFinishesWhatWasAcceptedAndRefusesTheRest) {
  Dispatcher& dispatcher = Make();
  Gate gate;
  gate.Close(dispatcher);
  auto queued = std::make_shared<TestWork>();
  ASSERT_OK(dispatcher.Submit(1, queued));
  auto drained = std::async(std::launch::async,
                            [&] { return dispatcher.Drain(absl::Now() + absl::Seconds(10)); });
  // Until the other thread has begun to drain, works are taken; then the queue is full.
  absl::Status refused;
  for (int i = 0; i < 5000 && refused.code() != absl::StatusCode::kUnavailable; ++i) {
    refused = dispatcher.Submit(2, std::make_shared<TestWork>());
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(GetErrorDetail(refused)->reason(), "DRAINING");
  gate.Open();
  EXPECT_OK(queued->Wait());
  EXPECT_TRUE(drained.get());
}

TEST_F(DispatcherTest, DrainGivesUpAtItsDeadline) {
  Dispatcher& dispatcher = Make();
  Gate gate;
  gate.Close(dispatcher);
  auto queued = std::make_shared<TestWork>();
  ASSERT_OK(dispatcher.Submit(1, queued));
  EXPECT_FALSE(dispatcher.Drain(absl::Now() + absl::Milliseconds(20)));
  EXPECT_EQ(queued->Wait().code(), absl::StatusCode::kUnavailable);
  gate.Open();
}

TEST_F(DispatcherTest, ALostDeviceFailsEverythingWithOneStatus) {
  Dispatcher& dispatcher = Make();
  Gate gate;
  gate.Close(dispatcher);
  auto losing = std::make_shared<TestWork>([](bool*) { return FakeDevice::Lost(); });
  auto queued = std::make_shared<TestWork>();
  ASSERT_OK(dispatcher.Submit(1, losing));
  ASSERT_OK(dispatcher.Submit(1, queued));
  gate.Open();
  EXPECT_TRUE(IsDeviceLost(losing->Wait()));
  EXPECT_TRUE(IsDeviceLost(queued->Wait()));
  EXPECT_FALSE(queued->was_launched);
  EXPECT_TRUE(IsDeviceLost(lost_.get_future().get()));
  EXPECT_TRUE(IsDeviceLost(dispatcher.Submit(1, std::make_shared<TestWork>())));
}

TEST_F(DispatcherTest, ALossIsSeenWhilePendingWorkIsWaitedFor) {
  Dispatcher& dispatcher = Make();
  auto work = std::make_shared<TestWork>([](bool* pending) {
    *pending = true;
    return absl::OkStatus();
  });
  ASSERT_OK(dispatcher.Submit(1, work));
  EXPECT_OK(work->Wait());
  device_.Lose();
  EXPECT_TRUE(IsDeviceLost(lost_.get_future().get()));
}

TEST_F(DispatcherTest, AnExceptionIsAnInternalErrorOfItsCallOnly) {
  Dispatcher& dispatcher = Make();
  auto bad = std::make_shared<TestWork>([](bool*) -> absl::Status { throw std::bad_alloc(); });
  auto good = std::make_shared<TestWork>();
  ASSERT_OK(dispatcher.Submit(1, bad));
  ASSERT_OK(dispatcher.Submit(1, good));
  EXPECT_EQ(bad->Wait().code(), absl::StatusCode::kInternal);
  EXPECT_OK(good->Wait());
}

TEST_F(DispatcherTest, ManyThreadsSubmitWhileSessionsEnd) {
  Dispatcher& dispatcher = Make(8, 20);
  std::atomic<int> settled{0}, accepted{0};
  std::vector<std::thread> threads;
  for (uint64_t session = 1; session <= 4; ++session) {
    threads.emplace_back([&, session] {
      for (int i = 0; i < 300; ++i) {
        auto work = std::make_shared<TestWork>([](bool* pending) {
          *pending = true;
          return absl::OkStatus();
        });
        work->on_destroyed = [&] { ++settled; };
        if (dispatcher.Submit(session, work).ok()) {
          ++accepted;
        } else {
          work->on_destroyed = nullptr;
        }
        if (i % 50 == 0) dispatcher.Drop(session, absl::AbortedError("gone"));
        if (i % 7 == 0) device_.Reach();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  device_.Reach();
  dispatcher_ = nullptr;
  EXPECT_EQ(settled, accepted);
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace lossd
