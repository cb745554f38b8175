// Requests to explain a call: what the device is, and shapes that no call could have.
#include "server/explain.h"

#include <cmath>

#include "gmock/gmock.h"
#include "kernels/core/error.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

class ExplainTest : public ::testing::Test {
 protected:
  ExplainTest() : registry_(*Registry::Create()) {
    own_.backend = "cpu";
    own_.workspace_bytes = uint64_t{64} << 20;
    own_.threads = 3;
    v1::LinearCrossEntropy& op = *request_.mutable_op()->mutable_linear_cross_entropy();
    Set({64, 32}, op.mutable_linear()->mutable_hidden());
    Set({100, 32}, op.mutable_linear()->mutable_weight());
    Set({64}, op.mutable_head()->mutable_target());
    op.mutable_head()->mutable_target()->set_dtype(v1::I64);
  }

  static void Set(const std::vector<int64_t>& shape, v1::Tensor* tensor) {
    tensor->set_dtype(v1::F32);
    tensor->mutable_shape()->Assign(shape.begin(), shape.end());
  }
  v1::Tensor* hidden() {
    return request_.mutable_op()
        ->mutable_linear_cross_entropy()
        ->mutable_linear()
        ->mutable_hidden();
  }

  absl::Status Run() { return ExplainCall(registry_, own_, request_, &reply_); }
  void ExpectRefused(const std::string& field,
                     absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const absl::Status status = Run();
    EXPECT_EQ(status.code(), code) << status;
    const auto detail = GetErrorDetail(status);
    ASSERT_TRUE(detail.has_value()) << status;
    EXPECT_EQ(detail->field(), field) << status;
  }

  const Registry registry_;
  DeviceDescription own_;
  v1::ExplainRequest request_;
  v1::ExplainReply reply_;
};

TEST_F(ExplainTest, IsOfTheServersDeviceUnlessSaidOtherwise) {
  ASSERT_OK(Run());
  EXPECT_EQ(reply_.device().backend(), "cpu");
  EXPECT_EQ(reply_.device().workspace_bytes(), own_.workspace_bytes);
  EXPECT_EQ(reply_.device().threads(), 3u);
  ASSERT_EQ(reply_.passes_size(), 1);
  EXPECT_EQ(reply_.passes(0).logits_cost(), 2.0 * 64 * 32 * 100);
  EXPECT_EQ(reply_.passes(0).grad_weight_cost(), 0);
  EXPECT_GT(reply_.peak_bytes(), 64u * 100 * 4);

  request_.mutable_device()->set_workspace_bytes(uint64_t{1} << 30);
  request_.mutable_device()->set_threads(5);
  reply_.Clear();
  ASSERT_OK(Run());
  EXPECT_EQ(reply_.device().workspace_bytes(), uint64_t{1} << 30);
  EXPECT_EQ(reply_.device().threads(), 5u);
}

// Another backend has its own defaults, not this server's numbers.
TEST_F(ExplainTest, AnotherBackendHasItsOwnDefaults) {
  own_.backend = "cuda";
  own_.threads = 0;
  own_.compute_capability = 80;
  request_.mutable_device()->set_backend("cpu");
  ASSERT_OK(Run());
  EXPECT_EQ(reply_.device().workspace_bytes(), uint64_t{512} << 20);
  EXPECT_GT(reply_.device().threads(), 0u);
  EXPECT_FALSE(reply_.device().has_compute_capability());
}

TEST_F(ExplainTest, RefusesDevicesThatAreNone) {
  request_.mutable_device()->set_backend("tpu");
  ExpectRefused("backend");
  request_.mutable_device()->set_backend("cpu");
  request_.mutable_device()->set_workspace_bytes(uint64_t{1} << 60);
  ExpectRefused("workspace_bytes");
  request_.mutable_device()->clear_workspace_bytes();
  request_.mutable_device()->set_threads(1u << 31);
  ExpectRefused("threads");
  request_.mutable_device()->clear_threads();
  request_.mutable_device()->set_compute_capability(90);
  ExpectRefused("compute_capability");
  request_.mutable_device()->set_compute_capability(~0u);
  ExpectRefused("compute_capability");
  request_.clear_device();
  request_.set_completion(v1::ENQUEUED);
  ExpectRefused("completion", absl::StatusCode::kUnimplemented);
  request_.set_completion(v1::DONE);
  request_.set_gradient_filter(std::nan(""));
  ExpectRefused("gradient_filter");
  request_.set_gradient_filter(0);
  request_.GetReflection()->MutableUnknownFields(&request_)->AddVarint(1000, 1);
  ExpectRefused("1000");
}

TEST_F(ExplainTest, RefusesShapesThatNoCallHas) {
  const std::vector<std::vector<int64_t>> shapes = {
      {},
      {64},
      {-1, 32},
      {64, int64_t{1} << 62},
      {int64_t{1} << 40, 32},
      {int64_t{1} << 25, 32},
      {1 << 13, 1 << 12, 32},
      {2, 2, 2, 2, 2, 2, 2, 32},
  };
  for (const std::vector<int64_t>& shape : shapes) {
    Set(shape, hidden());
    const absl::Status status = Run();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
  Set({64, 32}, hidden());
  ASSERT_OK(Run());
  hidden()->add_strides(int64_t{1} << 62);
  hidden()->add_strides(1);
  ExpectRefused("hidden");
  hidden()->clear_strides();
  hidden()->set_dtype(v1::I32);
  ExpectRefused("hidden");
  request_.mutable_op()->Clear();
  ExpectRefused("op");
}

// Bytes and regions of a real call do no harm.
TEST_F(ExplainTest, DoesNotLookAtPlaces) {
  ASSERT_OK(Run());
  const std::string plan = reply_.passes(0).plan();
  hidden()->set_inline_data("too short");
  reply_.Clear();
  ASSERT_OK(Run());
  EXPECT_EQ(reply_.passes(0).plan(), plan);
  hidden()->mutable_region()->set_region(12345);
  hidden()->mutable_region()->set_byte_offset(~uint64_t{0});
  reply_.Clear();
  ASSERT_OK(Run());
  EXPECT_EQ(reply_.passes(0).plan(), plan);
}

TEST_F(ExplainTest, ASmallWorkspaceIsRefusedAsTheCallWouldBe) {
  request_.mutable_device()->set_workspace_bytes(4096);
  const absl::Status status = Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(GetErrorDetail(status)->reason(), "WORKSPACE");
}

}  // namespace
}  // namespace lossd
