#include "client/embedded/embedded.h"

#include <unistd.h>

#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/core/envelope.h"
#include "kernels/core/error.h"
#include "kernels/core/rebind.h"
#include "kernels/core/registry.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

class ProcessMemory final : public RegionResolver {
 public:
  absl::StatusOr<Region> Resolve(uint64_t region) const override {
    if (region != kProcessRegion) return absl::NotFoundError("no such region");
    Region all;
    all.bytes = std::numeric_limits<int64_t>::max();
    all.writable = true;
    return all;
  }
};

// What only a server has.
absl::Status CheckAbsent(const v1::RunRequest& request) {
  const auto refuse = [](const char* field) {
    return UnimplementedError(field, "absent without a server", "given");
  };
  if (request.has_request_id()) return refuse("request_id");
  if (request.has_ready()) return refuse("ready");
  if (request.has_done_event()) return refuse("done_event");
  if (request.has_result_record()) return refuse("result_record");
  if (request.has_timeout_ms()) return refuse("timeout_ms");
  return absl::OkStatus();
}

// A request that was admitted. Used inside a turn of its device.
struct Admitted {
  v1::RunRequest request;
  std::vector<std::string> donated;
  RunOptions options;
  std::vector<AdmittedOp> ops;
};

class EmbeddedDevice final : public Embedded {
 public:
  EmbeddedDevice(std::unique_ptr<BackendHolder> holder, Registry registry)
      : holder_(std::move(holder)),
        backend_(holder_->backend()),
        registry_(std::move(registry)),
        is_host_(backend_.device->is_host()) {
    backend_.launches = nullptr;  // addresses change from call to call
  }

  v1::ServerInfo info() const override {
    Device& device = *backend_.device;
    v1::ServerInfo info;
    info.set_version(LOSSD_VERSION);
    info.set_backend(device.backend());
    info.set_device(device.name());
    if (const std::string uuid = device.uuid(); !uuid.empty()) info.set_device_uuid(uuid);
    info.set_workspace_bytes(device.workspace().bytes());
    info.set_mps(device.mps());
    info.set_algorithm_table(device.algorithm_table());
    info.set_pid(::getpid());
    return info;
  }

  v1::ListOpsReply ListOps() const override {
    v1::ListOpsReply reply;
    registry_.List(&reply);
    *reply.mutable_server() = info();
    return reply;
  }

  absl::StatusOr<v1::RunReply> Run(const v1::RunRequest& request, void* stream) override {
    LOSSD_ASSIGN_OR_RETURN(const std::unique_ptr<Admitted> admitted, AdmitAll(request));
    for (const AdmittedOp& op : admitted->ops) {
      for (const BoundTensor& bound : op.binding.tensors()) {
        if (bound.in_message || bound.bytes == 0 || bound.view.data != nullptr) continue;
        return FieldError(bound.rule->name, "at an address", "at 0");
      }
    }
    v1::RunReply reply;
    const std::lock_guard<std::mutex> lock(mu_);
    LOSSD_RETURN_IF_ERROR(
        RunInTurn(*admitted, stream, request.completion() == v1::DONE || is_host_, &reply));
    return reply;
  }

  absl::StatusOr<std::unique_ptr<PreparedCall>> Prepare(const v1::RunRequest& request) override;

  absl::Status RunAt(Admitted& admitted, absl::Span<const uint64_t> addresses, void* stream,
                     v1::RunReply* reply) {
    const std::lock_guard<std::mutex> lock(mu_);
    size_t next = 0;
    for (AdmittedOp& op : admitted.ops) {
      const size_t count = op.binding.tensors().size();
      if (count > addresses.size() - next) {
        return FieldError("addresses", "one for each tensor", absl::StrCat(addresses.size()));
      }
      LOSSD_RETURN_IF_ERROR(
          MoveTensors(addresses.subspan(next, count), admitted.donated, &op.binding));
      next += count;
    }
    if (next != addresses.size()) {
      return FieldError("addresses", absl::StrCat("one for each of ", next, " tensors"),
                        absl::StrCat(addresses.size()));
    }
    return RunInTurn(admitted, stream, reply != nullptr || is_host_, reply);
  }

