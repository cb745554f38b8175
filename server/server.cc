#include "server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

// What a message has beside its inline tensors.
constexpr uint64_t kMessageSlackBytes = 1 << 20;
// Works of the whole device, in sessions' queue depths.
constexpr int kTotalDepthFactor = 16;
constexpr int kMaxHandlerThreads = 64;

std::chrono::system_clock::time_point In(absl::Duration duration) {
  return absl::ToChronoTime(absl::Now() + duration);
}

absl::Status Stopping() {
  return ReasonError(absl::StatusCode::kUnavailable, "DRAINING", "the server is stopping");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Options& options, const Logger& log,
                                                      std::function<void()> on_lost) {
  auto server = std::unique_ptr<Server>(new Server(options, log, std::move(on_lost)));
  LOSSD_RETURN_IF_ERROR(server->Init());
  return server;
}

Server::Server(const Options& options, const Logger& log, std::function<void()> on_lost)
    : options_(options), log_(log), on_lost_(std::move(on_lost)) {}

Server::~Server() { Stop(absl::ZeroDuration()); }

absl::Status Server::Init() {
  const auto unix_address = std::find_if(options_.listen.begin(), options_.listen.end(),
                                         [](const ListenAddress& a) { return a.is_unix; });
  const bool has_unix = unix_address != options_.listen.end();
  if (has_unix) {
    // First of all: cheap, and it says so before a second device is filled.
    LOSSD_ASSIGN_OR_RETURN(lock_, SocketLock::Take(unix_address->path));
  }
  LOSSD_ASSIGN_OR_RETURN(Registry registry, Registry::Create());
  registry_ = std::move(registry);
  LOSSD_ASSIGN_OR_RETURN(
      backend_, CreateBackend({options_.backend, options_.workspace_bytes, options_.threads}));

  Dispatcher::Options queue;
  queue.session_depth = options_.queue_depth;
  queue.total_depth = options_.queue_depth * kTotalDepthFactor;
  queue.spin = options_.spin;
  dispatcher_ =
      std::make_unique<Dispatcher>(backend_->backend(), queue, [this](const absl::Status& status) {
        log_.Error("device_lost", {{"status", status}});
        SetHealth(false);
        lost_.store(true);
        on_lost_();
      });
  SessionLimits limits;
  limits.max_regions = options_.max_regions;
  limits.memory_bytes = options_.session_memory_bytes;
  limits.inline_bytes = options_.session_inline_bytes;
  sessions_ =
      std::make_unique<SessionTable>(options_.max_sessions, limits, [this](const Session& session) {
        dispatcher_->Drop(session.id(), ReasonError(absl::StatusCode::kAborted, "SESSION_CLOSED",
                                                    "the session ended before the launch"));
      });
  context_.registry = &*registry_;
  context_.dispatcher = dispatcher_.get();
  context_.inline_limit_bytes = options_.inline_limit_bytes;
  context_.is_host = backend_->backend().device->is_host();
  context_.needs_session = has_unix && options_.AllowsOtherUsers();
  context_.anonymous_inline_quota = std::make_shared<ByteQuota>(options_.session_inline_bytes);
  FillInfos();
  // The session socket comes first, so that a client that reaches gRPC finds it.
  if (has_unix) LOSSD_RETURN_IF_ERROR(StartSessionSocket(unix_address->path));
  return StartGrpc();
}

void Server::FillInfos() {
  Device& device = *backend_->backend().device;
  v1::ServerInfo info;
  info.set_version(LOSSD_VERSION);
  info.set_boot_id(RandomBytes(16));
  info.set_backend(device.backend());
  info.set_device(device.name());
  info.set_device_uuid(device.uuid());
  info.set_workspace_bytes(device.workspace().bytes());
  info.set_inline_limit_bytes(options_.inline_limit_bytes);
  info.set_mps(device.mps());
  info.set_algorithm_table(device.algorithm_table());
  info.set_pid(::getpid());
  for (const char* transport : {"inline", "server_arena", "upload"}) info.add_transports(transport);
  infos_.tcp = info;
  info.add_transports("memfd");
  if (!device.is_host()) {
    info.add_transports("cuda_ipc");
    info.add_transports("cuda_event");
  }
  infos_.unix_socket = std::move(info);
}

