#include "client/c/lossd.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/c/handles.h"
#include "client/c/report.h"
#include "client/cpp/client.h"
#include "google/protobuf/descriptor.pb.h"
#include "lossd/v1/error.pb.h"
#include "lossd/v1/service.pb.h"

struct lossd_server {
  std::unique_ptr<lossd::PrivateServer> server;
};

struct lossd_buffer {
  // A lossd::Buffer must not outlive its client: declared in this order, they are destroyed in the other.
  std::shared_ptr<lossd::Client> client;
  std::unique_ptr<lossd::Buffer> buffer;
};

namespace {

using lossd::c::ArgumentError;
using lossd::c::CopyOut;
using lossd::c::Given;
using lossd::c::Guard;
using lossd::c::ParseRequest;

constexpr size_t kHandleBytes = LOSSD_CUDA_HANDLE_BYTES;

absl::Status Seconds(absl::string_view field, double seconds, absl::Duration* to) {
  if (!(seconds >= 0)) return ArgumentError(field, "seconds, at least 0", absl::StrCat(seconds));
  if (seconds > 0) *to = absl::Seconds(seconds);
  return absl::OkStatus();
}

// Buffers and events are of a session.
absl::Status HasServer(const lossd_client* client) {
  LOSSD_C_RETURN_IF_ERROR(Given("client", client));
  if (client->embedded == nullptr) return absl::OkStatus();
  return absl::UnimplementedError(
      "an embedded client has no server: tensors lie anywhere in the process's memory");
}

void AddWithImports(const google::protobuf::FileDescriptor* file,
                    google::protobuf::FileDescriptorSet* set) {
  for (const auto& have : set->file()) {
    if (have.name() == file->name()) return;
  }
  for (int i = 0; i < file->dependency_count(); ++i) AddWithImports(file->dependency(i), set);
  file->CopyTo(set->add_file());
}

absl::Status MakeBuffer(lossd_client* client, absl::StatusOr<std::unique_ptr<lossd::Buffer>> made,
                        lossd_buffer** to) {
  if (!made.ok()) return made.status();
  *to = new lossd_buffer{client->client, *std::move(made)};
  return absl::OkStatus();
}

absl::Status InRange(const lossd::Buffer& buffer, uint64_t byte_offset, uint64_t bytes) {
  if (byte_offset <= buffer.bytes() && bytes <= buffer.bytes() - byte_offset) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat("bytes ", byte_offset, " to ", byte_offset, " + ",
                                            bytes, " are not in a buffer of ", buffer.bytes()));
}

}  // namespace

uint32_t lossd_abi_version(void) { return LOSSD_ABI_VERSION; }

const char* lossd_version(void) { return LOSSD_VERSION; }

const char* lossd_code_name(int32_t code) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  return code >= 0 && code < static_cast<int32_t>(std::size(kNames)) ? kNames[code] : "UNKNOWN";
}

void lossd_bytes_free(lossd_bytes* bytes) {
  if (bytes == nullptr) return;
  std::free(bytes->data);
  *bytes = {nullptr, 0};
}

int32_t lossd_descriptors(lossd_bytes* set, lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(Given("set", set));
    google::protobuf::FileDescriptorSet files;
    AddWithImports(lossd::v1::RunRequest::descriptor()->file(), &files);
    return CopyOut(files, set);
  });
}

int32_t lossd_server_start(const lossd_server_options* options, lossd_server** server,
                           lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(Given("server", server));
    lossd::PrivateServer::Options start;
    if (options != nullptr) {
      if (options->binary != nullptr) start.binary = options->binary;
      if (options->flag_count > 0) LOSSD_C_RETURN_IF_ERROR(Given("flags", options->flags));
      start.flags.assign(options->flags, options->flags + options->flag_count);
      LOSSD_C_RETURN_IF_ERROR(
          Seconds("start_timeout", options->start_timeout, &start.start_timeout));
    }
    auto started = lossd::PrivateServer::Start(start);
    if (!started.ok()) return started.status();
    *server = new lossd_server{*std::move(started)};
    return absl::OkStatus();
  });
}

