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
constexpr absl::Duration kGpuSpin = absl::Milliseconds(1);

std::chrono::system_clock::time_point In(absl::Duration duration) {
  return absl::ToChronoTime(absl::Now() + duration);
}

absl::Status Stopping() {
  return ReasonError(absl::StatusCode::kUnavailable, "DRAINING", "the server is stopping");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Options& options, const Logger& log,
                                                      std::function<void()> on_lost,
                                                      std::unique_ptr<BackendHolder> backend) {
  auto server = std::unique_ptr<Server>(new Server(options, log, std::move(on_lost)));
  server->backend_ = std::move(backend);
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
  if (backend_ == nullptr) {
    BackendOptions backend;
    backend.name = options_.backend;
    backend.workspace_bytes = options_.workspace_bytes;
    backend.threads = options_.threads;
    backend.algorithms = options_.algorithms;
    LOSSD_ASSIGN_OR_RETURN(backend_, CreateBackend(backend));
  }

  Dispatcher::Options queue;
  queue.session_depth = options_.queue_depth;
  queue.total_depth = options_.queue_depth * kTotalDepthFactor;
  // A GPU leaves the cores to those who wait for it; the CPU backend needs them itself.
  if (!options_.spin) {
    options_.spin = backend_->backend().device->is_host() ? absl::ZeroDuration() : kGpuSpin;
  }
  queue.spin = *options_.spin;
  dispatcher_ =
      std::make_unique<Dispatcher>(backend_->backend(), queue, [this](const absl::Status& status) {
        log_.Error("device_lost", {{"status", status}});
        // In this order: Init looks at lost_ after it has said that it serves.
        lost_.store(true);
        SetHealth(false);
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
  context_.ready_timeout = options_.ready_timeout;
  FillInfos();
  LOSSD_RETURN_IF_ERROR(StartGrpc());
  // Last, since clients come here first: a session means that calls can follow at once.
  if (has_unix) LOSSD_RETURN_IF_ERROR(StartSessionSocket(unix_address->path));
  SetHealth(true);
  if (lost()) SetHealth(false);
  return absl::OkStatus();
}

void Server::FillInfos() {
  Device& device = *backend_->backend().device;
  v1::ServerInfo info;
  info.set_version(LOSSD_VERSION);
  info.set_boot_id(RandomBytes(16));
  info.set_backend(device.backend());
  info.set_device(device.name());
  if (const std::string uuid = device.uuid(); !uuid.empty()) info.set_device_uuid(uuid);
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
  socket.on_device_lost = [this](const absl::Status& status) { dispatcher_->ReportLost(status); };
  LOSSD_ASSIGN_OR_RETURN(
      session_socket_, SessionSocket::Start(std::move(socket), *sessions_,
                                            *backend_->backend().device, infos_.unix_socket, log_));
  return absl::OkStatus();
}

absl::Status Server::StartGrpc() {
  losses_ = std::make_unique<LossService>(context_, *sessions_, infos_, backend_->Describe());
  session_service_ = std::make_unique<SessionService>(*sessions_, infos_, log_);
  buffers_ = std::make_unique<BufferService>(*sessions_, *backend_->backend().device, *dispatcher_,
                                             options_.stream_timeout);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  const int max_message = static_cast<int>(options_.inline_limit_bytes + kMessageSlackBytes);
  builder.SetMaxReceiveMessageSize(max_message);
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
  builder.SetDefaultCompressionAlgorithm(GRPC_COMPRESS_NONE);
  grpc::ResourceQuota quota("lossd");
  quota.SetMaxThreads(kMaxHandlerThreads);
  builder.SetResourceQuota(quota);
  builder.RegisterService(losses_.get());
  builder.RegisterService(session_service_.get());
  builder.RegisterService(buffers_.get());
  using Builder = grpc::ServerBuilder::experimental_type;
  std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
      builder.experimental().AddExternalConnectionAcceptor(Builder::ExternalConnectionType::FROM_FD,
                                                           grpc::InsecureServerCredentials());
  std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr) return absl::InternalError("gRPC does not start");
  stream_server_ = std::make_unique<StreamServer>(*losses_, std::move(queue), *options_.spin);
  LOSSD_ASSIGN_OR_RETURN(
      listener_,
      Listener::Start(
          options_.listen, options_.AllowsOtherUsers(), log_, [acceptor](UniqueFd connection) {
            grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
            parameters.fd = connection.Release();
            acceptor->HandleNewConnection(&parameters);
          }));
  SetHealth(false);
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

void Server::Tick() {
  sessions_->EndUnusedSince(absl::Now() - options_.lease);
  buffers_->Tick();
}

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
  listener_ = nullptr;
  if (grpc_ != nullptr) grpc_->Shutdown(In(grace));
  session_socket_ = nullptr;
  if (sessions_ != nullptr) sessions_->EndAll();
  // Waits for the running call; its answer goes to a stream or a reactor that lives until then.
  dispatcher_ = nullptr;
  stream_server_ = nullptr;
  grpc_ = nullptr;
}

}  // namespace lossd
