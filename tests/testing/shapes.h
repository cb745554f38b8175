// Calls of given shapes without their numbers, for plans.
#ifndef LOSSD_TESTS_TESTING_SHAPES_H_
#define LOSSD_TESTS_TESTING_SHAPES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/core/registry.h"
#include "kernels/linear/planner.h"
#include "lossd/v1/service.pb.h"

namespace lossd {

struct Shape {
  int64_t rows = 8192;
  int64_t hidden = 4096;
  int64_t vocab = 128256;
  v1::DType model = v1::BF16;
};

inline v1::Tensor TensorOf(v1::DType dtype, const std::vector<int64_t>& extents) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  tensor.mutable_shape()->Assign(extents.begin(), extents.end());
  return tensor;
}

inline void SetLinear(const Shape& shape, v1::LinearInput* linear) {
  *linear->mutable_hidden() = TensorOf(shape.model, {shape.rows, shape.hidden});
  *linear->mutable_weight() = TensorOf(shape.model, {shape.vocab, shape.hidden});
}

// The loss and both gradients, that of the weight in `grad_weight`.
inline v1::Op CrossEntropyOf(const Shape& shape, v1::DType grad_weight = v1::F32) {
  v1::Op op;
  v1::LinearCrossEntropy& request = *op.mutable_linear_cross_entropy();
  SetLinear(shape, request.mutable_linear());
  *request.mutable_head()->mutable_target() = TensorOf(v1::I64, {shape.rows});
  *request.mutable_loss() = TensorOf(v1::F32, {1});
  *request.mutable_gradients()->mutable_grad_hidden() =
      TensorOf(shape.model, {shape.rows, shape.hidden});
  *request.mutable_gradients()->mutable_grad_weight() =
      TensorOf(grad_weight, {shape.vocab, shape.hidden});
  return op;
}

// Sum of the parts of that name; 0 if there is none.
inline uint64_t BytesOf(const std::vector<WorkspacePart>& parts, const std::string& what) {
  uint64_t bytes = 0;
  for (const WorkspacePart& part : parts) bytes += part.what == what ? part.bytes : 0;
  return bytes;
}

inline absl::StatusOr<Explanation> ExplainOn(Planner& planner, const v1::Op& op,
                                             const RunOptions& options = {}) {
  auto registry = Registry::Create();
  if (!registry.ok()) return registry.status();
  return Explain(*registry, op, options, planner);
}

}  // namespace lossd

#endif  // LOSSD_TESTS_TESTING_SHAPES_H_
