#include "server/call.h"

#include <cmath>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/session_memory.h"
#include "tests/testing/fake_backend.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

// Shape [2, 3] and [4, 3] f32 in region 1, logprob [2] in region 1 behind them.
v1::RunRequest RegionRequest() {
  v1::RunRequest request;
  v1::LinearLogprob& op = *request.add_ops()->mutable_linear_logprob();
  uint64_t offset = 0;
  const auto place = [&](v1::Tensor* tensor, std::vector<int64_t> shape) {
    tensor->set_dtype(v1::F32);
    int64_t elements = 1;
    for (int64_t extent : shape) {
      tensor->add_shape(extent);
      elements *= extent;
    }
    tensor->mutable_region()->set_region(1);
    tensor->mutable_region()->set_byte_offset(offset);
    offset += static_cast<uint64_t>(elements) * 4;
  };
  place(op.mutable_linear()->mutable_hidden(), {2, 3});
  place(op.mutable_linear()->mutable_weight(), {4, 3});
  place(op.mutable_logprob(), {2});
  return request;
}

v1::RunRequest InlineRequest() {
  v1::RunRequest request = RegionRequest();
  v1::LinearLogprob& op = *request.mutable_ops(0)->mutable_linear_logprob();
  op.mutable_linear()->mutable_hidden()->set_inline_data(std::string(24, '\0'));
  op.mutable_linear()->mutable_weight()->set_inline_data(std::string(48, '\0'));
  op.mutable_logprob()->set_inline_data("");
  return request;
}

struct Outcome {
  absl::Status status;
  v1::RunReply reply;
};

// A call under way, with its own request and reply.
class Running {
 public:
  Running(const CallContext& context, std::shared_ptr<Session> session, v1::RunRequest request,
          absl::Time deadline = absl::InfiniteFuture())
      : request_(std::move(request)),
        call_(std::make_shared<Call>(
            context, std::move(session), &request_, &reply_, deadline,
            [this](const absl::Status& status) { status_.set_value(status); })) {
    call_->Start();
  }
  Outcome Wait() {
    Outcome outcome;
    outcome.status = status_.get_future().get();
    outcome.reply = reply_;
    return outcome;
  }
  void Cancel() { call_->Cancel(); }

 private:
  const v1::RunRequest request_;
  v1::RunReply reply_;
  std::promise<absl::Status> status_;
  std::shared_ptr<Call> call_;
};

class CallTest : public ::testing::Test {
 protected:
  void SetUp() override { Make(/*is_host=*/true); }

  void Make(bool is_host) {
    dispatcher_ = nullptr;
    device_ = std::make_unique<FakeDevice>(is_host);
    if (!registry_) registry_ = *FakeRegistry(&hooks_);
    dispatcher_ = std::make_unique<Dispatcher>(Backend{device_.get(), nullptr},
                                               Dispatcher::Options(), [](const absl::Status&) {});
    context_.registry = &*registry_;
    context_.dispatcher = dispatcher_.get();
    context_.inline_limit_bytes = 1000;
    context_.is_host = is_host;
    context_.anonymous_inline_quota = std::make_shared<ByteQuota>(2000);
    session_ =
        std::make_shared<Session>(1, Session::Kind::kSocket, "token", "test", SessionLimits());
    AddRegion(1, v1::READ_WRITE);
  }

  void AddRegion(uint64_t id, v1::Access access) {
    auto mapping = std::make_shared<Mapping>();
    mapping->base = reinterpret_cast<std::byte*>(memory_);
    mapping->bytes = sizeof(memory_);
    mapping->access = access;
    ASSERT_OK(session_->regions().Add(id, std::move(mapping)));
  }

  Outcome Run(v1::RunRequest request) {
    return Running(context_, session_, std::move(request)).Wait();
  }
  std::string RefusalOf(v1::RunRequest request) { return Refusal(Run(std::move(request)).status); }

  // Every run waits for OpenGate.
  void CloseGate() {
    gate_ = std::promise<void>();
    entered_ = std::promise<void>();
    hooks_.run = [this, future = gate_.get_future().share()](const OpCall&, Backend&,
                                                             ResultRecord*) {
      if (!gate_seen_.exchange(true)) entered_.set_value();
      future.wait();
      return absl::OkStatus();
    };
  }

