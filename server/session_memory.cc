#include "server/session_memory.h"

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "server/memfd.h"

namespace lossd {
namespace {

constexpr size_t kHandleBytes = 64;
constexpr size_t kMaxClientNameBytes = 64;
constexpr uint32_t kProtocol = 1;
constexpr int kMaxEventsPerRequest = 64;

absl::Status CheckKnown(const google::protobuf::Message& message) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  if (unknown.empty()) return absl::OkStatus();
  return FieldError(absl::StrCat(unknown.field(0).number()),
                    "a field or value that this server knows", "unknown");
}

absl::Status CheckBytes(uint64_t claimed, uint64_t real) {
  if (claimed <= real) return absl::OkStatus();
  return FieldError("bytes", absl::StrCat("at most the ", real, " bytes that the memory has"),
                    absl::StrCat(claimed));
}

absl::StatusOr<std::shared_ptr<Mapping>> OpenMemfd(Device& device,
                                                   const v1::RegisterRegionRequest& request,
                                                   const UniqueFd& fd) {
  if (!request.memfd()) return FieldError("memfd", "true", "false");
  if (!fd) {
    return FieldError("memfd", "with one descriptor attached, on the session socket", "without");
  }
  const bool writable = request.access() == v1::READ_WRITE;
  LOSSD_ASSIGN_OR_RETURN(std::shared_ptr<HostMapping> host, MapMemfd(fd.get(), writable));
  LOSSD_RETURN_IF_ERROR(CheckBytes(request.bytes(), host->bytes()));
  LOSSD_ASSIGN_OR_RETURN(SharedMemory memory, device.MapHost(host->base(), host->bytes(), host));
  auto mapping = std::make_shared<Mapping>();
  mapping->base = memory.base;
  mapping->host = host->base();
  mapping->bytes = host->bytes();
  mapping->kind = v1::HOST;
  mapping->owner = std::move(memory.owner);
  return mapping;
}

absl::StatusOr<std::shared_ptr<Mapping>> OpenCuda(Device& device, Session& session,
                                                  const v1::RegisterRegionRequest& request) {
  const std::string& handle = request.cuda_ipc();
  if (handle.size() != kHandleBytes) {
    return FieldError("cuda_ipc", absl::StrCat(kHandleBytes, " bytes"),
                      absl::StrCat(handle.size(), " bytes"));
  }
  const std::string uuid = device.uuid();
  if (!uuid.empty() && request.has_device_uuid() && request.device_uuid() != uuid) {
    v1::ErrorDetail detail;
    detail.set_reason("WRONG_GPU");
    detail.set_field("device_uuid");
    detail.set_must_be(absl::BytesToHexString(uuid));
    detail.set_is(absl::BytesToHexString(request.device_uuid().substr(0, 16)));
    return DetailError(absl::StatusCode::kFailedPrecondition, detail);
  }
  if (session.pid_collision()) {
    return ReasonError(
        absl::StatusCode::kFailedPrecondition, "PID_COLLISION",
        "cuda_ipc: client and server have the same process id in different namespaces, which CUDA "
        "does not allow; share the pid namespace, or start either through an init process");
  }
  LOSSD_RETURN_IF_ERROR(session.regions().RemoveStale(handle, request.buffer_id()));
  LOSSD_ASSIGN_OR_RETURN(SharedMemory memory, device.OpenHandle(handle));
  LOSSD_RETURN_IF_ERROR(CheckBytes(request.bytes(), memory.bytes));
  auto mapping = std::make_shared<Mapping>();
  mapping->base = memory.base;
  mapping->bytes = memory.bytes;
  mapping->kind = v1::DEVICE;
  mapping->handle = handle;
  mapping->owner = std::move(memory.owner);
  return mapping;
}

// Bytes taken from an allowance: given back when the memory behind them is gone.
struct CountedMemory {
  CountedMemory(std::shared_ptr<ByteQuota> from, uint64_t taken)
      : quota(std::move(from)), bytes(taken) {}
  ~CountedMemory() {
    owner.reset();
    quota->Give(bytes);
  }
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;

  const std::shared_ptr<ByteQuota> quota;
  const uint64_t bytes;
  std::shared_ptr<const void> owner;
};

}  // namespace

