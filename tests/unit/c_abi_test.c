/* The C interface from plain C: a private server, inline tensors and a shared buffer, errors with their fields, life times;
 * and the same without a server. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/c/lossd.h"

#define CHECK(condition)                                                                          \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      fprintf(stderr, "%s:%d: %s\n  status %d %s\n", __FILE__, __LINE__, #condition, status.code, \
              status.message);                                                                    \
      exit(1);                                                                                    \
    }                                                                                             \
  } while (0)

/* Just enough of the wire format to write a request by hand. */
typedef struct {
  uint8_t data[1024];
  size_t size;
} Message;

static void PutVarint(Message* to, uint64_t value) {
  for (; value > 127; value >>= 7) to->data[to->size++] = (uint8_t)(value & 127) | 128;
  to->data[to->size++] = (uint8_t)value;
}

static void PutNumber(Message* to, int field, uint64_t value) {
  PutVarint(to, (uint64_t)field << 3);
  PutVarint(to, value);
}

static void PutBytes(Message* to, int field, const void* bytes, size_t size) {
  PutVarint(to, (uint64_t)field << 3 | 2);
  PutVarint(to, size);
  memcpy(to->data + to->size, bytes, size);
  to->size += size;
}

static void PutMessage(Message* to, int field, const Message* message) {
  PutBytes(to, field, message->data, message->size);
}

enum { kF32 = 1, kI64 = 5 };
enum { kN = 2, kH = 2, kV = 3 };

static Message Tensor(int dtype, const int64_t* shape, int rank) {
  Message tensor = {{0}, 0};
  PutNumber(&tensor, 1, (uint64_t)dtype);
  for (int d = 0; d < rank; ++d) PutNumber(&tensor, 2, (uint64_t)shape[d]);
  return tensor;
}

static const float kHidden[kN * kH] = {1, 2, -1, 0.5f};
static const float kWeight[kV * kH] = {0.5f, 1, -1, 0, 2, -0.25f};

/* A tensor at a byte of a region. */
static Message TensorAt(int dtype, const int64_t* shape, int rank, uint64_t region,
                        uint64_t offset) {
  Message place = {{0}, 0};
  PutNumber(&place, 1, region);
  PutNumber(&place, 2, offset);
  Message tensor = Tensor(dtype, shape, rank);
  PutMessage(&tensor, 4, &place);
  return tensor;
}

/* RunRequest with one LinearLogprob of these tensors. */
static Message RequestOf(const Message* hidden, const Message* weight, const Message* target,
                         const Message* logprob) {
  Message linear = {{0}, 0};
  PutMessage(&linear, 1, hidden);
  PutMessage(&linear, 2, weight);
  Message head = {{0}, 0};
  PutMessage(&head, 1, target);
  Message call = {{0}, 0};
  PutMessage(&call, 1, &linear);
  PutMessage(&call, 2, &head);
  PutMessage(&call, 10, logprob);
  Message op = {{0}, 0};
  PutMessage(&op, 1, &call);
  Message request = {{0}, 0};
  PutMessage(&request, 2, &op);
  return request;
}

/* Inputs in the message; logprob goes to a byte of the region. */
static Message Request(const int64_t* target, uint64_t region, uint64_t offset) {
  const int64_t hidden_shape[] = {kN, kH}, weight_shape[] = {kV, kH}, row_shape[] = {kN};
  Message hidden = Tensor(kF32, hidden_shape, 2);
  PutBytes(&hidden, 5, kHidden, sizeof(kHidden));
  Message weight = Tensor(kF32, weight_shape, 2);
  PutBytes(&weight, 5, kWeight, sizeof(kWeight));
  Message targets = Tensor(kI64, row_shape, 1);
  PutBytes(&targets, 5, target, kN * sizeof(*target));
  Message logprob = TensorAt(kF32, row_shape, 1, region, offset);
  return RequestOf(&hidden, &weight, &targets, &logprob);
}

