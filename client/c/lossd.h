/* The C interface of lossd: what any language needs to evaluate losses and gradients at a lossd server.
 *
 *   lossd_status status = LOSSD_STATUS_INIT;
 *   lossd_server* server = NULL;
 *   lossd_client* client = NULL;
 *   lossd_server_start(NULL, &server, &status);
 *   lossd_connect(lossd_server_address(server), NULL, &client, &status);
 *   lossd_run(client, request, request_bytes, 0, &reply, &status);   // lossd.v1.RunRequest in, lossd.v1.RunReply out
 *
 * Calls carry serialized protocol buffers of package lossd.v1 (proto/lossd/v1), which are the stable part: a new operation or
 * option needs no new function here. lossd_descriptors() returns their descriptors for callers that encode messages themselves.
 *
 * Rules
 * - Every function that can fail returns the status code (0 = ok) and fills *status with the same code and the reasons. There is
 *   no "last error", and nothing is thrown. `status` may be NULL. On failure the other results are untouched, unless it says otherwise.
 * - Handles (lossd_client, lossd_buffer, lossd_server, lossd_prepared) are owned by the caller and end in their own function; NULL is accepted
 *   there. They may be freed in any order: a buffer keeps its client's connection until it is freed.
 * - All functions may be called from any thread at the same time, but nobody may use a handle during or after its end.
 * - Strings are UTF-8 with a terminating 0. Sizes and offsets count bytes.
 * - Do not use a handle in a child after fork().
 */
#ifndef LOSSD_CLIENT_C_LOSSD_H_
#define LOSSD_CLIENT_C_LOSSD_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define LOSSD_EXPORT __attribute__((visibility("default")))
#else
#define LOSSD_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when a structure or the meaning of a function changes; functions may be added without. */
#define LOSSD_ABI_VERSION 1
/* LOSSD_ABI_VERSION of the library that was loaded. */
LOSSD_EXPORT uint32_t lossd_abi_version(void);
/* Version of the library, as in "0.1.0". Static. */
LOSSD_EXPORT const char* lossd_version(void);

/* Codes of a status: the numbers of google.rpc.Code. */
enum {
  LOSSD_OK = 0,
  LOSSD_CANCELLED = 1,
  LOSSD_UNKNOWN = 2,
  LOSSD_INVALID_ARGUMENT = 3,
  LOSSD_DEADLINE_EXCEEDED = 4,
  LOSSD_NOT_FOUND = 5,
  LOSSD_ALREADY_EXISTS = 6,
  LOSSD_PERMISSION_DENIED = 7,
  LOSSD_RESOURCE_EXHAUSTED = 8,
  LOSSD_FAILED_PRECONDITION = 9,
  LOSSD_ABORTED = 10,
  LOSSD_OUT_OF_RANGE = 11,
  LOSSD_UNIMPLEMENTED = 12,
  LOSSD_INTERNAL = 13,
  LOSSD_UNAVAILABLE = 14,
  LOSSD_DATA_LOSS = 15,
  LOSSD_UNAUTHENTICATED = 16
};
/* "INVALID_ARGUMENT" of 3; "UNKNOWN" of a number that is none. Static. */
LOSSD_EXPORT const char* lossd_code_name(int32_t code);

/* Why a call failed. Owns nothing: lives where the caller puts it. Texts too long for their field are cut. */
typedef struct lossd_status {
  int32_t code;            /* LOSSD_OK or another of the codes above */
  int32_t op_index;        /* index of the operation in the request, -1 if none */
  int64_t row;             /* row (or element) whose data are wrong, -1 if none */
  uint32_t retry_after_ms; /* earliest useful retry, 0 if not said */
  int32_t cuda_error;      /* number of the CUDA error behind it, 0 if none */
  char field[160];    /* path of the wrong field, as in "clip_low"; "" if no field is at fault */
  char must_be[320];  /* what the field must be */
  char is[320];       /* what it is */
  char op[96];        /* message name of the operation */
  char reason[64];    /* stable upper-case word for programs: GPU_LOST, QUEUE_FULL, ... */
  char message[1064]; /* the whole text */
} lossd_status;
#define LOSSD_STATUS_INIT \
  { 0, -1, -1, 0, 0, "", "", "", "", "", "" }

/* Bytes that the library allocated: end them with lossd_bytes_free. */
typedef struct lossd_bytes {
  uint8_t* data;
  size_t size;
} lossd_bytes;
/* Frees *bytes and sets it to {NULL, 0}. */
LOSSD_EXPORT void lossd_bytes_free(lossd_bytes* bytes);

/* The descriptors of lossd.v1 in this library, with everything they import: a serialized google.protobuf.FileDescriptorSet, without
 * comments. */
LOSSD_EXPORT int32_t lossd_descriptors(lossd_bytes* set, lossd_status* status);

/* A server of this process's own ------------------------------------------------------------------------------------------------ */

typedef struct lossd_server lossd_server;

typedef struct lossd_server_options {
  const char* binary;       /* path of lossd; NULL or "": beside the executable, then on PATH */
  const char* const* flags; /* further flags, `flag_count` of them; may be NULL if 0 */
  size_t flag_count;
  double start_timeout; /* seconds; 0: 30 */
} lossd_server_options;

