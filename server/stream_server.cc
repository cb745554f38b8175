#include "server/stream_server.h"

#include <chrono>
#include <utility>

namespace lossd {

StreamServer::StreamServer(LossService& service, std::unique_ptr<grpc::ServerCompletionQueue> queue,
                           absl::Duration spin)
    : service_(service), queue_(std::move(queue)), spin_(spin) {
  service_.AcceptStream(queue_.get());
  thread_ = std::thread([this] { Loop(); });
}

StreamServer::~StreamServer() {
  // A stream that ends itself needs the queue.
  service_.streams().WaitUntilEmpty();
  queue_->Shutdown();
  thread_.join();
}

void StreamServer::Loop() {
  using Clock = std::chrono::steady_clock;
  const auto spin = absl::ToChronoNanoseconds(spin_);
  void* tag;
  bool ok;
  while (true) {
    if (spin_ > absl::ZeroDuration()) {
      const auto end = Clock::now() + spin;
      auto found = grpc::CompletionQueue::TIMEOUT;
      while (found == grpc::CompletionQueue::TIMEOUT && Clock::now() < end) {
        found = queue_->AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
      }
      if (found == grpc::CompletionQueue::SHUTDOWN) return;
      if (found == grpc::CompletionQueue::GOT_EVENT) {
        QueuedStream::Handle(tag, ok);
        continue;
      }
    }
    if (!queue_->Next(&tag, &ok)) return;
    QueuedStream::Handle(tag, ok);
  }
}

}  // namespace lossd
