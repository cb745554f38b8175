#include "client/cpp/client.h"

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cpp/buffer.h"
#include "client/cpp/connection.h"
#include "client/cpp/op_scan.h"
#include "client/cpp/region_book.h"
#include "client/cpp/status.h"

namespace lossd {
namespace client {
namespace {

constexpr size_t kIpcHandleBytes = 64;
constexpr size_t kTorchPrefixBytes =
    2;  // torch puts a byte for the kind and one for the version before CUDA's handle
constexpr size_t kDeviceUuidBytes = 16;
// A buffer's end must not wait long for a server that does not answer.
constexpr absl::Duration kReleaseTimeout = absl::Seconds(2);

std::string RandomPrefix() {
  unsigned char bytes[8] = {};
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) bytes[0] = 1;
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes), sizeof bytes));
}

absl::Status CheckHandle(absl::string_view field, absl::string_view* handle) {
  if (handle->size() == kIpcHandleBytes + kTorchPrefixBytes)
    handle->remove_prefix(kTorchPrefixBytes);
  if (handle->size() == kIpcHandleBytes) return absl::OkStatus();
  return FieldError(field, "a CUDA IPC handle of 64 bytes (or torch's 66)",
                    absl::StrCat(handle->size(), " bytes"));
}

class ClientImpl final : public Client, public BufferHost {
 public:
  ClientImpl(const ClientOptions& options, const Address& address)
      : options_(options), address_(address), request_prefix_(RandomPrefix()) {}

  // Opens the first session.
  absl::Status Start() { return Acquire(absl::Now() + options_.connect_timeout).status(); }

  absl::StatusOr<v1::OpReply> Run(const google::protobuf::Message& op,
                                  const CallOptions& options) override;
  absl::StatusOr<v1::RunReply> Run(const v1::RunRequest& request, absl::Duration timeout) override;
  absl::StatusOr<std::unique_ptr<Buffer>> CreateBuffer(uint64_t bytes) override;
  absl::StatusOr<std::unique_ptr<Buffer>> AllocateAtServer(uint64_t bytes, v1::MemoryKind kind,
                                                           std::string* cuda_ipc) override;
  absl::StatusOr<std::unique_ptr<Buffer>> RegisterDevice(absl::string_view handle, uint64_t bytes,
                                                         absl::string_view device_uuid,
                                                         uint64_t buffer_id,
                                                         bool writable) override;
  absl::StatusOr<std::vector<std::string>> RegisterEvents(
      const std::vector<std::string>& ready_events) override;
  absl::StatusOr<v1::ListOpsReply> ListOps() override;
  absl::StatusOr<v1::ExplainReply> Explain(const v1::ExplainRequest& request) override;
  absl::StatusOr<v1::ListRegionsReply> ListRegions() override;
  v1::ServerInfo server_info() const override;

  absl::Status UploadTo(uint64_t region, uint64_t byte_offset, absl::string_view bytes) override;
  absl::Status DownloadFrom(uint64_t region, uint64_t byte_offset, std::byte* to,
                            uint64_t bytes) override;
  void Release(uint64_t region) override;

 private:
  absl::Time DeadlineOf(absl::Duration timeout) const {
    return absl::Now() + (timeout > absl::ZeroDuration() ? timeout : options_.call_timeout);
  }

  // The present session, or a new one in its place with all regions registered.
  absl::StatusOr<std::shared_ptr<Connection>> Acquire(absl::Time deadline);
  // Keeps sessions from being opened while it is held. Errors: UNAVAILABLE.
  absl::StatusOr<std::unique_lock<std::recursive_timed_mutex>> HoldOpening(absl::Time deadline);
  std::shared_ptr<Connection> Current() const {
    std::lock_guard<std::mutex> lock(mu_);
    return connection_;
  }
  // A session message; once more in a new session if the server has restarted since the last call.
  absl::StatusOr<v1::SessionReply> Control(const v1::SessionRequest& request,
                                           absl::Span<const int> fds,
                                           std::vector<UniqueFd>* reply_fds);
  absl::StatusOr<v1::RunReply> RunPrepared(const v1::RunRequest& request, absl::Time deadline);
  std::string NextRequestId() { return absl::StrCat(request_prefix_, "-", next_request_++); }
  absl::StatusOr<std::unique_ptr<Buffer>> Register(RegionEntry entry, uint64_t bytes);