  FakeOpHooks hooks_;
  absl::optional<Registry> registry_;
  std::unique_ptr<FakeDevice> device_;
  CallContext context_;
  std::shared_ptr<Session> session_;
  std::promise<void> gate_, entered_;
  std::atomic<bool> gate_seen_{false};
  alignas(64) char memory_[8192] = {};
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(CallTest, RunsAndLetsGoOfItsRegions) {
  const Outcome outcome = Run(RegionRequest());
  ASSERT_OK(outcome.status);
  EXPECT_EQ(outcome.reply.ops(0).count(), 7);
  EXPECT_EQ(outcome.reply.ops(0).plan(), "fake");
  EXPECT_EQ(session_->regions().List()[0].uses(), 0u);
  EXPECT_EQ(session_->calls(), 0);
}

TEST_F(CallTest, InlineCallsNeedNoSessionUnlessTheServerSaysSo) {
  const Outcome outcome = Running(context_, nullptr, InlineRequest()).Wait();
  ASSERT_OK(outcome.status);
  EXPECT_EQ(outcome.reply.ops(0).outputs().at("logprob").inline_data().size(), 8u);
  EXPECT_EQ(Running(context_, nullptr, RegionRequest()).Wait().status.code(),
            absl::StatusCode::kUnauthenticated);
  context_.needs_session = true;
  EXPECT_EQ(Running(context_, nullptr, InlineRequest()).Wait().status.code(),
            absl::StatusCode::kUnauthenticated);
}

TEST_F(CallTest, RefusesWhatItDoesNotDoByName) {
  const auto with = [](auto change) {
    v1::RunRequest request = RegionRequest();
    change(request);
    return request;
  };
  EXPECT_EQ(RefusalOf(v1::RunRequest()), "INVALID_ARGUMENT ops");
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.set_gradient_filter(1); })),
            "INVALID_ARGUMENT gradient_filter");
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.set_gradient_filter(NAN); })),
            "INVALID_ARGUMENT gradient_filter");
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.add_donate("hidden"); })), "UNIMPLEMENTED donate");
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.add_donate("logprob"); })), "INVALID_ARGUMENT donate");
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.add_donate("nothing"); })), "INVALID_ARGUMENT donate");
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.set_completion(v1::ENQUEUED); })),
            "UNIMPLEMENTED completion");
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.mutable_ready()->set_event(0); })),
            "UNIMPLEMENTED ready");
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.set_done_event(0); })), "UNIMPLEMENTED done_event");
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.set_request_id(std::string(200, 'x')); })),
            "INVALID_ARGUMENT request_id");
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.mutable_unknown_fields()->AddVarint(99, 1); })),
            "INVALID_ARGUMENT 99");
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.mutable_result_record(); })),
            "INVALID_ARGUMENT result_record");
  v1::RunRequest named = InlineRequest();
  named.set_request_id("a");
  EXPECT_EQ(Refusal(Running(context_, nullptr, named).Wait().status),
            "INVALID_ARGUMENT request_id");
  EXPECT_EQ(hooks_.runs, 0);
}

TEST_F(CallTest, DonatedMemoryIsTheOutputs) {
  v1::RunRequest request;
  v1::CrossEntropy& op = *request.add_ops()->mutable_cross_entropy();
  op.mutable_logits()->set_dtype(v1::F32);
  op.mutable_logits()->add_shape(2);
  op.mutable_logits()->add_shape(8);
  op.mutable_logits()->mutable_region()->set_region(1);
  op.mutable_logits()->mutable_region()->set_byte_offset(64);
  *op.mutable_grad_logits() = op.logits();
  EXPECT_EQ(RefusalOf(request), "INVALID_ARGUMENT grad_logits");
  EXPECT_EQ(hooks_.runs, 0);
  request.add_donate("logits");
  ASSERT_OK(Run(request).status);
  EXPECT_EQ(hooks_.runs, 1);
  // One of the operations takes it: enough.
  *request.add_ops() = RegionRequest().ops(0);
  ASSERT_OK(Run(request).status);
  request.add_donate("hidden");
  EXPECT_EQ(RefusalOf(request), "UNIMPLEMENTED donate");
}

TEST_F(CallTest, NamesTheOpThatIsWrongAndRunsNone) {
  v1::RunRequest request = RegionRequest();
  *request.add_ops() = request.ops(0);
  request.mutable_ops(1)->mutable_linear_logprob()->mutable_logprob()->mutable_region()->set_region(
      2);
  const absl::Status status = Run(request).status;
  EXPECT_EQ(Refusal(status), "NOT_FOUND logprob");
  EXPECT_EQ(GetErrorDetail(status)->op(), "LinearLogprob");
  EXPECT_EQ(GetErrorDetail(status)->op_index(), 1);
  EXPECT_EQ(hooks_.runs, 0);
}

