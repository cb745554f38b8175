#include "server/grpc_status.h"

#include "server/rich_status.h"

namespace lossd {
namespace {

template <absl::StatusCode a, grpc::StatusCode b>
constexpr bool IsSame() {
  return static_cast<int>(a) == static_cast<int>(b);
}

static_assert(IsSame<absl::StatusCode::kOk, grpc::StatusCode::OK>());
static_assert(IsSame<absl::StatusCode::kCancelled, grpc::StatusCode::CANCELLED>());
static_assert(IsSame<absl::StatusCode::kUnknown, grpc::StatusCode::UNKNOWN>());
static_assert(IsSame<absl::StatusCode::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT>());
static_assert(IsSame<absl::StatusCode::kDeadlineExceeded, grpc::StatusCode::DEADLINE_EXCEEDED>());
static_assert(IsSame<absl::StatusCode::kNotFound, grpc::StatusCode::NOT_FOUND>());
static_assert(IsSame<absl::StatusCode::kAlreadyExists, grpc::StatusCode::ALREADY_EXISTS>());
static_assert(IsSame<absl::StatusCode::kPermissionDenied, grpc::StatusCode::PERMISSION_DENIED>());
static_assert(IsSame<absl::StatusCode::kUnauthenticated, grpc::StatusCode::UNAUTHENTICATED>());
static_assert(IsSame<absl::StatusCode::kResourceExhausted, grpc::StatusCode::RESOURCE_EXHAUSTED>());
static_assert(
    IsSame<absl::StatusCode::kFailedPrecondition, grpc::StatusCode::FAILED_PRECONDITION>());
static_assert(IsSame<absl::StatusCode::kAborted, grpc::StatusCode::ABORTED>());
static_assert(IsSame<absl::StatusCode::kOutOfRange, grpc::StatusCode::OUT_OF_RANGE>());
static_assert(IsSame<absl::StatusCode::kUnimplemented, grpc::StatusCode::UNIMPLEMENTED>());
static_assert(IsSame<absl::StatusCode::kInternal, grpc::StatusCode::INTERNAL>());
static_assert(IsSame<absl::StatusCode::kUnavailable, grpc::StatusCode::UNAVAILABLE>());
static_assert(IsSame<absl::StatusCode::kDataLoss, grpc::StatusCode::DATA_LOSS>());

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const v1::RichStatus rich = ToRichStatus(status);
  const auto code = static_cast<grpc::StatusCode>(rich.code());
  if (rich.details().empty()) return grpc::Status(code, rich.message());
  return grpc::Status(code, rich.message(), rich.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  v1::RichStatus rich;
  if (!status.error_details().empty() && rich.ParseFromString(status.error_details()) &&
      rich.code() == static_cast<int>(status.error_code())) {
    return FromRichStatus(rich);
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace lossd