const char* lossd_server_address(const lossd_server* server) {
  return server->server->address().c_str();
}

int32_t lossd_server_pid(const lossd_server* server) { return server->server->pid(); }

void lossd_server_stop(lossd_server* server) { delete server; }

int32_t lossd_connect(const char* address, const lossd_connect_options* options,
                      lossd_client** client, lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(Given("address", address));
    LOSSD_C_RETURN_IF_ERROR(Given("client", client));
    lossd::ClientOptions connect;
    connect.address = address;
    connect.name = "lossd-c";
    if (options != nullptr) {
      if (options->name != nullptr) connect.name = options->name;
      LOSSD_C_RETURN_IF_ERROR(
          Seconds("connect_timeout", options->connect_timeout, &connect.connect_timeout));
      LOSSD_C_RETURN_IF_ERROR(
          Seconds("call_timeout", options->call_timeout, &connect.call_timeout));
    }
    auto connected = lossd::Client::Connect(connect);
    if (!connected.ok()) return connected.status();
    *client = new lossd_client{*std::move(connected), nullptr};
    return absl::OkStatus();
  });
}

void lossd_close(lossd_client* client) { delete client; }

int32_t lossd_server_info(lossd_client* client, lossd_bytes* info, lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(Given("client", client));
    LOSSD_C_RETURN_IF_ERROR(Given("info", info));
    if (client->embedded != nullptr) return CopyOut(client->embedded->info(), info);
    return CopyOut(client->client->server_info(), info);
  });
}

int32_t lossd_list_ops(lossd_client* client, lossd_bytes* reply, lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(Given("client", client));
    LOSSD_C_RETURN_IF_ERROR(Given("reply", reply));
    if (client->embedded != nullptr) return CopyOut(client->embedded->ListOps(), reply);
    auto listed = client->client->ListOps();
    return listed.ok() ? CopyOut(*listed, reply) : listed.status();
  });
}

int32_t lossd_list_regions(lossd_client* client, lossd_bytes* reply, lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(HasServer(client));
    LOSSD_C_RETURN_IF_ERROR(Given("reply", reply));
    auto listed = client->client->ListRegions();
    return listed.ok() ? CopyOut(*listed, reply) : listed.status();
  });
}

int32_t lossd_run(lossd_client* client, const uint8_t* request, size_t request_bytes,
                  double timeout, lossd_bytes* reply, lossd_status* status) {
  if (client != nullptr && client->embedded != nullptr) {
    return lossd_run_on_stream(client, request, request_bytes, nullptr, reply, status);
  }
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(Given("client", client));
    LOSSD_C_RETURN_IF_ERROR(Given("reply", reply));
    absl::Duration limit = absl::ZeroDuration();  // that of the connection
    LOSSD_C_RETURN_IF_ERROR(Seconds("timeout", timeout, &limit));
    lossd::v1::RunRequest run;
    LOSSD_C_RETURN_IF_ERROR(ParseRequest(request, request_bytes, &run));
    auto ran = client->client->Run(run, limit);
    return ran.ok() ? CopyOut(*ran, reply) : ran.status();
  });
}

int32_t lossd_buffer_create(lossd_client* client, uint64_t bytes, lossd_buffer** buffer,
                            lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(HasServer(client));
    LOSSD_C_RETURN_IF_ERROR(Given("buffer", buffer));
    if (bytes == 0) return ArgumentError("bytes", "above 0", "0");
    return MakeBuffer(client, client->client->CreateBuffer(bytes), buffer);
  });
}

int32_t lossd_buffer_allocate_at_server(lossd_client* client, uint64_t bytes, int32_t memory_kind,
                                        uint8_t* cuda_ipc, lossd_buffer** buffer,
                                        lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(HasServer(client));
    LOSSD_C_RETURN_IF_ERROR(Given("buffer", buffer));
    if (bytes == 0) return ArgumentError("bytes", "above 0", "0");
    if (memory_kind != LOSSD_MEMORY_HOST && memory_kind != LOSSD_MEMORY_DEVICE) {
      return ArgumentError("memory_kind", "HOST (1) or DEVICE (2)", absl::StrCat(memory_kind));
    }
    std::string handle;
    LOSSD_C_RETURN_IF_ERROR(
        MakeBuffer(client,
                   client->client->AllocateAtServer(
                       bytes, static_cast<lossd::v1::MemoryKind>(memory_kind), &handle),
                   buffer));
    if (cuda_ipc != nullptr && handle.size() == kHandleBytes) {
      std::memcpy(cuda_ipc, handle.data(), kHandleBytes);
    }
    return absl::OkStatus();
  });
}

