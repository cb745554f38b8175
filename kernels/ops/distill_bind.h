// From a distillation request that has passed its rules to the pass that a backend runs.
#ifndef LOSSD_KERNELS_OPS_DISTILL_BIND_H_
#define LOSSD_KERNELS_OPS_DISTILL_BIND_H_

#include "kernels/core/binding.h"
#include "kernels/core/schema.h"
#include "kernels/linear/pair.h"
#include "lossd/v1/operations.pb.h"

namespace lossd {

// Everything but the workspace, the rows and the record. `head` is the student.
PairPass BindDistill(const v1::LinearDistillLoss& request, const HeadProblem& head,
                     const Dims& dims, const Binding& binding);

}  // namespace lossd

#endif  // LOSSD_KERNELS_OPS_DISTILL_BIND_H_