absl::Status Server::StartSessionSocket(const std::string& path) {
  SessionSocket::Options socket;
  socket.path = absl::StrCat(path, ".session");
  socket.allow_uids = options_.allow_uids;
  socket.allow_uids.push_back(::geteuid());
  socket.allow_uids.push_back(0);
  socket.open_to_all = options_.AllowsOtherUsers();
  LOSSD_ASSIGN_OR_RETURN(
      session_socket_, SessionSocket::Start(std::move(socket), *sessions_,
                                            *backend_->backend().device, infos_.unix_socket, log_));
  return absl::OkStatus();
}

absl::Status Server::StartGrpc() {
  losses_ = std::make_unique<LossService>(context_, *sessions_, infos_);
  session_service_ = std::make_unique<SessionService>(*sessions_, infos_, log_);
  buffers_ = std::make_unique<BufferService>(*sessions_, *backend_->backend().device, *dispatcher_);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  const int max_message = static_cast<int>(options_.inline_limit_bytes + kMessageSlackBytes);
  builder.SetMaxReceiveMessageSize(max_message);
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
  builder.SetDefaultCompressionAlgorithm(GRPC_COMPRESS_NONE);
  grpc::ResourceQuota quota("lossd");
  quota.SetMaxThreads(kMaxHandlerThreads);
  builder.SetResourceQuota(quota);
  builder.RegisterService(losses_.get());
  builder.RegisterService(session_service_.get());
  builder.RegisterService(buffers_.get());
  std::vector<int> ports(options_.listen.size(), 0);
  for (size_t i = 0; i < ports.size(); ++i) {
    builder.AddListeningPort(options_.listen[i].ToString(), grpc::InsecureServerCredentials(),
                             &ports[i]);
  }
  // gRPC has no say in the mode of its socket, so the process's mask decides while it binds.
  const mode_t before = ::umask(options_.AllowsOtherUsers() ? 0111 : 0177);
  grpc_ = builder.BuildAndStart();
  ::umask(before);
  if (grpc_ == nullptr) {
    std::string all;
    for (const ListenAddress& address : options_.listen)
      absl::StrAppend(&all, " ", address.ToString());
    return absl::UnavailableError(absl::StrCat("cannot listen on", all));
  }
  for (size_t i = 0; i < ports.size(); ++i) {
    if (!options_.listen[i].is_unix) options_.listen[i].port = ports[i];
  }
  SetHealth(true);
  return absl::OkStatus();
}

void Server::SetHealth(bool serving) {
  if (grpc_ == nullptr) return;
  grpc::HealthCheckServiceInterface* health = grpc_->GetHealthCheckService();
  if (health == nullptr) return;
  for (const char* service : {"lossd.v1.Losses", "lossd.v1.Sessions", "lossd.v1.Buffers"}) {
    health->SetServingStatus(service, serving);
  }
  health->SetServingStatus(serving);
}

void Server::Tick() { sessions_->EndUnusedSince(absl::Now() - options_.lease); }

bool Server::Drain(absl::Duration timeout) {
  SetHealth(false);
  sessions_->Refuse();
  if (!dispatcher_->Drain(absl::Now() + timeout)) {
    log_.Warning("drain_timeout", {{"outstanding", dispatcher_->outstanding()}});
    return false;
  }
  losses_->streams().Close(Stopping());
  Stop(absl::Seconds(1));
  return true;
}

void Server::Abandon() {
  losses_->streams().Close(
      lost() ? ReasonError(absl::StatusCode::kUnavailable, "GPU_LOST", "the device was lost")
             : Stopping());
  absl::SleepFor(absl::Milliseconds(300));
  for (const ListenAddress& address : options_.listen) {
    if (!address.is_unix) continue;
    ::unlink(address.path.c_str());
    ::unlink(absl::StrCat(address.path, ".session").c_str());
  }
}

void Server::Stop(absl::Duration grace) {
  // Handlers and streams first: they use everything else. Shutdown waits for all of them.
  if (grpc_ != nullptr) grpc_->Shutdown(In(grace));
  session_socket_ = nullptr;
  if (sessions_ != nullptr) sessions_->EndAll();
  // Waits for the running call; its answer goes to a reactor that gRPC keeps until then.
  dispatcher_ = nullptr;
  grpc_ = nullptr;
}

}  // namespace lossd
