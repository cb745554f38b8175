#include "client/cpp/connection.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/status.h"

namespace lossd::client {
namespace {

constexpr char kTokenKey[] = "x-lossd-session-bin";
constexpr uint64_t kChunkBytes = uint64_t{1}
                                 << 20;  // below gRPC's default limit of 4 MiB; not tuned
constexpr absl::Duration kGpuSpin = absl::Microseconds(300);
// A killed process's sockets do not close in one instant: the stream's end may be seen a little before the session's.
constexpr absl::Duration kEndPatience = absl::Milliseconds(100);

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // Errors with details must arrive whole.
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, 64 << 10);
  // A new connection must not inherit the back-off that the last server's end has left.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // Loopback only: a proxy of the environment has no business here.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

v1::OpenSessionRequest MakeOpen(const std::string& client_name) {
  v1::OpenSessionRequest open;
  open.set_client_name(client_name.substr(0, 64));
  open.set_protocol(1);
  open.set_pid(getpid());
  struct stat ns;
  if (stat("/proc/self/ns/pid", &ns) == 0) open.set_pid_namespace(ns.st_ino);
  return open;
}

bool MadeByServer(const absl::Status& status) { return ErrorDetailOf(status).has_value(); }

}  // namespace

absl::StatusOr<std::shared_ptr<Connection>> Connection::Open(const Address& address,
                                                             const std::string& client_name,
                                                             std::optional<absl::Duration> spin,
                                                             absl::Time deadline) {
  std::shared_ptr<Connection> connection(new Connection(address));
  if (address.is_unix()) {
    auto socket = SessionSocket::Connect(address.session_path, deadline);
    if (!socket.ok()) return socket.status();
    connection->socket_ = *std::move(socket);
  }
  connection->channel_ = MakeChannel(address.text);
  connection->losses_ = v1::Losses::NewStub(connection->channel_);
  connection->buffers_ = v1::Buffers::NewStub(connection->channel_);
  const absl::Status opened = connection->OpenSession(MakeOpen(client_name), deadline);
  if (!opened.ok()) return Prefix(address.text, opened);
  connection->spin_ =
      spin.value_or(connection->server_.backend() == "cuda" ? kGpuSpin : absl::ZeroDuration());
  // A server that starts opens its two sockets one after the other.
  if (address.is_unix() && !connection->channel_->WaitForConnected(absl::ToChronoTime(deadline))) {
    return absl::UnavailableError(
        absl::StrCat(address.text, ": the session socket answers, but not the calls'"));
  }
  return connection;
}

absl::Status Connection::OpenSession(const v1::OpenSessionRequest& request, absl::Time deadline) {
  v1::OpenSessionReply reply;
  if (socket_ != nullptr) {
    v1::SessionRequest frame;
    *frame.mutable_open() = request;
    std::vector<UniqueFd> fds;
    auto answer = socket_->Call(frame, {}, &fds, deadline);
    if (!answer.ok()) return answer.status();
    reply = std::move(*answer->mutable_open());
  } else {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    const auto stub = v1::Sessions::NewStub(channel_);
    const grpc::Status status = stub->Open(&context, request, &reply);
    if (!status.ok()) return FromGrpc(status);
  }
  if (reply.token().empty())
    return absl::InternalError("the server opened a session without a token");
  token_ = reply.token();
  server_ = std::move(*reply.mutable_server());
  return absl::OkStatus();
}

Connection::~Connection() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    stream_.reset();
  }
  if (socket_ != nullptr || lost_ || token_.empty()) return;  // a socket's end says it
  grpc::ClientContext context;
  Prepare(&context, absl::Now() + absl::Seconds(1));
  v1::CloseSessionReply reply;
  v1::Sessions::NewStub(channel_)->Close(&context, v1::SessionHandle(), &reply);
}

bool Connection::lost() const {
  return lost_ || (socket_ != nullptr && socket_->ended(absl::ZeroDuration()));
}

void Connection::Prepare(grpc::ClientContext* context, absl::Time deadline) const {
  if (deadline != absl::InfiniteFuture()) context->set_deadline(absl::ToChronoTime(deadline));
  context->AddMetadata(kTokenKey, token_);
}

std::shared_ptr<CallStream> Connection::Stream() {
  std::shared_ptr<CallStream> old;  // ends outside the lock
  std::lock_guard<std::mutex> lock(mu_);
  if (stream_ == nullptr || stream_->ended()) {
    old = std::move(stream_);
    stream_ = std::make_shared<CallStream>(v1::Losses::NewStub(channel_), token_, spin_);
  }
  return stream_;
}

absl::Status Connection::Lost(absl::string_view why) {
  lost_ = true;
  return MakeError(
      absl::StatusCode::kUnavailable, "CONNECTION_LOST",
      absl::StrCat(address_.text, ": the server ended or restarted (", why,
                   "); whether the call was done is not known. The next call connects anew"));
}

absl::Status Connection::Judge(const grpc::Status& grpc_status) {
  const absl::Status status = FromGrpc(grpc_status);
  if (status.ok() || MadeByServer(status)) {
    if (absl::IsUnauthenticated(status)) lost_ = true;
    return status;
  }
  // This side cancels no call that somebody waits for: a bare CANCELLED is gRPC shutting down under the call.
  if (absl::IsUnavailable(status) || absl::IsCancelled(status)) return Lost(status.message());
  return Prefix(address_.text, status);
}

absl::StatusOr<v1::RunReply> Connection::Run(const v1::RunRequest& request, absl::Time deadline,
                                             bool* stale) {
  *stale = false;
  return is_unix() ? RunOnStream(request, deadline, stale) : RunUnary(request, deadline, stale);
}

