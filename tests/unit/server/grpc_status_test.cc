#include "server/grpc_status.h"

#include "gtest/gtest.h"
#include "server/rich_status.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

TEST(GrpcStatusTest, CarriesTheDetailBothWays) {
  const absl::Status status = FieldError("clip_low", "between 0 and 1", "1.5");
  const grpc::Status wire = ToGrpcStatus(status);
  EXPECT_EQ(wire.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const absl::Status back = FromGrpcStatus(wire);
  EXPECT_EQ(back, status);
  EXPECT_EQ(GetErrorDetail(back)->is(), "1.5");
  EXPECT_OK(FromGrpcStatus(ToGrpcStatus(absl::OkStatus())));
}

TEST(GrpcStatusTest, CutsLongTexts) {
  const std::string text(9000, 'x');
  const grpc::Status wire = ToGrpcStatus(AnnotateOp(FieldError(text, text, text), text, 1));
  EXPECT_LE(wire.error_message().size(), kMaxStatusMessageBytes);
  EXPECT_LE(wire.error_details().size(), kMaxStatusDetailBytes);
  EXPECT_EQ(GetErrorDetail(FromGrpcStatus(wire))->op_index(), 1);
}

TEST(GrpcStatusTest, CutsBetweenCharacters) {
  EXPECT_EQ(CutText("short", 8), "short");
  EXPECT_EQ(CutText("abcdefghi", 8), "abcde...");
  EXPECT_EQ(CutText("abcd\xC3\xA9xyz", 8),
            "abcd...");  // the cut would fall into the e with its accent
}

}  // namespace
}  // namespace lossd