static double Logprob(int row, int64_t target) {
  double sum = 0, of_target = 0;
  for (int v = 0; v < kV; ++v) {
    const double z = (double)kHidden[row * kH] * kWeight[v * kH] +
                     (double)kHidden[row * kH + 1] * kWeight[v * kH + 1];
    sum += exp(z);
    if (v == target) of_target = z;
  }
  return of_target - log(sum);
}

static uint64_t AddressOf(const void* memory) { return (uint64_t)(uintptr_t)memory; }

/* The same calls without a server, on memory of this process. */
static void TestEmbedded(void) {
  lossd_status status = LOSSD_STATUS_INIT;
  lossd_client* client = NULL;
  lossd_embedded_options options = {"tpu", NULL, 0, 0, 0};
  CHECK(lossd_open_embedded(&options, &client, &status) == LOSSD_INVALID_ARGUMENT);
  CHECK(client == NULL);
  options.backend = "cpu";
  options.threads = 1;
  options.workspace_bytes = 16 << 20;
  CHECK(lossd_open_embedded(&options, &client, &status) == LOSSD_OK);
  lossd_bytes info = {NULL, 0};
  CHECK(lossd_server_info(client, &info, &status) == LOSSD_OK && info.size > 0);
  lossd_bytes_free(&info);
  CHECK(lossd_list_ops(client, &info, &status) == LOSSD_OK && info.size > 0);
  lossd_bytes_free(&info);
  lossd_buffer* buffer = NULL;
  CHECK(lossd_buffer_create(client, 4096, &buffer, &status) == LOSSD_UNIMPLEMENTED);
  CHECK(lossd_list_regions(client, &info, &status) == LOSSD_UNIMPLEMENTED && buffer == NULL);

  const int64_t target[kN] = {2, 0};
  float logprob[kN] = {0}, other[kN] = {0};
  lossd_bytes reply = {NULL, 0};
  Message request = Request(target, LOSSD_PROCESS_REGION, AddressOf(logprob));
  CHECK(lossd_run(client, request.data, request.size, 0, &reply, &status) == LOSSD_OK);
  lossd_bytes_free(&reply);
  for (int i = 0; i < kN; ++i) CHECK(fabs(logprob[i] - Logprob(i, target[i])) < 1e-5);
  lossd_prepared* prepared = NULL;
  CHECK(lossd_prepare(client, request.data, request.size, &prepared, &status) ==
        LOSSD_INVALID_ARGUMENT);
  CHECK(strcmp(status.field, "hidden") == 0 && prepared == NULL);
  request = Request(target, LOSSD_PROCESS_REGION, 0);
  CHECK(lossd_run_on_stream(client, request.data, request.size, NULL, &reply, &status) ==
        LOSSD_INVALID_ARGUMENT);
  CHECK(strcmp(status.field, "logprob") == 0 && reply.data == NULL);
  request = Request(target, LOSSD_PROCESS_REGION + 1, AddressOf(logprob));
  CHECK(lossd_run(client, request.data, request.size, 0, &reply, &status) == LOSSD_NOT_FOUND);

  /* Prepared once, run at other addresses. */
  const int64_t hidden_shape[] = {kN, kH}, weight_shape[] = {kV, kH}, row_shape[] = {kN};
  const Message hidden = TensorAt(kF32, hidden_shape, 2, LOSSD_PROCESS_REGION, AddressOf(kHidden));
  const Message weight = TensorAt(kF32, weight_shape, 2, LOSSD_PROCESS_REGION, AddressOf(kWeight));
  const Message targets = TensorAt(kI64, row_shape, 1, LOSSD_PROCESS_REGION, AddressOf(target));
  const Message output = TensorAt(kF32, row_shape, 1, LOSSD_PROCESS_REGION, AddressOf(logprob));
  request = RequestOf(&hidden, &weight, &targets, &output);
  CHECK(lossd_prepare(client, request.data, request.size, &prepared, &status) == LOSSD_OK);
  const int64_t swapped[kN] = {0, 2};
  uint64_t addresses[] = {AddressOf(kHidden), AddressOf(kWeight), AddressOf(swapped),
                          AddressOf(other)};
  CHECK(lossd_prepared_run(prepared, addresses, 4, NULL, NULL, &status) == LOSSD_OK);
  for (int i = 0; i < kN; ++i) CHECK(fabs(other[i] - Logprob(i, swapped[i])) < 1e-5);
  CHECK(lossd_prepared_run(prepared, addresses, 4, NULL, &reply, &status) == LOSSD_OK);
  CHECK(reply.data != NULL);
  lossd_bytes_free(&reply);
  CHECK(lossd_prepared_run(prepared, addresses, 3, NULL, NULL, &status) == LOSSD_INVALID_ARGUMENT);
  CHECK(strcmp(status.field, "addresses") == 0);
  addresses[3] = AddressOf(kHidden);
  CHECK(lossd_prepared_run(prepared, addresses, 4, NULL, NULL, &status) == LOSSD_INVALID_ARGUMENT);
  CHECK(strcmp(status.field, "logprob") == 0);
  addresses[3] = AddressOf(other) + 1;
  CHECK(lossd_prepared_run(prepared, addresses, 4, NULL, NULL, &status) == LOSSD_INVALID_ARGUMENT);
  const int64_t wrong[kN] = {2, kV};
  addresses[2] = AddressOf(wrong);
  addresses[3] = AddressOf(other);
  CHECK(lossd_prepared_run(prepared, addresses, 4, NULL, NULL, &status) == LOSSD_INVALID_ARGUMENT);
  CHECK(strcmp(status.field, "target") == 0 && status.row == 1);

  /* A prepared call keeps its device. */
  lossd_close(client);
  addresses[2] = AddressOf(target);
  CHECK(lossd_prepared_run(prepared, addresses, 4, NULL, NULL, &status) == LOSSD_OK);
  for (int i = 0; i < kN; ++i) CHECK(fabs(other[i] - Logprob(i, target[i])) < 1e-5);
  lossd_prepared_free(prepared);
  lossd_prepared_free(NULL);
}

