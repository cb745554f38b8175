// A call that was bound once, on other memory.
#ifndef LOSSD_KERNELS_CORE_REBIND_H_
#define LOSSD_KERNELS_CORE_REBIND_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/core/binding.h"

namespace lossd {

// One address for each of binding->tensors(), none of which may be of bytes in the message; checked as Binding::Create checks them.
// Errors: INVALID_ARGUMENT (number of addresses, alignment, overlap, null for a tensor that is not empty).
absl::Status MoveTensors(absl::Span<const uint64_t> addresses,
                         const std::vector<std::string>& donated, Binding* binding);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CORE_REBIND_H_
