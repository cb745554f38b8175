#include "client/cpp/status.h"

#include <gtest/gtest.h>

#include "client/cpp/address.h"
#include "client/cpp/op_scan.h"
#include "lossd/v1/service.pb.h"

namespace lossd::client {
namespace {

constexpr char kUrl[] = "type.googleapis.com/lossd.v1.ErrorDetail";

v1::RichStatus Refusal() {
  v1::ErrorDetail detail;
  detail.set_field("terms[1].beta");
  detail.set_row(7);
  v1::RichStatus rich;
  rich.set_code(3);
  rich.set_message("terms[1].beta: must be above 0, is -1");
  rich.add_details()->set_type_url(kUrl);
  rich.mutable_details(0)->set_value(detail.SerializeAsString());
  return rich;
}

TEST(StatusTest, RichStatusKeepsItsDetail) {
  const absl::Status status = FromRich(Refusal());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "terms[1].beta: must be above 0, is -1");
  ASSERT_TRUE(ErrorDetailOf(status).has_value());
  EXPECT_EQ(ErrorDetailOf(status)->field(), "terms[1].beta");
  EXPECT_EQ(ErrorDetailOf(status)->row(), 7);
  EXPECT_TRUE(FromRich(v1::RichStatus()).ok());
}

TEST(StatusTest, GrpcDetailsAreDecoded) {
  const grpc::Status from(grpc::INVALID_ARGUMENT, "text", Refusal().SerializeAsString());
  const absl::Status status = FromGrpc(from);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "text");
  ASSERT_TRUE(ErrorDetailOf(status).has_value());
  EXPECT_EQ(ErrorDetailOf(status)->field(), "terms[1].beta");
}

TEST(StatusTest, GarbledDetailsLeaveCodeAndText) {
  const absl::Status status = FromGrpc(grpc::Status(grpc::UNAVAILABLE, "gone", "\xff\xff\xff"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "gone");
  EXPECT_FALSE(ErrorDetailOf(status).has_value());
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
}

TEST(StatusTest, CodesThatDoNotExistAreUnknown) {
  v1::RichStatus rich;
  rich.set_code(99);
  EXPECT_EQ(FromRich(rich).code(), absl::StatusCode::kUnknown);
  rich.set_code(-1);
  EXPECT_EQ(FromRich(rich).code(), absl::StatusCode::kUnknown);
}

TEST(StatusTest, PrefixKeepsDetails) {
  const absl::Status status = Prefix("unix:/x", FromRich(Refusal()));
  EXPECT_EQ(status.message(), "unix:/x: terms[1].beta: must be above 0, is -1");
  EXPECT_TRUE(ErrorDetailOf(status).has_value());
}

TEST(AddressTest, ReadsBothKinds) {
  EXPECT_EQ(Address::Parse("unix:/run/x.sock")->session_path, "/run/x.sock.session");
  EXPECT_EQ(Address::Parse("/run/x.sock")->text, "unix:/run/x.sock");
  EXPECT_EQ(Address::Parse("unix:///run/x.sock")->text, "unix:/run/x.sock");
  EXPECT_FALSE(Address::Parse("127.0.0.1:80")->is_unix());
  for (const std::string& wrong :
       {std::string(), std::string("host"), std::string("host:0"), std::string("host:x"),
        std::string(":1"), std::string("unix:"), "unix:/" + std::string(200, 'a')}) {
    const auto address = Address::Parse(wrong);
    ASSERT_TRUE(absl::IsInvalidArgument(address.status())) << wrong;
    EXPECT_EQ(ErrorDetailOf(address.status())->field(), "address");
  }
}

TEST(OpScanTest, FindsWhatIsAddedTo) {
  v1::RunRequest request;
  v1::LinearCrossEntropy* op = request.add_ops()->mutable_linear_cross_entropy();
  op->mutable_gradients()->set_grad_weight_mode(v1::GRAD_MODE_OVERWRITE);
  EXPECT_FALSE(Accumulates(request));
  op->mutable_gradients()->set_grad_bias_mode(v1::GRAD_MODE_ACCUMULATE);
  EXPECT_TRUE(Accumulates(request));
  EXPECT_TRUE(Accumulates(*op));
}

TEST(OpScanTest, FindsRegionsByField) {
  v1::RunRequest request;
  v1::LinearLogprob* op = request.add_ops()->mutable_linear_logprob();
  op->mutable_linear()->mutable_hidden()->mutable_region()->set_region(5);
  op->mutable_linear()->mutable_weight()->set_inline_data("x");
  op->mutable_logprob()->mutable_region()->set_region(6);
  std::vector<RegionUse> uses;
  FindRegions(request, &uses);
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_EQ(uses[0].field, "hidden");
  EXPECT_EQ(uses[0].region, 5u);
  EXPECT_EQ(uses[1].field, "logprob");
}

}  // namespace
}  // namespace lossd::client