TEST_F(CallTest, TheFirstOpThatFailsEndsTheRequest) {
  hooks_.run = [this](const OpCall&, Backend&, ResultRecord* record) {
    if (hooks_.runs == 2) {
      record->code = static_cast<int>(absl::StatusCode::kInvalidArgument);
      record->row = 3;
    }
    return absl::OkStatus();
  };
  v1::RunRequest request = RegionRequest();
  for (int i = 0; i < 2; ++i) *request.add_ops() = request.ops(0);
  const absl::Status status = Run(request).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetail(status)->op_index(), 1);
  EXPECT_EQ(GetErrorDetail(status)->row(), 3);
  EXPECT_EQ(hooks_.runs, 2);
}

TEST_F(CallTest, WritesToAReadOnlyRegionAreRefused) {
  AddRegion(2, v1::READ_ONLY);
  v1::RunRequest request = RegionRequest();
  request.mutable_ops(0)->mutable_linear_logprob()->mutable_logprob()->mutable_region()->set_region(
      2);
  EXPECT_EQ(RefusalOf(request), "PERMISSION_DENIED logprob");
}

TEST_F(CallTest, InlineBytesHaveALimitAndAQuota) {
  context_.inline_limit_bytes = 47;
  const absl::Status status = Run(InlineRequest()).status;
  EXPECT_EQ(Refusal(status), "RESOURCE_EXHAUSTED weight");
  EXPECT_EQ(GetErrorDetail(status)->reason(), "INLINE_LIMIT");
  context_.inline_limit_bytes = 1000;
  context_.anonymous_inline_quota = std::make_shared<ByteQuota>(79);
  const absl::Status quota = Running(context_, nullptr, InlineRequest()).Wait().status;
  EXPECT_EQ(GetErrorDetail(quota)->reason(), "QUOTA_INLINE");
  context_.anonymous_inline_quota = std::make_shared<ByteQuota>(80);
  for (int i = 0; i < 3; ++i) ASSERT_OK(Running(context_, nullptr, InlineRequest()).Wait().status);
}

TEST_F(CallTest, ARepeatedRequestRunsOnce) {
  v1::RunRequest request = RegionRequest();
  request.set_request_id("a");
  const Outcome first = Run(request);
  const Outcome second = Run(request);
  ASSERT_OK(first.status);
  ASSERT_OK(second.status);
  EXPECT_EQ(hooks_.runs, 1);
  EXPECT_EQ(first.reply.SerializeAsString(), second.reply.SerializeAsString());
}

TEST_F(CallTest, AConcurrentRepeatWaitsForTheFirst) {
  CloseGate();
  v1::RunRequest request = RegionRequest();
  request.set_request_id("a");
  Running first(context_, session_, request);
  entered_.get_future().wait();
  Running second(context_, session_, request);
  gate_.set_value();
  ASSERT_OK(first.Wait().status);
  const Outcome outcome = second.Wait();
  ASSERT_OK(outcome.status);
  EXPECT_EQ(outcome.reply.ops(0).count(), 7);
  EXPECT_EQ(hooks_.runs, 1);
}

TEST_F(CallTest, ARepeatTakesOverFromAFirstThatWasCancelledInTheQueue) {
  CloseGate();
  Running blocker(context_, session_, RegionRequest());
  entered_.get_future().wait();
  v1::RunRequest request = RegionRequest();
  request.set_request_id("a");
  Running first(context_, session_, request);
  Running second(context_, session_, request);
  first.Cancel();
  gate_.set_value();
  EXPECT_EQ(first.Wait().status.code(), absl::StatusCode::kCancelled);
  ASSERT_OK(second.Wait().status);
  ASSERT_OK(blocker.Wait().status);
  EXPECT_EQ(hooks_.runs, 2);
}