absl::Status CheckOpenRequest(const v1::OpenSessionRequest& request) {
  LOSSD_RETURN_IF_ERROR(CheckKnown(request));
  if (request.protocol() != kProtocol) {
    v1::ErrorDetail detail;
    detail.set_reason("PROTOCOL");
    detail.set_field("protocol");
    detail.set_must_be(absl::StrCat(kProtocol));
    detail.set_is(absl::StrCat(request.protocol()));
    return DetailError(absl::StatusCode::kFailedPrecondition, detail);
  }
  if (request.client_name().size() > kMaxClientNameBytes) {
    return FieldError("client_name", absl::StrCat("at most ", kMaxClientNameBytes, " bytes"),
                      absl::StrCat(request.client_name().size(), " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::RegisterRegionReply> RegisterRegion(Device& device, Session& session,
                                                       const v1::RegisterRegionRequest& request,
                                                       UniqueFd fd) {
  LOSSD_RETURN_IF_ERROR(CheckKnown(request));
  if (request.access() != v1::READ_ONLY && request.access() != v1::READ_WRITE) {
    return FieldError("access", "READ_ONLY or READ_WRITE", v1::Access_Name(request.access()));
  }
  LOSSD_RETURN_IF_ERROR(session.regions().CheckRoom(request.region()));
  absl::StatusOr<std::shared_ptr<Mapping>> opened;
  switch (request.handle_case()) {
    case v1::RegisterRegionRequest::kCudaIpc:
      opened = OpenCuda(device, session, request);
      break;
    case v1::RegisterRegionRequest::kMemfd:
      opened = OpenMemfd(device, request, fd);
      break;
    case v1::RegisterRegionRequest::HANDLE_NOT_SET:
      return FieldError("handle", "cuda_ipc or memfd", "absent");
  }
  LOSSD_RETURN_IF_ERROR(opened.status());
  (*opened)->access = request.access();
  (*opened)->buffer_id = request.buffer_id();
  v1::RegisterRegionReply reply;
  LOSSD_ASSIGN_OR_RETURN(*reply.mutable_region(),
                         session.regions().Add(request.region(), *std::move(opened)));
  return reply;
}

absl::StatusOr<v1::UnregisterRegionReply> UnregisterRegion(
    Session& session, const v1::UnregisterRegionRequest& request) {
  LOSSD_RETURN_IF_ERROR(CheckKnown(request));
  LOSSD_RETURN_IF_ERROR(session.regions().Remove(request.region()));
  return v1::UnregisterRegionReply();
}

absl::StatusOr<v1::AllocateRegionReply> AllocateRegion(Device& device, Session& session,
                                                       const v1::AllocateRegionRequest& request,
                                                       UniqueFd* fd) {
  LOSSD_RETURN_IF_ERROR(CheckKnown(request));
  if (request.kind() != v1::HOST && request.kind() != v1::DEVICE) {
    return FieldError("kind", "HOST or DEVICE", v1::MemoryKind_Name(request.kind()));
  }
  const std::shared_ptr<ByteQuota>& quota = session.memory_quota();
  if (request.bytes() == 0 || request.bytes() > quota->limit()) {
    return FieldError("bytes", absl::StrCat("from 1 to ", quota->limit()),
                      absl::StrCat(request.bytes()));
  }
  LOSSD_RETURN_IF_ERROR(session.regions().CheckRoom(request.region()));
  if (!quota->Take(request.bytes())) {
    return ReasonError(
        absl::StatusCode::kResourceExhausted, "QUOTA_MEMORY",
        absl::StrCat("bytes: the session holds ", quota->used(), " of ", quota->limit(),
                     " bytes of the server's memory; unregister some"));
  }
  const auto counted = std::make_shared<CountedMemory>(quota, request.bytes());
  auto mapping = std::make_shared<Mapping>();
  mapping->kind = request.kind();
  mapping->owner = counted;
  v1::AllocateRegionReply reply;
  SharedMemory memory;
  UniqueFd host_fd;
  if (request.kind() == v1::HOST) {
    LOSSD_ASSIGN_OR_RETURN(OwnMemfd own, CreateMemfd(request.bytes()));
    LOSSD_ASSIGN_OR_RETURN(memory,
                           device.MapHost(own.mapping->base(), own.mapping->bytes(), own.mapping));
    mapping->host = own.mapping->base();
    mapping->bytes = own.mapping->bytes();
    host_fd = std::move(own.fd);
  } else {
    LOSSD_ASSIGN_OR_RETURN(memory, device.AllocateShared(request.bytes()));
    mapping->bytes = memory.bytes;
    reply.set_cuda_ipc(memory.handle);
  }
  mapping->base = memory.base;
  counted->owner = std::move(memory.owner);
  LOSSD_ASSIGN_OR_RETURN(*reply.mutable_region(),
                         session.regions().Add(request.region(), std::move(mapping)));
  if (fd != nullptr) *fd = std::move(host_fd);
  return reply;
}

v1::ListRegionsReply ListRegions(Session& session) {
  v1::ListRegionsReply reply;
  for (v1::RegionInfo& info : session.regions().List()) *reply.add_regions() = std::move(info);
  return reply;
}

absl::StatusOr<v1::RegisterEventsReply> RegisterEvents(Device& device, Session& session,
                                                       const v1::RegisterEventsRequest& request) {
  LOSSD_RETURN_IF_ERROR(CheckKnown(request));
  if (request.ready_events_size() == 0 || request.ready_events_size() > kMaxEventsPerRequest) {
    return FieldError("ready_events", absl::StrCat("1 to ", kMaxEventsPerRequest, " handles"),
                      absl::StrCat(request.ready_events_size()));
  }
  for (int i = 0; i < request.ready_events_size(); ++i) {
    if (request.ready_events(i).size() == kHandleBytes) continue;
    return FieldError(absl::StrCat("ready_events[", i, "]"), absl::StrCat(kHandleBytes, " bytes"),
                      absl::StrCat(request.ready_events(i).size(), " bytes"));
  }
  std::vector<std::shared_ptr<DeviceEvent>> ready, done;
  v1::RegisterEventsReply reply;
  for (const std::string& handle : request.ready_events()) {
    LOSSD_ASSIGN_OR_RETURN(std::shared_ptr<DeviceEvent> opened, device.OpenEvent(handle));
    ready.push_back(std::move(opened));
    LOSSD_ASSIGN_OR_RETURN(std::shared_ptr<DeviceEvent> created, device.CreateEvent());
    reply.add_done_events(created->handle());
    done.push_back(std::move(created));
  }
  LOSSD_RETURN_IF_ERROR(session.AddEvents(std::move(ready), std::move(done)));
  return reply;
}

}  // namespace lossd
