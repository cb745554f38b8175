// Unary gRPC calls of any bytes by a client that is not ours, with gRPC's default limits.
#ifndef LOSSD_TESTS_FAULT_RAW_CALL_H_
#define LOSSD_TESTS_FAULT_RAW_CALL_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

namespace lossd {

inline std::shared_ptr<grpc::Channel> RawChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// Waits at most 10 s. *reply may be null.
inline grpc::Status RawCall(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& method, const std::string& request,
                            std::string* reply = nullptr) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  grpc::CompletionQueue queue;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer sent(&slice, 1);
  auto call = stub.PrepareUnaryCall(&context, method, sent, &queue);
  call->StartCall();
  grpc::ByteBuffer received;
  grpc::Status status;
  call->Finish(&received, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (status.ok() && reply != nullptr) {
    grpc::Slice whole;
    if (received.DumpToSingleSlice(&whole).ok()) {
      *reply = std::string(reinterpret_cast<const char*>(whole.begin()), whole.size());
    }
  }
  return status;
}

enum class Health { kUnknown, kServing, kNotServing };

// What grpc.health.v1.Health says of a service ("": of the server).
inline Health HealthOf(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  std::string request, reply;
  if (!service.empty()) {
    request = std::string("\x0a") + static_cast<char>(service.size()) + service;
  }
  if (!RawCall(channel, "/grpc.health.v1.Health/Check", request, &reply).ok()) {
    return Health::kUnknown;
  }
  if (reply == "\x08\x01") return Health::kServing;
  return reply == "\x08\x02" ? Health::kNotServing : Health::kUnknown;
}

}  // namespace lossd

#endif  // LOSSD_TESTS_FAULT_RAW_CALL_H_
