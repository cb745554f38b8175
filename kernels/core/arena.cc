#include "kernels/core/arena.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"

namespace lossd {

uint64_t Arena::available() const {
  const uint64_t end = limit_ == 0 ? bytes_ : std::min(bytes_, limit_);
  return end > used_ ? end - used_ : 0;
}

absl::StatusOr<void*> Arena::Allocate(uint64_t bytes, const char* what) {
  const uint64_t free = available();
  const uint64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded < bytes || rounded > free) {
    return ReasonError(
        absl::StatusCode::kResourceExhausted, "WORKSPACE",
        absl::StrCat("workspace: ", what, " needs ", bytes, " bytes, ", free, " of ", bytes_,
                     " are free; start the server with a larger workspace "
                     "or send fewer rows"));
  }
  void* memory = base_ + used_;
  if (parts_ != nullptr) parts_->push_back({what, used_, rounded});
  used_ += rounded;
  return memory;
}

void Arena::DropParts() {
  while (!parts_->empty() && parts_->back().begin >= used_) parts_->pop_back();
}

}  // namespace lossd