  const ClientOptions options_;
  const Address address_;
  const std::string request_prefix_;
  std::atomic<uint64_t> next_request_{1};
  RegionBook regions_;

  // Held while a session is opened, and while a region is registered and noted, so that no new session misses one. Before mu_.
  std::recursive_timed_mutex opening_;
  mutable std::mutex mu_;
  std::shared_ptr<Connection> connection_;  // guarded by mu_
};

absl::StatusOr<std::unique_lock<std::recursive_timed_mutex>> ClientImpl::HoldOpening(
    absl::Time deadline) {
  std::unique_lock<std::recursive_timed_mutex> opening(opening_, std::defer_lock);
  if (!opening.try_lock_until(absl::ToChronoTime(deadline))) {
    return absl::UnavailableError(
        absl::StrCat(address_.text, ": another thread could not connect in time"));
  }
  return opening;
}

absl::StatusOr<std::shared_ptr<Connection>> ClientImpl::Acquire(absl::Time deadline) {
  std::shared_ptr<Connection> current = Current();
  if (current != nullptr && !current->lost()) return current;
  const absl::Time until = std::min(deadline, absl::Now() + options_.connect_timeout);
  const auto opening = HoldOpening(until);
  if (!opening.ok()) return opening.status();
  current = Current();
  if (current != nullptr && !current->lost()) return current;  // another thread has opened it
  auto opened = Connection::Open(address_, options_.name, options_.spin, until);
  if (!opened.ok()) return opened.status();
  const absl::Status registered = regions_.RegisterAll(**opened, until);
  if (!registered.ok()) return registered;
  std::lock_guard<std::mutex> lock(mu_);
  connection_ = *opened;
  return *opened;
}

absl::StatusOr<v1::OpReply> ClientImpl::Run(const google::protobuf::Message& op,
                                            const CallOptions& options) {
  v1::RunRequest request;
  v1::Op* slot = request.add_ops();
  const auto* oneof = v1::Op::descriptor()->oneof_decl(0);
  const google::protobuf::FieldDescriptor* field = nullptr;
  for (int i = 0; i < oneof->field_count(); ++i) {
    if (oneof->field(i)->message_type() == op.GetDescriptor()) field = oneof->field(i);
  }
  if (field != nullptr) {
    slot->GetReflection()->MutableMessage(slot, field)->CopyFrom(op);
  } else if (op.GetDescriptor() == v1::Op::descriptor()) {
    slot->CopyFrom(op);
  } else {
    return FieldError("op", "a message of lossd.v1.Op", op.GetDescriptor()->full_name());
  }
  if (options.batch_invariant) request.set_batch_invariant(true);
  if (options.workspace_limit != 0) request.set_workspace_limit(options.workspace_limit);
  for (const std::string& name : options.donate) request.add_donate(name);
  if (Accumulates(*slot)) request.set_request_id(NextRequestId());
  auto reply = RunPrepared(request, DeadlineOf(options.timeout));
  if (!reply.ok()) return reply.status();
  if (reply->ops_size() != 1) {
    return absl::InternalError(absl::StrCat("the server answered one op with ", reply->ops_size()));
  }
  return std::move(*reply->mutable_ops(0));
}

absl::StatusOr<v1::RunReply> ClientImpl::Run(const v1::RunRequest& request,
                                             absl::Duration timeout) {
  const absl::Time deadline = DeadlineOf(timeout);
  if (request.has_request_id() || !Accumulates(request)) return RunPrepared(request, deadline);
  v1::RunRequest named = request;
  named.set_request_id(NextRequestId());
  return RunPrepared(named, deadline);
}

absl::StatusOr<v1::RunReply> ClientImpl::RunPrepared(const v1::RunRequest& request,
                                                     absl::Time deadline) {
  for (bool again = false;; again = true) {
    auto connection = Acquire(deadline);
    if (!connection.ok()) return connection.status();
    const absl::Status usable = regions_.CheckNotLost(request);
    if (!usable.ok()) return usable;
    bool stale = false;
    auto reply = (*connection)->Run(request, deadline, &stale);
    if (reply.ok() || !stale || again) return reply;
  }
}

