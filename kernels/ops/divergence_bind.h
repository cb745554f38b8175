// What a distillation and the divergences of two tensors have in common, and the whole course of the latter.
#ifndef LOSSD_KERNELS_OPS_DIVERGENCE_BIND_H_
#define LOSSD_KERNELS_OPS_DIVERGENCE_BIND_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/op.h"
#include "kernels/linear/engine.h"
#include "kernels/objectives/divergence_rows.h"
#include "lossd/v1/operations.pb.h"

namespace lossd {

// reduction, denominator, denominator_from and d_loss of one request.
struct ReductionFields {
  v1::Reduction reduction = v1::REDUCTION_SUM;
  bool has_denominator = false;
  double denominator = 1;
  bool has_denominator_from = false;
  DistillDenominator from = DistillDenominator::kGiven;
  bool has_loss = false;
  const v1::Tensor* d_loss = nullptr;  // null: absent
};

template <class M>
ReductionFields ReductionOf(const M& request, bool has_loss, const v1::Tensor* d_loss) {
  ReductionFields out;
  out.reduction = request.reduction();
  out.has_denominator = request.has_denominator();
  if (out.has_denominator) out.denominator = request.denominator();
  out.has_denominator_from = request.has_denominator_from();
  out.from = static_cast<DistillDenominator>(static_cast<int>(request.denominator_from()) - 1);
  out.has_loss = has_loss;
  out.d_loss = d_loss;
  return out;
}

// The rules of 1.7 and 1.8 of the specification between them.
absl::Status CheckReduction(const ReductionFields& fields, bool wants_gradient, const Dims& dims);
void BindReduction(const ReductionFields& fields, const Binding& binding, DivergenceRows* rows);

// Takes the program's arrays of N rows from the workspace; `metrics` of them.
absl::Status AllocateDivergence(int64_t rows, int32_t metrics, HeadEngine* engine,
                                DivergenceRows* program);

// The divergence of two tensors.
struct DivergenceFields {
  const v1::DistributionPair* pair = nullptr;
  const v1::DivergenceOutputs* outputs = nullptr;
  ReductionFields reduction;
};

template <class M>
DivergenceFields DivergenceFieldsOf(const M& request) {
  const v1::DistributionPair& pair = request.pair();
  return {&pair, &request.outputs(),
          ReductionOf(request, request.outputs().has_loss(),
                      pair.has_d_loss() ? &pair.d_loss() : nullptr)};
}

// Which kinds an operation takes, beside LOGITS, for the student, and for the teacher the same plus `teacher_probs`.
struct AllowedKinds {
  v1::DistributionKind other = v1::DISTRIBUTION_KIND_LOGPROBS;
  bool teacher_probs = false;
};
absl::Status CheckDivergence(const DivergenceFields& fields, const AllowedKinds& allowed,
                             const Dims& dims);

absl::StatusOr<PendingResult> EnqueueDivergence(const DivergenceFields& fields,
                                                const DivergenceKind<float>& kind,
                                                const OpCall& call, Backend& backend);

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_DIVERGENCE_BIND_H_