/* Starts a server on a private Unix socket and waits until it serves. `options` may be NULL.
 * It ends with lossd_server_stop or with this process, whatever ends that.
 * Errors: NOT_FOUND (binary), INTERNAL with the server's last words if it does not come up. */
LOSSD_EXPORT int32_t lossd_server_start(const lossd_server_options* options, lossd_server** server,
                                        lossd_status* status);
/* For lossd_connect. Valid until the stop. */
LOSSD_EXPORT const char* lossd_server_address(const lossd_server* server);
LOSSD_EXPORT int32_t lossd_server_pid(const lossd_server* server);
/* Asks it to end, waits, and frees the handle. */
LOSSD_EXPORT void lossd_server_stop(lossd_server* server);

/* Connections -------------------------------------------------------------------------------------------------------------------- */

typedef struct lossd_client lossd_client;

typedef struct lossd_connect_options {
  const char* name;       /* shown in the server's lists and logs; NULL: "lossd-c" */
  double connect_timeout; /* seconds; 0: 10 */
  double call_timeout;    /* seconds, of calls that give none; 0: 600 */
} lossd_connect_options;

/* Opens a session at "unix:/path/x.sock" or at "host:port" of a loopback address. `options` may be NULL.
 * After a restart of the server the first call fails with UNAVAILABLE; later ones work, with the same buffers under the same ids.
 * Errors: UNAVAILABLE if nothing listens there, PERMISSION_DENIED if the server refuses this user. */
LOSSD_EXPORT int32_t lossd_connect(const char* address, const lossd_connect_options* options,
                                   lossd_client** client, lossd_status* status);
/* Frees the handle; the session ends when the last of its buffers is freed. */
LOSSD_EXPORT void lossd_close(lossd_client* client);

/* lossd.v1.ServerInfo of the present session. */
LOSSD_EXPORT int32_t lossd_server_info(lossd_client* client, lossd_bytes* info,
                                       lossd_status* status);
/* lossd.v1.ListOpsReply. */
LOSSD_EXPORT int32_t lossd_list_ops(lossd_client* client, lossd_bytes* reply, lossd_status* status);
/* lossd.v1.ListRegionsReply. */
LOSSD_EXPORT int32_t lossd_list_regions(lossd_client* client, lossd_bytes* reply,
                                        lossd_status* status);

/* Runs a request and waits: lossd.v1.RunRequest in, lossd.v1.RunReply out. `timeout`: seconds, 0 = that of the connection.
 * Tensors name their place by lossd_buffer_region and a byte offset, or carry their bytes. They must stay as they are until the
 * return; after DEADLINE_EXCEEDED or CANCELLED the server may still be at work in them until a later call returns ok.
 * Errors: INVALID_ARGUMENT (with field, must_be, is) for bytes that are no RunRequest and for whatever the operation refuses;
 * UNIMPLEMENTED, NOT_FOUND, RESOURCE_EXHAUSTED, UNAVAILABLE, ... as the server says. */
LOSSD_EXPORT int32_t lossd_run(lossd_client* client, const uint8_t* request, size_t request_bytes,
                               double timeout, lossd_bytes* reply, lossd_status* status);

/* Memory that client and server both see ----------------------------------------------------------------------------------------- */

typedef struct lossd_buffer lossd_buffer;

enum { LOSSD_MEMORY_HOST = 1, LOSSD_MEMORY_DEVICE = 2 }; /* lossd.v1.MemoryKind */
enum { LOSSD_CUDA_HANDLE_BYTES = 64, LOSSD_DEVICE_UUID_BYTES = 16 };

/* Zero-filled memory: shared with the server over a Unix socket, kept at the server over TCP (lossd_buffer_data is NULL then).
 * Errors: RESOURCE_EXHAUSTED, INVALID_ARGUMENT (0 bytes). */
LOSSD_EXPORT int32_t lossd_buffer_create(lossd_client* client, uint64_t bytes,
                                         lossd_buffer** buffer, lossd_status* status);
/* Memory owned by the server. `cuda_ipc` receives the LOSSD_CUDA_HANDLE_BYTES of the handle with LOSSD_MEMORY_DEVICE, and may be NULL. */
LOSSD_EXPORT int32_t lossd_buffer_allocate_at_server(lossd_client* client, uint64_t bytes,
                                                     int32_t memory_kind, uint8_t* cuda_ipc,
                                                     lossd_buffer** buffer, lossd_status* status);
/* A device allocation of this process, by the LOSSD_CUDA_HANDLE_BYTES that cudaIpcGetMemHandle or cuIpcGetMemHandle gave (66 bytes
 * of a torch storage are accepted too). `bytes` is the allocation's size, `device_uuid` the GPU's LOSSD_DEVICE_UUID_BYTES or NULL,
 * `buffer_id` what tells allocations apart whose handles repeat (CU_POINTER_ATTRIBUTE_BUFFER_ID). Tensors in a buffer that is not
 * `writable` can only be inputs. The memory must not be freed before lossd_buffer_free. */
