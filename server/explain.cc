#include "server/explain.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/core/envelope.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/linear/planner.h"
#include "server/call.h"

namespace lossd {
namespace {

absl::StatusOr<DeviceDescription> DeviceOf(const v1::DeviceDescription& given,
                                           const DeviceDescription& own) {
  DeviceDescription device;
  if (!given.has_backend() || given.backend() == own.backend) device = own;
  if (given.has_backend()) device.backend = given.backend();
  if (given.has_workspace_bytes()) device.workspace_bytes = given.workspace_bytes();
  if (given.threads() > 1024) {
    return FieldError("threads", "at most 1024", absl::StrCat(given.threads()));
  }
  if (given.has_threads()) device.threads = static_cast<int>(given.threads());
  if (given.compute_capability() > 1000) {
    return FieldError("compute_capability", "10 times the major number plus the minor",
                      absl::StrCat(given.compute_capability()));
  }
  if (given.has_compute_capability()) {
    device.compute_capability = static_cast<int>(given.compute_capability());
  }
  return device;
}

void CopyParts(const std::vector<WorkspacePart>& parts,
               google::protobuf::RepeatedPtrField<v1::WorkspacePart>* to) {
  for (const WorkspacePart& part : parts) {
    v1::WorkspacePart* added = to->Add();
    added->set_what(part.what);
    added->set_bytes(part.bytes);
  }
}

void CopyPass(const PlannedPass& pass, v1::PlannedPass* to) {
  to->set_plan(pass.plan);
  to->set_logits_cost(pass.cost.logits);
  to->set_grad_hidden_cost(pass.cost.grad_hidden);
  to->set_grad_weight_cost(pass.cost.grad_weight);
  for (const std::string& way : pass.ways) to->add_ways(way);
  for (const std::string& reason : pass.reasons) to->add_reasons(reason);
  CopyParts(pass.workspace, to->mutable_workspace());
}

}  // namespace

absl::Status ExplainCall(const Registry& registry, const DeviceDescription& own,
                         const v1::ExplainRequest& request, v1::ExplainReply* reply) {
  LOSSD_RETURN_IF_ERROR(CheckKnown(request, ""));
  LOSSD_RETURN_IF_ERROR(CheckKnown(request.op(), "op"));
  LOSSD_RETURN_IF_ERROR(CheckKnown(request.device(), "device"));
  LOSSD_ASSIGN_OR_RETURN(DeviceDescription device, DeviceOf(request.device(), own));
  LOSSD_ASSIGN_OR_RETURN(const std::unique_ptr<Planner> planner, CreatePlanner(&device));
  if (device.backend == "cpu" && request.completion() != v1::DONE) {
    return UnimplementedError("completion", "DONE on the cpu backend", "ENQUEUED");
  }
  LOSSD_RETURN_IF_ERROR(CheckGradientFilter(request.gradient_filter()));
  RunOptions options;
  options.batch_invariant = request.batch_invariant();
  options.gradient_filter = static_cast<float>(request.gradient_filter());
  options.host_may_wait = request.completion() == v1::DONE;
  LOSSD_ASSIGN_OR_RETURN(const Explanation explained,
                         Explain(registry, request.op(), options, *planner));
  v1::DeviceDescription* used = reply->mutable_device();
  used->set_backend(device.backend);
  used->set_workspace_bytes(device.workspace_bytes);
  if (device.threads > 0) used->set_threads(static_cast<uint32_t>(device.threads));
  if (device.compute_capability > 0) {
    used->set_compute_capability(static_cast<uint32_t>(device.compute_capability));
  }
  for (const PlannedPass& pass : explained.passes) CopyPass(pass, reply->add_passes());
  CopyParts(explained.workspace, reply->mutable_workspace());
  reply->set_peak_bytes(explained.peak_bytes);
  return absl::OkStatus();
}

}  // namespace lossd
