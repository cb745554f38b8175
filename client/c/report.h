// How the C functions take arguments and report: Status to lossd_status, messages to lossd_bytes.
#ifndef LOSSD_CLIENT_C_REPORT_H_
#define LOSSD_CLIENT_C_REPORT_H_

#include <cstdint>
#include <exception>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/c/lossd.h"
#include "google/protobuf/message_lite.h"
#include "lossd/v1/service.pb.h"

#define LOSSD_C_RETURN_IF_ERROR(expression)                      \
  do {                                                           \
    absl::Status status_of_expression = (expression);            \
    if (!status_of_expression.ok()) return status_of_expression; \
  } while (false)

namespace lossd::c {

// Fills *to, which may be null, and returns the code.
int32_t Report(const absl::Status& from, lossd_status* to);

// INVALID_ARGUMENT with the detail that names the field.
absl::Status ArgumentError(absl::string_view field, absl::string_view must_be,
                           absl::string_view is);
// INVALID_ARGUMENT if the pointer is null.
absl::Status Given(absl::string_view field, const void* pointer);

// Serialized, in memory for lossd_bytes_free. Errors: RESOURCE_EXHAUSTED.
absl::Status CopyOut(const google::protobuf::MessageLite& message, lossd_bytes* to);

// Errors: INVALID_ARGUMENT for bytes that are none.
absl::Status ParseRequest(const uint8_t* request, size_t request_bytes, v1::RunRequest* to);

// Runs `body`, which returns a Status, and reports it. What a library throws must not reach a C caller.
template <class Body>
int32_t Guard(lossd_status* status, Body body) {
  try {
    return Report(body(), status);
  } catch (const std::bad_alloc&) {
    return Report(absl::ResourceExhaustedError("out of memory"), status);
  } catch (const std::exception& error) {
    return Report(absl::InternalError(error.what()), status);
  } catch (...) {
    return Report(absl::InternalError("an unknown exception"), status);
  }
}

}  // namespace lossd::c

#endif  // LOSSD_CLIENT_C_REPORT_H_
