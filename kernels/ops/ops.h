// The factory of the operations in list.inc.
#ifndef LOSSD_KERNELS_OPS_OPS_H_
#define LOSSD_KERNELS_OPS_OPS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/op.h"

namespace lossd {

// One of each. Errors: INTERNAL if a message's options are inconsistent.
absl::StatusOr<std::vector<std::unique_ptr<Op>>> MakeOps();

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_OPS_H_
