// The rules of RunRequest for a server that need neither tensors nor a session's state.
#include "kernels/core/envelope.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/result_record.h"
#include "kernels/core/status_macros.h"
#include "server/call.h"

namespace lossd {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;

absl::Status CheckRecord(const v1::RunRequest& request) {
  const v1::Tensor& record = request.result_record();
  LOSSD_RETURN_IF_ERROR(CheckKnown(record, "result_record"));
  LOSSD_RETURN_IF_ERROR(CheckKnown(record.region(), "result_record.region"));
  const uint64_t want = sizeof(ResultRecord) * static_cast<uint64_t>(request.ops_size());
  uint64_t elements = 1;
  for (int64_t extent : record.shape()) {
    // Both factors stay below 2^32, so that their product cannot wrap.
    if (extent <= 0 || static_cast<uint64_t>(extent) > want || elements > want) {
      elements = 0;
      break;
    }
    elements *= static_cast<uint64_t>(extent);
  }
  if (record.dtype() != v1::U8 || elements != want || record.strides_size() > 0) {
    return FieldError("result_record", absl::StrCat("u8 of ", want, " elements, row-major"),
                      absl::StrCat(v1::DType_Name(record.dtype()), " of ", elements, " elements"));
  }
  if (!record.has_region()) return FieldError("result_record", "in a region", "not in one");
  if (record.region().byte_offset() % alignof(ResultRecord) != 0) {
    return FieldError("result_record", "at a byte offset divisible by 8",
                      absl::StrCat(record.region().byte_offset()));
  }
  return absl::OkStatus();
}

absl::Status CheckCompletion(const v1::RunRequest& request, bool is_host) {
  if (is_host && request.completion() != v1::DONE) {
    return UnimplementedError("completion", "DONE on the cpu backend", "ENQUEUED");
  }
  if (is_host && request.has_ready()) {
    return UnimplementedError("ready", "absent on the cpu backend, which has no events", "given");
  }
  if (is_host && request.has_done_event()) {
    return UnimplementedError("done_event", "absent on the cpu backend, which has no events",
                              "given");
  }
  LOSSD_RETURN_IF_ERROR(CheckKnown(request.ready(), "ready"));
  if (request.has_ready() && !request.ready().has_event()) {
    return FieldError("ready.event", "given", "absent");
  }
  if (request.completion() == v1::ENQUEUED && !request.has_done_event()) {
    return FieldError("done_event", "given with completion ENQUEUED", "absent");
  }
  if (!request.has_result_record()) return absl::OkStatus();
  if (request.completion() == v1::DONE) {
    return FieldError("result_record", "absent with completion DONE: the reply has it all",
                      "given");
  }
  return CheckRecord(request);
}

}  // namespace

absl::Status CheckEnvelope(const v1::RunRequest& request, bool has_session, bool is_host) {
  LOSSD_RETURN_IF_ERROR(CheckOps(request));
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return FieldError("request_id", absl::StrCat("at most ", kMaxRequestIdBytes, " bytes"),
                      absl::StrCat(request.request_id().size()));
  }
  if (!request.request_id().empty() && !has_session) {
    return FieldError("request_id", "absent without a session, which would remember it", "given");
  }
  return CheckCompletion(request, is_host);
}

}  // namespace lossd
