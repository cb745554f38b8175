// From the messages that every linear operation shares to a head problem, with the rules between their fields.
#ifndef LOSSD_KERNELS_LINEAR_BIND_HEAD_H_
#define LOSSD_KERNELS_LINEAR_BIND_HEAD_H_

#include "absl/status/status.h"
#include "kernels/core/binding.h"
#include "kernels/core/schema.h"
#include "kernels/linear/head.h"
#include "lossd/v1/head.pb.h"

namespace lossd {

// Whether an operation can work on a part of the vocabulary without a group.
enum class ShardUse { kRefused, kAllowed };

// What the schema cannot say about the head, of a weight or of logits: extents of at least 1, bounds of the vocabulary options against each other,
// one temperature, ignore_index without target. Looks at no data.
// Errors: INVALID_ARGUMENT with the field; a shard that is refused names vocab_total.
absl::Status CheckHead(const v1::LinearInput& linear, const v1::HeadOptions& head, const Dims& dims,
                       ShardUse shard);
absl::Status CheckLogitsHead(const v1::HeadOptions& head, const Dims& dims, ShardUse shard);

// Whether weight, or logits, is only a part of the vocabulary.
bool IsShard(const v1::HeadOptions& head, const Dims& dims);

// A gradient that cannot be made, a mode without its gradient, a reduction without a group.
absl::Status CheckGradients(const v1::LinearInput& linear, const v1::LinearGradients& gradients);

// Whether any of the three is wanted.
bool WantsGradients(const v1::LinearGradients& gradients);

// Views of the call's tensors; the messages must have passed the checks above.
HeadProblem BindHead(const v1::LinearInput& linear, const v1::HeadOptions& head, const Dims& dims,
                     const Binding& binding);
HeadProblem BindLogitsHead(const v1::Tensor& logits, const v1::HeadOptions& head, const Dims& dims,
                           const Binding& binding);
HeadGradients BindGradients(const v1::LinearGradients& gradients, const Binding& binding);

// The rows of a [N] tensor, or of a [N, width] one; absent if the request does not have it.
RowsView BindColumn(const v1::Tensor& tensor, const Binding& binding);
RowsView BindMatrix(const v1::Tensor& tensor, const Binding& binding);

}  // namespace lossd

#endif  // LOSSD_KERNELS_LINEAR_BIND_HEAD_H_
