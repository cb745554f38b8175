// LOSSD_RETURN_IF_ERROR and LOSSD_ASSIGN_OR_RETURN: Debian's Abseil has neither.
#ifndef LOSSD_KERNELS_CORE_STATUS_MACROS_H_
#define LOSSD_KERNELS_CORE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define LOSSD_RETURN_IF_ERROR(expr)                                                       \
  do {                                                                                    \
    if (::absl::Status lossd_status_ = (expr); !lossd_status_.ok()) return lossd_status_; \
  } while (false)

#define LOSSD_STATUS_CONCAT_INNER_(a, b) a##b
#define LOSSD_STATUS_CONCAT_(a, b) LOSSD_STATUS_CONCAT_INNER_(a, b)
#define LOSSD_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) return std::move(tmp).status();     \
  lhs = *std::move(tmp)
// lhs may be a declaration: LOSSD_ASSIGN_OR_RETURN(auto x, F());
#define LOSSD_ASSIGN_OR_RETURN(lhs, expr) \
  LOSSD_ASSIGN_OR_RETURN_IMPL_(LOSSD_STATUS_CONCAT_(lossd_statusor_, __LINE__), lhs, expr)

#endif  // LOSSD_KERNELS_CORE_STATUS_MACROS_H_