int32_t lossd_buffer_register_device(lossd_client* client, const uint8_t* handle,
                                     size_t handle_bytes, uint64_t bytes,
                                     const uint8_t* device_uuid, uint64_t buffer_id,
                                     int32_t writable, lossd_buffer** buffer,
                                     lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(HasServer(client));
    LOSSD_C_RETURN_IF_ERROR(Given("handle", handle));
    LOSSD_C_RETURN_IF_ERROR(Given("buffer", buffer));
    const absl::string_view handle_view(reinterpret_cast<const char*>(handle), handle_bytes);
    const absl::string_view uuid_view =
        device_uuid == nullptr ? absl::string_view()
                               : absl::string_view(reinterpret_cast<const char*>(device_uuid),
                                                   LOSSD_DEVICE_UUID_BYTES);
    return MakeBuffer(
        client,
        client->client->RegisterDevice(handle_view, bytes, uuid_view, buffer_id, writable != 0),
        buffer);
  });
}

void* lossd_buffer_data(lossd_buffer* buffer) { return buffer->buffer->data(); }

uint64_t lossd_buffer_bytes(const lossd_buffer* buffer) { return buffer->buffer->bytes(); }

uint64_t lossd_buffer_region(const lossd_buffer* buffer) { return buffer->buffer->region(); }

int32_t lossd_buffer_write(lossd_buffer* buffer, uint64_t byte_offset, const void* from,
                           uint64_t bytes, lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(Given("buffer", buffer));
    LOSSD_C_RETURN_IF_ERROR(InRange(*buffer->buffer, byte_offset, bytes));
    if (bytes == 0) return absl::OkStatus();
    LOSSD_C_RETURN_IF_ERROR(Given("from", from));
    return buffer->buffer->Write(byte_offset,
                                 absl::string_view(static_cast<const char*>(from), bytes));
  });
}

int32_t lossd_buffer_read(lossd_buffer* buffer, uint64_t byte_offset, void* to, uint64_t bytes,
                          lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(Given("buffer", buffer));
    LOSSD_C_RETURN_IF_ERROR(InRange(*buffer->buffer, byte_offset, bytes));
    if (bytes == 0) return absl::OkStatus();
    LOSSD_C_RETURN_IF_ERROR(Given("to", to));
    return buffer->buffer->Read(byte_offset, static_cast<std::byte*>(to), bytes);
  });
}

void lossd_buffer_free(lossd_buffer* buffer) { delete buffer; }

int32_t lossd_register_events(lossd_client* client, const uint8_t* ready, size_t count,
                              uint8_t* done, lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(HasServer(client));
    if (count > 0) LOSSD_C_RETURN_IF_ERROR(Given("ready", ready));
    if (count > 0) LOSSD_C_RETURN_IF_ERROR(Given("done", done));
    std::vector<std::string> handles;
    for (size_t i = 0; i < count; ++i) {
      handles.emplace_back(reinterpret_cast<const char*>(ready) + i * kHandleBytes, kHandleBytes);
    }
    auto registered = client->client->RegisterEvents(handles);
    if (!registered.ok()) return registered.status();
    if (registered->size() != count) {
      return absl::InternalError(
          absl::StrCat("the server gave ", registered->size(), " done events for ", count));
    }
    for (size_t i = 0; i < count; ++i) {
      if ((*registered)[i].size() != kHandleBytes) {
        return absl::InternalError("the server gave a done event of another size");
      }
      std::memcpy(done + i * kHandleBytes, (*registered)[i].data(), kHandleBytes);
    }
    return absl::OkStatus();
  });
}
