// The C functions of clients without a server.
#include "client/embedded/embedded.h"

#include <memory>
#include <utility>

#include "client/c/handles.h"
#include "client/c/lossd.h"
#include "client/c/report.h"

using lossd::c::ArgumentError;
using lossd::c::CopyOut;
using lossd::c::Given;
using lossd::c::Guard;
using lossd::c::ParseRequest;

struct lossd_prepared {
  // A lossd::PreparedCall must not outlive its device: declared in this order, they are destroyed in the other.
  std::shared_ptr<lossd::Embedded> embedded;
  std::unique_ptr<lossd::PreparedCall> call;
};

namespace {

absl::Status IsEmbedded(const lossd_client* client) {
  LOSSD_C_RETURN_IF_ERROR(Given("client", client));
  if (client->embedded != nullptr) return absl::OkStatus();
  return ArgumentError("client", "one of lossd_open_embedded", "one of a server");
}

}  // namespace

int32_t lossd_open_embedded(const lossd_embedded_options* options, lossd_client** client,
                            lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(Given("client", client));
    lossd::EmbeddedOptions open;
    if (options != nullptr) {
      if (options->backend != nullptr && *options->backend != 0) open.backend = options->backend;
      if (options->algorithms != nullptr) open.algorithms = options->algorithms;
      open.device = options->device;
      open.workspace_bytes = options->workspace_bytes;
      open.threads = options->threads;
    }
    auto opened = lossd::Embedded::Open(open);
    if (!opened.ok()) return opened.status();
    *client = new lossd_client{nullptr, *std::move(opened)};
    return absl::OkStatus();
  });
}

int32_t lossd_run_on_stream(lossd_client* client, const uint8_t* request, size_t request_bytes,
                            void* stream, lossd_bytes* reply, lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(IsEmbedded(client));
    LOSSD_C_RETURN_IF_ERROR(Given("reply", reply));
    lossd::v1::RunRequest run;
    LOSSD_C_RETURN_IF_ERROR(ParseRequest(request, request_bytes, &run));
    auto ran = client->embedded->Run(run, stream);
    return ran.ok() ? CopyOut(*ran, reply) : ran.status();
  });
}

int32_t lossd_prepare(lossd_client* client, const uint8_t* request, size_t request_bytes,
                      lossd_prepared** prepared, lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(IsEmbedded(client));
    LOSSD_C_RETURN_IF_ERROR(Given("prepared", prepared));
    lossd::v1::RunRequest run;
    LOSSD_C_RETURN_IF_ERROR(ParseRequest(request, request_bytes, &run));
    auto call = client->embedded->Prepare(run);
    if (!call.ok()) return call.status();
    *prepared = new lossd_prepared{client->embedded, *std::move(call)};
    return absl::OkStatus();
  });
}

int32_t lossd_prepared_run(lossd_prepared* prepared, const uint64_t* addresses, size_t count,
                           void* stream, lossd_bytes* reply, lossd_status* status) {
  return Guard(status, [&]() -> absl::Status {
    LOSSD_C_RETURN_IF_ERROR(Given("prepared", prepared));
    if (count > 0) LOSSD_C_RETURN_IF_ERROR(Given("addresses", addresses));
    if (reply == nullptr) return prepared->call->Run({addresses, count}, stream, nullptr);
    lossd::v1::RunReply ran;
    LOSSD_C_RETURN_IF_ERROR(prepared->call->Run({addresses, count}, stream, &ran));
    return CopyOut(ran, reply);
  });
}

void lossd_prepared_free(lossd_prepared* prepared) { delete prepared; }
