// All operations of this build, and a request from message to reply.
#ifndef LOSSD_KERNELS_CORE_REGISTRY_H_
#define LOSSD_KERNELS_CORE_REGISTRY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/core/op.h"
#include "lossd/v1/service.pb.h"

namespace lossd {

// Immutable after Create; thread-safe.
class Registry {
 public:
  // Errors: INTERNAL if the oneof of lossd.v1.Op and the kernels' list differ, or a message's options are inconsistent.
  static absl::StatusOr<Registry> Create();
  // The same of given operations: tests use fakes.
  static absl::StatusOr<Registry> Create(std::vector<std::unique_ptr<Op>> ops);

  const std::vector<std::unique_ptr<Op>>& ops() const { return ops_; }
  // By message name ("LinearCrossEntropy") or field name ("linear_cross_entropy"); nullptr if there is none.
  const Op* Find(absl::string_view name) const;
  // The op of a request and its message. Errors: INVALID_ARGUMENT "op" if none is set.
  absl::StatusOr<const Op*> Select(const v1::Op& op,
                                   const google::protobuf::Message** request) const;
  // Name, formula and source of each.
  void List(v1::ListOpsReply* reply) const;

 private:
  std::vector<std::unique_ptr<Op>> ops_;
};

// One op of a request after admission: checked and bound, not yet run. Movable; keeps its regions open.
struct AdmittedOp {
  const Op* op = nullptr;
  const google::protobuf::Message* request = nullptr;  // borrowed
  Dims dims;
  Binding binding;
};

// Everything that can be refused without the device. Thread-safe; called by the transport's threads.
absl::StatusOr<AdmittedOp> Admit(const Registry& registry, const v1::Op& op,
                                 const RegionResolver& regions,
                                 const std::vector<std::string>& donated = {});

// An op between Launch and Collect.
struct LaunchedOp {
  PendingResult pending;
  ResultRecord record;  // host copy, filled by the time of Synchronize
  std::vector<std::string>
      outputs;  // host copies of the outputs that go back in the reply, one for each such tensor
};

// Stages inline tensors, enqueues the op, enqueues the copies of its record and inline outputs to *launched (which must not move
// until Synchronize). Without options.host_may_wait nothing is copied to the host: the record stays at launched->pending.record, and
// there may be no inline tensors. Called by the dispatcher. The workspace must have been reset; several ops of a request may share it.
absl::Status Launch(AdmittedOp& admitted, const RunOptions& options, Backend& backend,
                    LaunchedOp* launched);

// After Synchronize: the reply. Errors: the data error of the record.
absl::Status Collect(const AdmittedOp& admitted, LaunchedOp& launched, v1::OpReply* reply);

// Launch + Synchronize + Collect for one op with a fresh workspace.
absl::Status RunOp(AdmittedOp& admitted, const RunOptions& options, Backend& backend,
                   v1::OpReply* reply);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CORE_REGISTRY_H_
