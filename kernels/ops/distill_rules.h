// The rules between the fields of LinearDistillLoss that the schema cannot say. Look at no data.
#ifndef LOSSD_KERNELS_OPS_DISTILL_RULES_H_
#define LOSSD_KERNELS_OPS_DISTILL_RULES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/core/schema.h"
#include "lossd/v1/operations.pb.h"

namespace lossd {

// Teacher, divergence, weights and outputs; not the head, the gradients, the reduction.
// Errors: INVALID_ARGUMENT with the field.
absl::Status CheckDistill(const v1::LinearDistillLoss& request, const Dims& dims);

// How many ids count on each side, once the request has passed.
struct DistillVocabulary {
  int64_t student = 0;
  // Of the teacher's softmax.
  int64_t teacher = 0;
  // Columns of the divergence: the student's softmax in it.
  int64_t common = 0;
};
DistillVocabulary VocabularyOf(const v1::LinearDistillLoss& request, const Dims& dims);

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_DISTILL_RULES_H_
