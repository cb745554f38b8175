// Status expectations for tests: what Abseil's newer matchers offer.
#ifndef LOSSD_TESTS_TESTING_MATCHERS_H_
#define LOSSD_TESTS_TESTING_MATCHERS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "kernels/core/error.h"

namespace lossd {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <class T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// "INVALID_ARGUMENT clip_low", or "OK": what a refusal is judged by.
inline std::string Refusal(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  std::string text = absl::StatusCodeToString(status.code());
  if (detail && !detail->field().empty()) text += " " + detail->field();
  return text;
}
template <class T>
std::string Refusal(const absl::StatusOr<T>& result) {
  return Refusal(result.status());
}

}  // namespace lossd

#define EXPECT_OK(expr) EXPECT_TRUE(::lossd::StatusOf(expr).ok()) << ::lossd::StatusOf(expr)
#define ASSERT_OK(expr)                                        \
  do {                                                         \
    const ::absl::Status assert_ok_ = ::lossd::StatusOf(expr); \
    ASSERT_TRUE(assert_ok_.ok()) << assert_ok_;                \
  } while (false)

#endif  // LOSSD_TESTS_TESTING_MATCHERS_H_