int main(int argc, char** argv) {
  lossd_status status = LOSSD_STATUS_INIT;
  CHECK(argc == 2);
  CHECK(lossd_abi_version() == LOSSD_ABI_VERSION);
  CHECK(strlen(lossd_version()) > 0);
  CHECK(strcmp(lossd_code_name(LOSSD_INVALID_ARGUMENT), "INVALID_ARGUMENT") == 0);
  CHECK(strcmp(lossd_code_name(-7), "UNKNOWN") == 0);

  lossd_bytes descriptors = {NULL, 0};
  CHECK(lossd_descriptors(&descriptors, &status) == LOSSD_OK);
  CHECK(descriptors.size > 10000);
  lossd_bytes_free(&descriptors);
  CHECK(descriptors.data == NULL);

  TestEmbedded();

  /* Errors have a field, and leave the result alone. */
  lossd_client* client = NULL;
  CHECK(lossd_connect(NULL, NULL, &client, &status) == LOSSD_INVALID_ARGUMENT);
  CHECK(strcmp(status.field, "address") == 0 && client == NULL);
  const lossd_connect_options impatient = {"c_abi_test", 0.5, 0};
  CHECK(lossd_connect("unix:/nowhere/lossd.sock", &impatient, &client, &status) ==
        LOSSD_UNAVAILABLE);
  CHECK(client == NULL && lossd_connect(NULL, NULL, &client, NULL) == LOSSD_INVALID_ARGUMENT);
  lossd_server* server = NULL;
  lossd_server_options options = {"/nowhere/lossd", NULL, 0, 0};
  CHECK(lossd_server_start(&options, &server, &status) == LOSSD_NOT_FOUND && server == NULL);

  options.binary = argv[1];
  CHECK(lossd_server_start(&options, &server, &status) == LOSSD_OK);
  CHECK(lossd_server_pid(server) > 0);
  CHECK(lossd_connect(lossd_server_address(server), &impatient, &client, &status) == LOSSD_OK);
  lossd_bytes info = {NULL, 0};
  CHECK(lossd_server_info(client, &info, &status) == LOSSD_OK && info.size > 0);
  lossd_bytes_free(&info);
  CHECK(lossd_list_ops(client, &info, &status) == LOSSD_OK && info.size > 0);
  lossd_bytes_free(&info);

  lossd_buffer* buffer = NULL;
  CHECK(lossd_buffer_create(client, 0, &buffer, &status) == LOSSD_INVALID_ARGUMENT);
  CHECK(lossd_buffer_create(client, 4096, &buffer, &status) == LOSSD_OK);
  CHECK(lossd_buffer_bytes(buffer) >= 4096 && lossd_buffer_data(buffer) != NULL);
  char four[4] = "abc", back[4] = "";
  CHECK(lossd_buffer_write(buffer, 8, four, 4, &status) == LOSSD_OK);
  CHECK(memcmp((char*)lossd_buffer_data(buffer) + 8, "abc", 4) == 0);
  CHECK(lossd_buffer_read(buffer, 8, back, 4, &status) == LOSSD_OK && strcmp(back, "abc") == 0);
  CHECK(lossd_buffer_read(buffer, UINT64_MAX, back, 4, &status) == LOSSD_OUT_OF_RANGE);
  CHECK(lossd_list_regions(client, &info, &status) == LOSSD_OK && info.size > 0);
  lossd_bytes_free(&info);

  /* A call: values against the formula. */
  const int64_t target[kN] = {2, 0};
  Message request = Request(target, lossd_buffer_region(buffer), 64);
  lossd_bytes reply = {NULL, 0};
  CHECK(lossd_run(client, request.data, request.size, 0, &reply, &status) == LOSSD_OK);
  CHECK(status.code == LOSSD_OK && status.op_index == -1 && reply.data != NULL);
  lossd_bytes_free(&reply);
  const float* logprob = (const float*)lossd_buffer_data(buffer) + 16;
  for (int i = 0; i < kN; ++i) CHECK(fabs(logprob[i] - Logprob(i, target[i])) < 1e-5);

  /* Refusals name the field, and the row where data are wrong. */
  const int64_t wrong[kN] = {2, kV};
  request = Request(wrong, lossd_buffer_region(buffer), 64);
  CHECK(lossd_run(client, request.data, request.size, 0, &reply, &status) ==
        LOSSD_INVALID_ARGUMENT);
  CHECK(strcmp(status.field, "target") == 0 && status.row == 1 && reply.data == NULL);
  CHECK(strlen(status.must_be) > 0 && strlen(status.message) > 0);
  request = Request(target, 987654, 64);
  CHECK(lossd_run(client, request.data, request.size, 0, &reply, &status) == LOSSD_NOT_FOUND);
  CHECK(strcmp(status.field, "logprob") == 0);
  CHECK(lossd_run(client, (const uint8_t*)"\xff\xff", 2, 0, &reply, &status) ==
        LOSSD_INVALID_ARGUMENT);
  CHECK(strcmp(status.field, "request") == 0);
  CHECK(lossd_run(client, request.data, request.size, -1, &reply, &status) ==
        LOSSD_INVALID_ARGUMENT);
  CHECK(strcmp(status.field, "timeout") == 0);
  uint8_t handle[3] = {1, 2, 3};
  lossd_buffer* device = NULL;
  CHECK(lossd_buffer_register_device(client, handle, sizeof(handle), 64, NULL, 1, 1, &device,
                                     &status) != LOSSD_OK);
  CHECK(device == NULL);

  /* A buffer outlives its client's handle and its server; then calls elsewhere fail in a plain way. */
  lossd_client* second = NULL;
  CHECK(lossd_connect(lossd_server_address(server), NULL, &second, &status) == LOSSD_OK);
  lossd_close(client);
  CHECK(fabs(logprob[0] - Logprob(0, target[0])) < 1e-5);
  lossd_server_stop(server);
  lossd_buffer_free(buffer);
  CHECK(lossd_run(second, request.data, request.size, 5, &reply, &status) == LOSSD_UNAVAILABLE);
  lossd_close(second);
  lossd_close(NULL);
  lossd_buffer_free(NULL);
  lossd_server_stop(NULL);
  puts("ok");
  return 0;
}
