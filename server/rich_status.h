// absl::Status as a message: what goes into replies, frames and grpc-status-details-bin. Knows no gRPC.
#ifndef LOSSD_SERVER_RICH_STATUS_H_
#define LOSSD_SERVER_RICH_STATUS_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lossd/v1/error.pb.h"

namespace lossd {

// Beyond about 8 KB gRPC's client turns an error into another one ("received initial metadata size exceeds limit").
inline constexpr size_t kMaxStatusMessageBytes = 1024;
inline constexpr size_t kMaxStatusDetailBytes = 4096;

// At most `bytes` of text, cut between characters of UTF-8 and marked with "..." where it was cut.
std::string CutText(absl::string_view text, size_t bytes);

// With the ErrorDetail of the status; texts are cut to the limits above.
v1::RichStatus ToRichStatus(const absl::Status& status);
// The way back; further details are dropped.
absl::Status FromRichStatus(const v1::RichStatus& rich);

}  // namespace lossd

#endif  // LOSSD_SERVER_RICH_STATUS_H_
