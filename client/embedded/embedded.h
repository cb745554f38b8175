// The operations in this process: no server and no session, on the caller's memory and in the order of the caller's stream.
//
//   auto embedded = lossd::Embedded::Open({.backend = "cuda"});
//   (*embedded)->Run(request, stream);              // tensors in region kProcessRegion: the byte offset is the address
//
// The bits are those of a server with the same backend, threads and workspace.
#ifndef LOSSD_CLIENT_EMBEDDED_EMBEDDED_H_
#define LOSSD_CLIENT_EMBEDDED_EMBEDDED_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lossd/v1/service.pb.h"

namespace lossd {

// RegionRef.region of all memory of this process; byte_offset is the address.
inline constexpr uint64_t kProcessRegion = 1;

struct EmbeddedOptions {
  std::string backend =
      "auto";      // "cpu", "cuda", "auto": cuda where it was compiled and a GPU answers
  int device = 0;  // number of the GPU
  uint64_t workspace_bytes = 0;  // 0: the backend's default
  int threads = 0;               // of the cpu backend; 0: all that the process may run on
  std::string algorithms;  // of the cuda backend: a table of lossctl tune; empty: the build's alone
};

// A request whose tensors may lie elsewhere in every call. Thread-safe; must not outlive its Embedded.
class PreparedCall {
 public:
  virtual ~PreparedCall() = default;
  // `addresses`: of the tensors, in the order of the message's fields, operation by operation. With `reply` it waits for the results. Without one
  // it returns when the work is enqueued: what only the device could find wrong in the data is then not reported, and outputs of such rows are
  // undefined. On the CPU the work is done in both cases.
  // Errors: those of the operation.
  virtual absl::Status Run(absl::Span<const uint64_t> addresses, void* stream,
                           v1::RunReply* reply) = 0;
};

// One device with its workspace. Thread-safe: calls take turns. On a GPU, calls on several streams run one after the other.
class Embedded {
 public:
  // Errors: UNIMPLEMENTED if cuda was not compiled, NOT_FOUND if there is no GPU, INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<Embedded>> Open(const EmbeddedOptions& options);
  virtual ~Embedded() = default;

  virtual v1::ServerInfo info() const = 0;
  virtual v1::ListOpsReply ListOps() const = 0;

  // `stream`: a cudaStream_t, null for CUDA's default stream. Completion ENQUEUED is as PreparedCall::Run without a reply, and needs no event.
  // Errors: those of a server; UNIMPLEMENTED for fields that only a server has (request_id, ready, done_event, result_record).
  virtual absl::StatusOr<v1::RunReply> Run(const v1::RunRequest& request, void* stream) = 0;

  // Checks once what does not depend on addresses. Every tensor must be in kProcessRegion. Errors: those of Run.
  virtual absl::StatusOr<std::unique_ptr<PreparedCall>> Prepare(const v1::RunRequest& request) = 0;
};

}  // namespace lossd

#endif  // LOSSD_CLIENT_EMBEDDED_EMBEDDED_H_