 private:
  absl::StatusOr<std::unique_ptr<Admitted>> AdmitAll(const v1::RunRequest& request) const {
    LOSSD_RETURN_IF_ERROR(CheckAbsent(request));
    LOSSD_RETURN_IF_ERROR(CheckOps(request));
    LOSSD_RETURN_IF_ERROR(CheckDonated(request, registry_));
    auto admitted = std::make_unique<Admitted>();
    admitted->request = request;
    admitted->donated.assign(request.donate().begin(), request.donate().end());
    admitted->options.batch_invariant = request.batch_invariant();
    admitted->options.gradient_filter = static_cast<float>(request.gradient_filter());
    const ProcessMemory memory;
    for (int i = 0; i < request.ops_size(); ++i) {
      absl::StatusOr<AdmittedOp> op =
          Admit(registry_, admitted->request.ops(i), memory, admitted->donated);
      if (!op.ok()) {
        const google::protobuf::Message* message = nullptr;
        const auto known = registry_.Select(request.ops(i), &message);
        return AnnotateOp(op.status(), known.ok() ? (*known)->name() : "Op", i);
      }
      admitted->ops.push_back(*std::move(op));
    }
    return admitted;
  }

  // mu_ is held. `reply` may be null.
  absl::Status RunInTurn(Admitted& admitted, void* stream, bool waits, v1::RunReply* reply) {
    Device& device = *backend_.device;
    LOSSD_ASSIGN_OR_RETURN(const int entered, holder_->Enter(stream));
    device.workspace().SetLimit(admitted.request.workspace_limit());
    absl::Status status;
    for (size_t i = 0; i < admitted.ops.size() && status.ok(); ++i) {
      status = RunOne(admitted.ops[i], admitted.options, waits, reply);
      if (!status.ok()) {
        status = AnnotateOp(status, admitted.ops[i].op->name(), static_cast<int>(i));
      }
    }
    device.workspace().SetLimit(0);
    holder_->Leave(entered);
    return status;
  }

  absl::Status RunOne(AdmittedOp& op, RunOptions options, bool waits, v1::RunReply* reply) {
    Device& device = *backend_.device;
    device.workspace().Reset();
    options.host_may_wait = waits;
    LaunchedOp launched;
    const absl::Status status = Launch(op, options, backend_, &launched);
    if (!waits && status.ok()) {
      if (reply != nullptr) reply->add_ops()->set_plan(launched.pending.plan);
      return status;
    }
    // Also after an error: copies to `launched` may be under way.
    LOSSD_RETURN_IF_ERROR(device.Synchronize());
    LOSSD_RETURN_IF_ERROR(status);
    v1::OpReply unwanted;
    return Collect(op, launched, reply != nullptr ? reply->add_ops() : &unwanted);
  }

  const std::unique_ptr<BackendHolder> holder_;
  Backend backend_;
  const Registry registry_;
  const bool is_host_;
  std::mutex mu_;  // one call at a time
};

class PreparedOnDevice final : public PreparedCall {
 public:
  PreparedOnDevice(EmbeddedDevice* device, std::unique_ptr<Admitted> admitted)
      : device_(device), admitted_(std::move(admitted)) {}
  absl::Status Run(absl::Span<const uint64_t> addresses, void* stream,
                   v1::RunReply* reply) override {
    return device_->RunAt(*admitted_, addresses, stream, reply);
  }

 private:
  EmbeddedDevice* const device_;
  const std::unique_ptr<Admitted> admitted_;
};

absl::StatusOr<std::unique_ptr<PreparedCall>> EmbeddedDevice::Prepare(
    const v1::RunRequest& request) {
  LOSSD_ASSIGN_OR_RETURN(std::unique_ptr<Admitted> admitted, AdmitAll(request));
  for (size_t i = 0; i < admitted->ops.size(); ++i) {
    for (const BoundTensor& bound : admitted->ops[i].binding.tensors()) {
      if (!bound.in_message) continue;
      return AnnotateOp(FieldError(bound.rule->name, "in the memory of the process", "inline"),
                        admitted->ops[i].op->name(), static_cast<int>(i));
    }
  }
  return std::make_unique<PreparedOnDevice>(this, std::move(admitted));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Embedded>> Embedded::Open(const EmbeddedOptions& options) {
  BackendOptions backend;
  backend.name = options.backend;
  backend.device = options.device;
  backend.workspace_bytes = options.workspace_bytes;
  backend.threads = options.threads;
  backend.algorithms = options.algorithms;
  backend.shares_process = true;
  LOSSD_ASSIGN_OR_RETURN(std::unique_ptr<BackendHolder> holder, CreateBackend(backend));
  LOSSD_ASSIGN_OR_RETURN(Registry registry, Registry::Create());
  return std::make_unique<EmbeddedDevice>(std::move(holder), std::move(registry));
}

}  // namespace lossd
