#include "kernels/core/launch_cache.h"

#include "gtest/gtest.h"
#include "tests/testing/fake_backend.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

// Counts; what is recorded is done at once all the same.
class RecordingDevice final : public FakeDevice {
 public:
  bool can_record() const override { return true; }
  absl::Status BeginRecording() override {
    ++begun;
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<Recording>> EndRecording() override {
    ++ended;
    if (!records) return absl::InternalError("no");
    return std::make_shared<Recording>();
  }
  absl::Status Replay(Recording&) override {
    ++replayed;
    return absl::OkStatus();
  }

  bool records = true;
  int begun = 0;
  int ended = 0;
  int replayed = 0;
};

class LaunchCacheTest : public testing::Test, public RegionResolver {
 protected:
  absl::StatusOr<Region> Resolve(uint64_t) const override {
    return Region{const_cast<std::byte*>(memory_), sizeof(memory_), true, nullptr};
  }

  // LinearLogprob of one row, its tensors from byte `offset` on.
  void Run(uint64_t offset, bool host_may_wait = false, ResultRecord* record_copy = nullptr,
           absl::StatusCode code = absl::StatusCode::kOk) {
    v1::LinearLogprob op;
    const auto place = [&](v1::Tensor* tensor, std::vector<int64_t> shape) {
      tensor->set_dtype(v1::F32);
      for (const int64_t extent : shape) tensor->add_shape(extent);
      tensor->mutable_region()->set_byte_offset(offset);
      offset += 64;
    };
    place(op.mutable_linear()->mutable_hidden(), {1, 3});
    place(op.mutable_linear()->mutable_weight(), {4, 3});
    place(op.mutable_logprob(), {1});
    v1::Op request;
    *request.mutable_linear_logprob() = op;
    auto admitted = Admit(registry_, request, *this);
    ASSERT_OK(admitted);
    RunOptions options;
    options.host_may_wait = host_may_wait;
    options.record_copy = record_copy;
    device_.workspace().Reset();
    Backend backend{&device_, nullptr, &cache_};
    LaunchedOp launched;
    ASSERT_EQ(Launch(*admitted, options, backend, &launched).code(), code);
    if (code != absl::StatusCode::kOk) return;
    EXPECT_EQ(launched.pending.plan, "fake");
    EXPECT_EQ(launched.pending.record->count, 7);
  }

  FakeOpHooks hooks_;
  Registry registry_ = *FakeRegistry(&hooks_);
  RecordingDevice device_;
  LaunchCache cache_;
  alignas(64) std::byte memory_[4096] = {};
};

TEST_F(LaunchCacheTest, TheSecondLaunchIsRecordedAndLaterOnesAreReplayed) {
  Run(0);
  EXPECT_EQ(device_.begun, 0);
  Run(0);
  EXPECT_EQ(device_.begun, 1);
  EXPECT_EQ(device_.replayed, 1);
  EXPECT_EQ(hooks_.runs, 2);
  Run(0);
  Run(0);
  EXPECT_EQ(device_.begun, 1);
  EXPECT_EQ(device_.replayed, 3);
  EXPECT_EQ(hooks_.runs, 2);
}

TEST_F(LaunchCacheTest, OtherAddressesAreAnotherLaunch) {
  ResultRecord copy;
  for (int i = 0; i < 2; ++i) {
    Run(0);
    Run(256);
    Run(0, false, &copy);
  }
  EXPECT_EQ(cache_.size(), 3u);
  EXPECT_EQ(device_.begun, 3);
  EXPECT_EQ(hooks_.runs, 6);
}

TEST_F(LaunchCacheTest, AHostThatWaitsReplaysNothing) {
  for (int i = 0; i < 3; ++i) Run(0, true);
  EXPECT_EQ(cache_.size(), 0u);
  EXPECT_EQ(hooks_.runs, 3);
}

TEST_F(LaunchCacheTest, WhatCannotBeRecordedIsLaunchedAnew) {
  device_.records = false;
  for (int i = 0; i < 4; ++i) Run(0);
  EXPECT_EQ(device_.begun, 1);
  EXPECT_EQ(device_.replayed, 0);
  EXPECT_EQ(hooks_.runs, 5);
}

TEST_F(LaunchCacheTest, AnErrorWhileRecordingEndsTheRecordingAndIsNotKept) {
  Run(0);
  hooks_.run = [](const OpCall&, Backend&, ResultRecord*) {
    return absl::ResourceExhaustedError("workspace");
  };
  Run(0, false, nullptr, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(device_.begun, 1);
  EXPECT_EQ(device_.ended, 1);
  hooks_.run = nullptr;
  Run(0);
  Run(0);
  EXPECT_EQ(device_.replayed, 2);
}

TEST_F(LaunchCacheTest, ItForgetsRatherThanGrows) {
  for (uint64_t i = 0; i <= LaunchCache::kMaxLaunches; ++i) {
    Run(i % 32 * 64, false, reinterpret_cast<ResultRecord*>(memory_ + 8 * (i / 32)));
  }
  EXPECT_LE(cache_.size(), LaunchCache::kMaxLaunches);
}

}  // namespace
}  // namespace lossd