TEST_F(CallTest, DeadlineCancelAndTheSessionsEndCountUntilTheLaunch) {
  CloseGate();
  Running blocker(context_, session_, RegionRequest());
  entered_.get_future().wait();
  Running late(context_, session_, RegionRequest(), absl::Now() + absl::Milliseconds(5));
  Running cancelled(context_, session_, RegionRequest());
  cancelled.Cancel();
  const auto other =
      std::make_shared<Session>(2, Session::Kind::kSocket, "t", "other", SessionLimits());
  v1::RunRequest inline_request = InlineRequest();
  Running ended(context_, other, inline_request);
  other->Close();
  blocker.Cancel();  // too late: it runs to its end
  absl::SleepFor(absl::Milliseconds(10));
  gate_.set_value();
  ASSERT_OK(blocker.Wait().status);
  EXPECT_EQ(late.Wait().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(cancelled.Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ended.Wait().status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(hooks_.runs, 1);
}

TEST_F(CallTest, AClosedSessionStartsNothing) {
  session_->Close();
  const absl::Status status = Run(RegionRequest()).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(GetErrorDetail(status)->reason(), "STALE_SESSION");
}

TEST_F(CallTest, WorkspaceLimitHoldsForItsRequestOnly) {
  v1::RunRequest request = RegionRequest();
  request.set_workspace_limit(256);
  const absl::Status status = Run(request).status;
  EXPECT_EQ(GetErrorDetail(status)->reason(), "WORKSPACE");
  EXPECT_OK(Run(RegionRequest()).status);
}

class EnqueuedTest : public CallTest {
 protected:
  void SetUp() override {
    Make(/*is_host=*/false);
    v1::RegisterEventsRequest events;
    events.add_ready_events(std::string(64, 'e'));
    ASSERT_OK(RegisterEvents(*device_, *session_, events));
  }

  v1::RunRequest EnqueuedRequest() {
    v1::RunRequest request = RegionRequest();
    request.set_completion(v1::ENQUEUED);
    request.set_done_event(0);
    request.mutable_ready()->set_event(0);
    v1::Tensor& record = *request.mutable_result_record();
    record.set_dtype(v1::U8);
    record.add_shape(sizeof(ResultRecord));
    record.mutable_region()->set_region(1);
    record.mutable_region()->set_byte_offset(1024);
    return request;
  }
};

TEST_F(EnqueuedTest, AnswersAtOnceAndHoldsRegionsUntilTheDeviceIsDone) {
  const Outcome outcome = Run(EnqueuedRequest());
  ASSERT_OK(outcome.status);
  EXPECT_EQ(outcome.reply.ops(0).plan(), "fake");
  EXPECT_FALSE(outcome.reply.ops(0).has_count());
  EXPECT_EQ(device_->waits(), 1);
  EXPECT_EQ(reinterpret_cast<const ResultRecord*>(memory_ + 1024)->count, 7);
  EXPECT_EQ(session_->regions().List()[0].uses(), 1u);
  device_->Reach();
  EXPECT_TRUE(dispatcher_->Drain(absl::Now() + absl::Seconds(5)));
}

TEST_F(EnqueuedTest, TheSessionsEndDoesNotCloseMemoryUnderTheDevice) {
  std::weak_ptr<const Mapping> mapping = *session_->regions().Find(1);
  ASSERT_OK(Run(EnqueuedRequest()).status);
  session_->Close();
  absl::SleepFor(absl::Milliseconds(5));
  EXPECT_FALSE(mapping.expired());
  device_->Reach();
  ASSERT_TRUE(dispatcher_->Drain(absl::Now() + absl::Seconds(5)));
  for (int i = 0; i < 1000 && !mapping.expired(); ++i) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(mapping.expired());
}

TEST_F(EnqueuedTest, NeedsADoneEventARecordThatFitsAndRegions) {
  const auto with = [this](auto change) {
    v1::RunRequest request = EnqueuedRequest();
    change(request);
    return request;
  };
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.clear_done_event(); })), "INVALID_ARGUMENT done_event");
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.set_done_event(1); })), "INVALID_ARGUMENT done_event");
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.mutable_ready()->set_event(1); })),
            "INVALID_ARGUMENT ready.event");
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.mutable_result_record()->set_shape(0, 8); })),
            "INVALID_ARGUMENT result_record");
  EXPECT_EQ(RefusalOf(with([](auto& r) { r.mutable_result_record()->set_dtype(v1::F32); })),
            "INVALID_ARGUMENT result_record");
  for (uint64_t offset : {uint64_t{8192 - 8}, ~uint64_t{7}, uint64_t{12}, uint64_t{0}}) {
    EXPECT_EQ(RefusalOf(with([&](auto& r) {
                r.mutable_result_record()->mutable_region()->set_byte_offset(offset);
              })),
              "INVALID_ARGUMENT result_record")
        << offset;
  }
  EXPECT_EQ(RefusalOf(with([](auto& r) {
              r.mutable_ops(0)->mutable_linear_logprob()->mutable_logprob()->set_inline_data("");
            })),
            "INVALID_ARGUMENT logprob");
  EXPECT_EQ(hooks_.runs, 0);
  EXPECT_OK(Run(with([](auto& r) { r.clear_result_record(); })).status);
  device_->Reach();
}

}  // namespace
}  // namespace lossd
