// What the layers' operations have in common: no numbers in the reply, and one call of the layer backend.
#ifndef LOSSD_KERNELS_OPS_LAYER_OP_H_
#define LOSSD_KERNELS_OPS_LAYER_OP_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/op.h"
#include "kernels/core/tensor_view.h"
#include "kernels/layers/layer_backend.h"

namespace lossd {

template <class M>
class LayerOp : public TypedOp<M> {
 public:
  using TypedOp<M>::TypedOp;

  const std::vector<std::string>& metric_names() const final {
    static const auto* const kNone = new std::vector<std::string>;
    return *kNone;
  }
  bool records() const final { return false; }

 protected:
  // Enqueues the call on `layers`; clears call.record.
  virtual absl::Status Run(const M& request, const OpCall& op_call, LayerBackend& layers,
                           const LayerCall& call) const = 0;

 private:
  absl::StatusOr<PendingResult> EnqueueRequest(const M& request, const OpCall& op_call,
                                               Backend& backend) const final {
    PendingResult result;
    absl::StatusOr<ResultRecord*> record =
        backend.device->workspace().AllocateArray<ResultRecord>(1, "the result record");
    if (!record.ok()) return std::move(record).status();
    result.record = *record;
    if (backend.layers == nullptr)
      return result;  // a planner: layers have one way, which needs no plan
    LayerCall call;
    call.record = result.record;
    call.record_copy = op_call.options.record_copy;
    call.plan = &result.plan;
    const absl::Status status = Run(request, op_call, *backend.layers, call);
    if (!status.ok()) return status;
    return result;
  }

  void FillReply(const M&, const ResultRecord&, v1::OpReply*) const final {}
};

// The type of one tensor must be that of another: "of type bf16 as x".
absl::Status CheckSameType(const v1::Tensor& tensor, absl::string_view field,
                           const v1::Tensor& other, absl::string_view other_field);
// A real option that the kernels hold as fp32.
absl::Status CheckFitsFloat(double value, absl::string_view field);
// The last dimension, which has at least 1 column.
absl::Status CheckWidth(int64_t width, absl::string_view field);

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_LAYER_OP_H_