absl::StatusOr<v1::RunReply> Connection::RunOnStream(const v1::RunRequest& request,
                                                     absl::Time deadline, bool* stale) {
  for (bool again = false;; again = true) {
    CallStream::Outcome outcome = Stream()->Call(request, deadline);
    // The session is unknown to a server that has restarted, or that dropped it.
    if (absl::IsUnauthenticated(outcome.status)) {
      *stale = lost_ = true;
      return std::move(outcome.status);
    }
    if (outcome.answered) {
      if (!outcome.status.ok()) return std::move(outcome.status);
      return std::move(outcome.reply);
    }
    if (absl::IsDeadlineExceeded(outcome.status) && !MadeByServer(outcome.status)) {
      return Prefix(address_.text, outcome.status);
    }
    if (socket_->ended(kEndPatience)) return Lost(outcome.status.message());
    if (MadeByServer(outcome.status)) return std::move(outcome.status);
    if (again) return Lost(outcome.status.message());
  }
}

absl::StatusOr<v1::RunReply> Connection::RunUnary(const v1::RunRequest& request,
                                                  absl::Time deadline, bool* stale) {
  v1::RunReply reply;
  grpc::ClientContext context;
  Prepare(&context, deadline);
  const grpc::Status status = losses_->Run(&context, request, &reply);
  if (status.ok()) return reply;
  absl::Status judged = Judge(status);
  *stale = absl::IsUnauthenticated(judged);
  return judged;
}

absl::StatusOr<v1::SessionReply> Connection::Control(const v1::SessionRequest& request,
                                                     absl::Span<const int> fds,
                                                     std::vector<UniqueFd>* reply_fds,
                                                     absl::Time deadline) {
  if (socket_ != nullptr) {
    auto reply = socket_->Call(request, fds, reply_fds, deadline);
    if (!reply.ok() && absl::IsUnavailable(reply.status()) && !MadeByServer(reply.status())) {
      return Lost(reply.status().message());
    }
    return reply;
  }
  grpc::ClientContext context;
  Prepare(&context, deadline);
  v1::SessionReply reply;
  grpc::Status status;
  switch (request.request_case()) {
    case v1::SessionRequest::kRegister:
      status = buffers_->Register(&context, request.register_(), reply.mutable_register_());
      break;
    case v1::SessionRequest::kUnregister:
      status = buffers_->Unregister(&context, request.unregister(), reply.mutable_unregister());
      break;
    case v1::SessionRequest::kAllocate:
      status = buffers_->Allocate(&context, request.allocate(), reply.mutable_allocate());
      break;
    case v1::SessionRequest::kList:
      status = buffers_->List(&context, request.list(), reply.mutable_list());
      break;
    default:
      return absl::UnimplementedError(absl::StrCat(address_.text, ": this needs a Unix socket"));
  }
  if (!status.ok()) return Judge(status);
  return reply;
}

absl::StatusOr<v1::ListOpsReply> Connection::ListOps(absl::Time deadline) {
  grpc::ClientContext context;
  Prepare(&context, deadline);
  v1::ListOpsReply reply;
  const grpc::Status status = losses_->ListOps(&context, v1::ListOpsRequest(), &reply);
  if (!status.ok()) return Judge(status);
  return reply;
}

absl::StatusOr<v1::ExplainReply> Connection::Explain(const v1::ExplainRequest& request,
                                                     absl::Time deadline) {
  grpc::ClientContext context;
  Prepare(&context, deadline);
  v1::ExplainReply reply;
  const grpc::Status status = losses_->Explain(&context, request, &reply);
  if (!status.ok()) return Judge(status);
  return reply;
}

absl::Status Connection::Upload(uint64_t region, uint64_t byte_offset, absl::string_view bytes,
                                absl::Time deadline) {
  grpc::ClientContext context;
  Prepare(&context, deadline);
  v1::UploadReply reply;
  const auto writer = buffers_->Upload(&context, &reply);
  bool open = true;
  for (uint64_t at = 0; open && at < bytes.size(); at += kChunkBytes) {
    v1::UploadChunk chunk;
    if (at == 0) chunk.set_region(region);
    chunk.set_byte_offset(byte_offset + at);
    const absl::string_view part = bytes.substr(at, kChunkBytes);
    chunk.set_data(part.data(), part.size());
    open = writer->Write(chunk);  // false: Finish says why
  }
  if (open) writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return Judge(status);
  if (reply.bytes() != bytes.size()) {
    return absl::InternalError(
        absl::StrCat("the server took ", reply.bytes(), " of ", bytes.size(), " bytes"));
  }
  return absl::OkStatus();
}

absl::Status Connection::Download(uint64_t region, uint64_t byte_offset, std::byte* to,
                                  uint64_t bytes, absl::Time deadline) {
  grpc::ClientContext context;
  Prepare(&context, deadline);
  v1::DownloadRequest request;
  request.set_region(region);
  request.set_byte_offset(byte_offset);
  request.set_bytes(bytes);
  const auto reader = buffers_->Download(&context, request);
  v1::DownloadChunk chunk;
  uint64_t have = 0;
  bool sound = true;
  while (reader->Read(&chunk)) {
    const uint64_t size = chunk.data().size();
    sound = sound && chunk.byte_offset() == byte_offset + have && size <= bytes - have;
    if (!sound) {
      context.TryCancel();
      break;
    }
    std::memcpy(to + have, chunk.data().data(), size);
    have += size;
  }
  const grpc::Status status = reader->Finish();
  if (sound && !status.ok()) return Judge(status);
  if (!sound || have != bytes) {
    return absl::InternalError(
        absl::StrCat("the server sent ", have, " of ", bytes, " bytes in order"));
  }
  return absl::OkStatus();
}

}  // namespace lossd::client
