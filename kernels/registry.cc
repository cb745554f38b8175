#include "kernels/core/registry.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/launch_cache.h"
#include "kernels/core/status_macros.h"
#include "kernels/ops/ops.h"

namespace lossd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::OneofDescriptor;

const OneofDescriptor* OpField() { return v1::Op::descriptor()->oneof_decl(0); }

}  // namespace

absl::StatusOr<Registry> Registry::Create() {
  LOSSD_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Op>> ops, MakeOps());
  return Create(std::move(ops));
}

absl::StatusOr<Registry> Registry::Create(std::vector<std::unique_ptr<Op>> ops) {
  Registry registry;
  registry.ops_ = std::move(ops);
  // The wire and the kernels must name the same operations.
  const OneofDescriptor* field = OpField();
  for (int i = 0; i < field->field_count(); ++i) {
    if (registry.Find(field->field(i)->message_type()->name()) == nullptr) {
      return absl::InternalError(
          absl::StrCat("no kernel for lossd.v1.Op.", field->field(i)->name()));
    }
  }
  for (const auto& op : registry.ops_) {
    bool found = false;
    for (int i = 0; i < field->field_count(); ++i) {
      found = found || field->field(i)->message_type() == op->schema().message();
    }
    if (!found)
      return absl::InternalError(absl::StrCat("no field of lossd.v1.Op for ", op->name()));
  }
  return registry;
}

const Op* Registry::Find(absl::string_view name) const {
  const FieldDescriptor* field = v1::Op::descriptor()->FindFieldByName(std::string(name));
  for (const auto& op : ops_) {
    if (op->name() == name ||
        (field != nullptr && field->message_type() == op->schema().message())) {
      return op.get();
    }
  }
  return nullptr;
}

absl::StatusOr<const Op*> Registry::Select(const v1::Op& op,
                                           const google::protobuf::Message** request) const {
  const auto* reflection = op.GetReflection();
  const FieldDescriptor* field = reflection->GetOneofFieldDescriptor(op, OpField());
  if (field == nullptr)
    return FieldError("op", "one of the operations of ListOps", "absent or unknown");
  *request = &reflection->GetMessage(op, field);
  return Find(field->message_type()->name());
}

void Registry::List(v1::ListOpsReply* reply) const {
  for (const auto& op : ops_) {
    v1::OpDescription* description = reply->add_ops();
    description->set_name(op->name());
    description->set_formula(op->schema().info().formula());
    description->set_source(op->schema().info().source());
    // Start-up fails if a backend lacks an operation.
    description->set_available(true);
  }
}

absl::StatusOr<AdmittedOp> Admit(const Registry& registry, const v1::Op& op,
                                 const RegionResolver& regions,
                                 const std::vector<std::string>& donated) {
  AdmittedOp admitted;
  LOSSD_ASSIGN_OR_RETURN(admitted.op, registry.Select(op, &admitted.request));
  LOSSD_ASSIGN_OR_RETURN(admitted.dims, admitted.op->schema().Check(*admitted.request));
  LOSSD_RETURN_IF_ERROR(admitted.op->Check(*admitted.request, admitted.dims));
  LOSSD_ASSIGN_OR_RETURN(admitted.binding, Binding::Create(admitted.op->schema(), *admitted.request,
                                                           regions, donated));
  return admitted;
}

absl::Status Launch(AdmittedOp& admitted, const RunOptions& options, Backend& backend,
                    LaunchedOp* launched) {
  Device& device = *backend.device;
  for (BoundTensor& bound : admitted.binding.tensors()) {
    if (!bound.in_message) continue;
    if (!options.host_may_wait) {
      return FieldError(bound.rule->name, "in a region when the call does not wait for the device",
                        "inline");
    }
    LOSSD_ASSIGN_OR_RETURN(bound.view.data,
                           device.workspace().Allocate(bound.bytes, bound.rule->name.c_str()));
    const std::string& bytes = bound.tensor->inline_data();
    if (!bytes.empty()) {
      LOSSD_RETURN_IF_ERROR(device.CopyIn(bound.view.data, bytes.data(), bytes.size()));
    } else if (bound.rule->is_output() && bound.rule->tensor.has_mode()) {
      LOSSD_RETURN_IF_ERROR(device.Zero(bound.view.data, bound.bytes));
    }
  }
  OpCall call;
  call.schema = &admitted.op->schema();
  call.request = admitted.request;
  call.binding = &admitted.binding;
  call.dims = admitted.dims;
  call.options = options;
  const bool recorded = !options.host_may_wait && backend.launches != nullptr &&
                        device.can_record() && admitted.op->records();
  LOSSD_ASSIGN_OR_RETURN(launched->pending,
                         recorded ? backend.launches->Enqueue(*admitted.op, call, backend)
                                  : admitted.op->Enqueue(call, backend));
  // Copies to pageable host memory would wait for the device: the caller copies the record within it.
  if (!options.host_may_wait) return absl::OkStatus();
  for (const BoundTensor& bound : admitted.binding.tensors()) {
    if (!bound.in_message || !bound.rule->is_output()) continue;
    launched->outputs.emplace_back(bound.bytes, '\0');
  }
  size_t next = 0;
  for (const BoundTensor& bound : admitted.binding.tensors()) {
    if (!bound.in_message || !bound.rule->is_output()) continue;
    LOSSD_RETURN_IF_ERROR(
        device.CopyOut(launched->outputs[next++].data(), bound.view.data, bound.bytes));
  }
  return device.CopyOut(&launched->record, launched->pending.record, sizeof(ResultRecord));
}

absl::Status Collect(const AdmittedOp& admitted, LaunchedOp& launched, v1::OpReply* reply) {
  LOSSD_RETURN_IF_ERROR(admitted.op->Finish(*admitted.request, launched.record, reply));
  reply->set_plan(launched.pending.plan);
  size_t next = 0;
  for (const BoundTensor& bound : admitted.binding.tensors()) {
    if (!bound.in_message || !bound.rule->is_output()) continue;
    v1::Tensor& out = (*reply->mutable_outputs())[bound.rule->name];
    out.set_dtype(bound.tensor->dtype());
    *out.mutable_shape() = bound.tensor->shape();
    out.set_inline_data(std::move(launched.outputs[next++]));
  }
  return absl::OkStatus();
}

absl::Status RunOp(AdmittedOp& admitted, const RunOptions& options, Backend& backend,
                   v1::OpReply* reply) {
  backend.device->workspace().Reset();
  LaunchedOp launched;
  LOSSD_RETURN_IF_ERROR(Launch(admitted, options, backend, &launched));
  LOSSD_RETURN_IF_ERROR(backend.device->Synchronize());
  return Collect(admitted, launched, reply);
}

}  // namespace lossd