absl::StatusOr<v1::SessionReply> ClientImpl::Control(const v1::SessionRequest& request,
                                                     absl::Span<const int> fds,
                                                     std::vector<UniqueFd>* reply_fds) {
  const absl::Time deadline = DeadlineOf(absl::ZeroDuration());
  for (bool again = false;; again = true) {
    auto connection = Acquire(deadline);
    if (!connection.ok()) return connection.status();
    auto reply = (*connection)->Control(request, fds, reply_fds, deadline);
    if (reply.ok() || !absl::IsUnauthenticated(reply.status()) || again) return reply;
  }
}

absl::StatusOr<std::unique_ptr<Buffer>> ClientImpl::Register(RegionEntry entry, uint64_t bytes) {
  const uint64_t region = regions_.NextId();
  entry.registration.set_region(region);
  entry.registration.set_bytes(bytes);
  v1::SessionRequest request;
  *request.mutable_register_() = entry.registration;
  std::vector<int> fds;
  if (entry.memory != nullptr) fds.push_back(entry.memory->fd());
  std::vector<UniqueFd> reply_fds;
  const auto opening = HoldOpening(DeadlineOf(absl::ZeroDuration()));
  if (!opening.ok()) return opening.status();
  auto reply = Control(request, fds, &reply_fds);
  if (!reply.ok()) return reply.status();
  const v1::RegionInfo& info = reply->register_().region();
  std::shared_ptr<SharedMemory> memory = entry.memory;
  regions_.Add(region, std::move(entry));
  if (info.region() != region) return absl::InternalError("the server gave the region another id");
  return std::make_unique<RegionBuffer>(this, region, bytes != 0 ? bytes : info.bytes(),
                                        std::move(memory));
}

absl::StatusOr<std::unique_ptr<Buffer>> ClientImpl::CreateBuffer(uint64_t bytes) {
  if (!address_.is_unix()) return AllocateAtServer(bytes, v1::HOST, nullptr);
  auto memory = SharedMemory::Create(bytes);
  if (!memory.ok()) return memory.status();
  RegionEntry entry;
  entry.memory = *std::move(memory);
  entry.registration.set_memfd(true);
  entry.registration.set_access(v1::READ_WRITE);
  return Register(std::move(entry), bytes);
}

absl::StatusOr<std::unique_ptr<Buffer>> ClientImpl::AllocateAtServer(uint64_t bytes,
                                                                     v1::MemoryKind kind,
                                                                     std::string* cuda_ipc) {
  if (bytes == 0) return FieldError("bytes", "above 0", "0");
  const uint64_t region = regions_.NextId();
  v1::SessionRequest request;
  request.mutable_allocate()->set_bytes(bytes);
  request.mutable_allocate()->set_kind(kind);
  request.mutable_allocate()->set_region(region);
  std::vector<UniqueFd> fds;
  const auto opening = HoldOpening(DeadlineOf(absl::ZeroDuration()));
  if (!opening.ok()) return opening.status();
  auto reply = Control(request, {}, &fds);
  if (!reply.ok()) return reply.status();
  RegionEntry entry;
  entry.server_held = true;
  if (!fds.empty()) {
    auto memory = SharedMemory::Map(std::move(fds[0]), bytes);
    if (!memory.ok()) {
      Release(region);
      return memory.status();
    }
    entry.memory = *std::move(memory);
  }
  if (cuda_ipc != nullptr) *cuda_ipc = reply->allocate().cuda_ipc();
  std::shared_ptr<SharedMemory> memory = entry.memory;
  regions_.Add(region, std::move(entry));
  return std::make_unique<RegionBuffer>(this, region, bytes, std::move(memory));
}