LOSSD_EXPORT int32_t lossd_buffer_register_device(lossd_client* client, const uint8_t* handle,
                                                  size_t handle_bytes, uint64_t bytes,
                                                  const uint8_t* device_uuid, uint64_t buffer_id,
                                                  int32_t writable, lossd_buffer** buffer,
                                                  lossd_status* status);
/* This process's mapping; NULL for device memory and for memory kept at the server. Valid until the free. */
LOSSD_EXPORT void* lossd_buffer_data(lossd_buffer* buffer);
LOSSD_EXPORT uint64_t lossd_buffer_bytes(const lossd_buffer* buffer);
/* Id for lossd.v1.RegionRef. Stays the same over a restart of the server. */
LOSSD_EXPORT uint64_t lossd_buffer_region(const lossd_buffer* buffer);
/* Copies, also of memory that is kept at the server. Errors: OUT_OF_RANGE, UNAVAILABLE. */
LOSSD_EXPORT int32_t lossd_buffer_write(lossd_buffer* buffer, uint64_t byte_offset,
                                        const void* from, uint64_t bytes, lossd_status* status);
LOSSD_EXPORT int32_t lossd_buffer_read(lossd_buffer* buffer, uint64_t byte_offset, void* to,
                                       uint64_t bytes, lossd_status* status);
LOSSD_EXPORT void lossd_buffer_free(lossd_buffer* buffer);

/* Order between streams of this process and the server's device ------------------------------------------------------------------ */

/* `ready`: `count` handles of LOSSD_CUDA_HANDLE_BYTES, of events that this process records before its calls (RunRequest.ready.event is
 * their index). `done` receives the handles of as many events that the server records after the calls (RunRequest.done_event). Another
 * registration goes on counting. Events end with the session: after a restart of the server they are registered again by the caller. */
LOSSD_EXPORT int32_t lossd_register_events(lossd_client* client, const uint8_t* ready, size_t count,
                                           uint8_t* done, lossd_status* status);

/* Without a server --------------------------------------------------------------------------------------------------------------- */

typedef struct lossd_embedded_options {
  const char*
      backend; /* "cpu", "cuda"; NULL, "" or "auto": cuda where it was compiled and a GPU answers */
  const char*
      algorithms; /* of cuda: path of a table of lossctl tune; NULL or "": the build's alone */
  uint64_t workspace_bytes; /* 0: the backend's default */
  int32_t device;           /* number of the GPU */
  int32_t threads;          /* of cpu; 0: all that the process may run on */
} lossd_embedded_options;

/* RegionRef.region of all memory of this process, for clients of lossd_open_embedded; RegionRef.byte_offset is the address. */
enum { LOSSD_PROCESS_REGION = 1 };

/* A client that computes in this process, on one device: the same operations with the same bits as a server of the same backend, threads and
 * workspace. `options` may be NULL. lossd_run, lossd_server_info, lossd_list_ops and lossd_close take it; buffers and events have no meaning
 * there (UNIMPLEMENTED). lossd_run uses CUDA's default stream, and has no timeout.
 * Errors: UNIMPLEMENTED if cuda was not compiled, NOT_FOUND if there is no GPU, RESOURCE_EXHAUSTED for the workspace. */
LOSSD_EXPORT int32_t lossd_open_embedded(const lossd_embedded_options* options,
                                         lossd_client** client, lossd_status* status);

/* As lossd_run, in the order of `stream` (a cudaStream_t; NULL: CUDA's default stream; ignored on the CPU). With completion DONE it waits for
 * the stream, with ENQUEUED it does not, and needs no event. A client's calls on several streams run one after the other; a stream that it has
 * used must live until it has used another. */
LOSSD_EXPORT int32_t lossd_run_on_stream(lossd_client* client, const uint8_t* request,
                                         size_t request_bytes, void* stream, lossd_bytes* reply,
                                         lossd_status* status);

typedef struct lossd_prepared lossd_prepared;

/* Checks a request once that will be run many times with its tensors elsewhere: a run then costs a few microseconds beside the work.
 * Tensors must be in LOSSD_PROCESS_REGION, at any address of the right alignment where no two of them overlap. */
LOSSD_EXPORT int32_t lossd_prepare(lossd_client* client, const uint8_t* request,
                                   size_t request_bytes, lossd_prepared** prepared,
                                   lossd_status* status);
/* `addresses`: of the request's tensors, in the order of the operation's fields in proto/lossd/v1. With `reply` it waits for the stream. Without
 * it (NULL) it returns when the work is enqueued; wrong data that only the GPU sees is not reported then, and the outputs of such rows are
 * undefined. Errors: those of lossd_run. */
LOSSD_EXPORT int32_t lossd_prepared_run(lossd_prepared* prepared, const uint64_t* addresses,
                                        size_t count, void* stream, lossd_bytes* reply,
                                        lossd_status* status);
LOSSD_EXPORT void lossd_prepared_free(lossd_prepared* prepared);

#ifdef __cplusplus
}
#endif

#endif /* LOSSD_CLIENT_C_LOSSD_H_ */