absl::StatusOr<std::unique_ptr<Buffer>> ClientImpl::RegisterDevice(absl::string_view handle,
                                                                   uint64_t bytes,
                                                                   absl::string_view device_uuid,
                                                                   uint64_t buffer_id,
                                                                   bool writable) {
  const absl::Status checked = CheckHandle("handle", &handle);
  if (!checked.ok()) return checked;
  if (!device_uuid.empty() && device_uuid.size() != kDeviceUuidBytes) {
    return FieldError("device_uuid", "16 bytes or empty",
                      absl::StrCat(device_uuid.size(), " bytes"));
  }
  RegionEntry entry;
  entry.registration.set_cuda_ipc(handle.data(), handle.size());
  entry.registration.set_access(writable ? v1::READ_WRITE : v1::READ_ONLY);
  if (!device_uuid.empty())
    entry.registration.set_device_uuid(device_uuid.data(), device_uuid.size());
  entry.registration.set_buffer_id(buffer_id);
  return Register(std::move(entry), bytes);
}

absl::StatusOr<std::vector<std::string>> ClientImpl::RegisterEvents(
    const std::vector<std::string>& ready_events) {
  v1::SessionRequest request;
  for (size_t i = 0; i < ready_events.size(); ++i) {
    if (ready_events[i].size() != kIpcHandleBytes) {
      return FieldError(absl::StrCat("ready_events[", i, "]"), "a CUDA IPC handle of 64 bytes",
                        absl::StrCat(ready_events[i].size(), " bytes"));
    }
    request.mutable_register_events()->add_ready_events(ready_events[i]);
  }
  std::vector<UniqueFd> fds;
  auto reply = Control(request, {}, &fds);
  if (!reply.ok()) return reply.status();
  const auto& done = reply->register_events().done_events();
  return std::vector<std::string>(done.begin(), done.end());
}

absl::StatusOr<v1::ListOpsReply> ClientImpl::ListOps() {
  const absl::Time deadline = DeadlineOf(absl::ZeroDuration());
  auto connection = Acquire(deadline);
  if (!connection.ok()) return connection.status();
  return (*connection)->ListOps(deadline);
}

absl::StatusOr<v1::ExplainReply> ClientImpl::Explain(const v1::ExplainRequest& request) {
  const absl::Time deadline = DeadlineOf(absl::ZeroDuration());
  auto connection = Acquire(deadline);
  if (!connection.ok()) return connection.status();
  return (*connection)->Explain(request, deadline);
}

absl::StatusOr<v1::ListRegionsReply> ClientImpl::ListRegions() {
  v1::SessionRequest request;
  request.mutable_list();
  std::vector<UniqueFd> fds;
  auto reply = Control(request, {}, &fds);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_list());
}

v1::ServerInfo ClientImpl::server_info() const {
  const auto connection = Current();
  return connection == nullptr ? v1::ServerInfo() : connection->server();
}

absl::Status ClientImpl::UploadTo(uint64_t region, uint64_t byte_offset, absl::string_view bytes) {
  const absl::Time deadline = DeadlineOf(absl::ZeroDuration());
  auto connection = Acquire(deadline);
  if (!connection.ok()) return connection.status();
  if (regions_.IsLost(region)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "REGION_LOST",
                     "the buffer was memory of a server that has ended: allocate it again");
  }
  return (*connection)->Upload(region, byte_offset, bytes, deadline);
}

absl::Status ClientImpl::DownloadFrom(uint64_t region, uint64_t byte_offset, std::byte* to,
                                      uint64_t bytes) {
  const absl::Time deadline = DeadlineOf(absl::ZeroDuration());
  auto connection = Acquire(deadline);
  if (!connection.ok()) return connection.status();
  if (regions_.IsLost(region)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "REGION_LOST",
                     "the buffer was memory of a server that has ended: allocate it again");
  }
  return (*connection)->Download(region, byte_offset, to, bytes, deadline);
}

void ClientImpl::Release(uint64_t region) {
  const bool known = !regions_.IsLost(region);
  regions_.Remove(region);
  const auto connection = Current();
  if (!known || connection == nullptr || connection->lost()) return;
  v1::SessionRequest request;
  request.mutable_unregister()->set_region(region);
  std::vector<UniqueFd> fds;
  connection->Control(request, {}, &fds, absl::Now() + kReleaseTimeout).IgnoreError();
}

}  // namespace
}  // namespace client

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  const auto address = client::Address::Parse(options.address);
  if (!address.ok()) return address.status();
  auto connected = std::make_unique<client::ClientImpl>(options, *address);
  const absl::Status started = connected->Start();
  if (!started.ok()) return started;
  return connected;
}

}  // namespace lossd
