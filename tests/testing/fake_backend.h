// A device and operations for tests of the server: deterministic, without threads, and as slow or as broken as the test says.
#ifndef LOSSD_TESTS_TESTING_FAKE_BACKEND_H_
#define LOSSD_TESTS_TESTING_FAKE_BACKEND_H_

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/error.h"
#include "kernels/core/op.h"
#include "kernels/core/registry.h"

namespace lossd {

// Host memory that calls itself a GPU: work is done at once, but the device has "reached" it only after Reach().
class FakeDevice : public Device {
 public:
  explicit FakeDevice(bool is_host = false)
      : is_host_(is_host), memory_(1 << 20), arena_(memory_.data(), memory_.size()) {}

  const char* backend() const override { return is_host_ ? "cpu" : "cuda"; }
  std::string name() const override { return "fake"; }
  Arena& workspace() override { return arena_; }
  bool is_host() const override { return is_host_; }
  std::string uuid() const override { return is_host_ ? "" : std::string(16, 'u'); }

  absl::Status CopyIn(void* device, const void* host, uint64_t bytes) override {
    return Copy(device, host, bytes);
  }
  absl::Status CopyOut(void* host, const void* device, uint64_t bytes) override {
    return Copy(host, device, bytes);
  }
  absl::Status Zero(void* device, uint64_t bytes) override {
    std::memset(device, 0, bytes);
    return absl::OkStatus();
  }
  absl::Status Synchronize() override {
    reached_ = enqueued_.load();
    return lost_ ? Lost() : absl::OkStatus();
  }
  absl::StatusOr<SharedMemory> MapHost(void* host, uint64_t bytes,
                                       std::shared_ptr<const void> owner) override {
    if (lost_) return Lost();
    return SharedMemory{static_cast<std::byte*>(host), bytes, "", std::move(owner)};
  }
  absl::StatusOr<SharedMemory> OpenHandle(absl::string_view handle) override {
    if (lost_) return Lost();
    if (handle[0] != 'h') return FieldError("cuda_ipc", "a handle", "not one");
    auto memory = std::make_shared<std::vector<std::byte>>(4096);
    ++open_handles_;
    return SharedMemory{memory->data(), memory->size(), "",
                        std::shared_ptr<void>(nullptr, [this, memory](void*) { --open_handles_; })};
  }
  absl::StatusOr<SharedMemory> AllocateShared(uint64_t bytes) override {
    if (lost_) return Lost();
    auto memory = std::make_shared<std::vector<std::byte>>(bytes);
    return SharedMemory{memory->data(), bytes, std::string(64, 'h'), memory};
  }

  struct Event final : DeviceEvent {
    std::string handle() const override { return std::string(64, 'e'); }
    std::atomic<int64_t> point{0};
  };
  absl::StatusOr<std::shared_ptr<DeviceEvent>> OpenEvent(absl::string_view) override {
    return std::shared_ptr<DeviceEvent>(std::make_shared<Event>());
  }
  absl::StatusOr<std::shared_ptr<DeviceEvent>> CreateEvent() override {
    return std::shared_ptr<DeviceEvent>(std::make_shared<Event>());
  }
  absl::Status WaitEvent(DeviceEvent&) override {
    ++waits_;
    return absl::OkStatus();
  }
  absl::Status RecordEvent(DeviceEvent& event) override {
    static_cast<Event&>(event).point = ++enqueued_;
    return absl::OkStatus();
  }
  absl::StatusOr<bool> QueryEvent(DeviceEvent& event) override {
    if (lost_) return Lost();
    return static_cast<Event&>(event).point <= reached_;
  }

  // Everything enqueued so far is done.
  void Reach() { reached_ = enqueued_.load(); }
  void Lose() { lost_ = true; }
  int waits() const { return waits_; }
  int open_handles() const { return open_handles_; }
  static absl::Status Lost() {
    return ReasonError(absl::StatusCode::kUnavailable, "GPU_LOST", "fake: lost");
  }

 private:
  absl::Status Copy(void* to, const void* from, uint64_t bytes) {
    if (lost_) return Lost();
    std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }

  const bool is_host_;
  std::vector<std::byte> memory_;
  Arena arena_;
  std::atomic<int64_t> enqueued_{0};
  std::atomic<int64_t> reached_{0};
  std::atomic<bool> lost_{false};
  std::atomic<int> waits_{0};
  std::atomic<int> open_handles_{0};
};

// What every fake operation does when it runs.
struct FakeOpHooks {
  std::function<absl::Status(const OpCall& call, Backend& backend, ResultRecord* record)> run;
  std::atomic<int> runs{0};
};

class FakeOp final : public Op {
 public:
  FakeOp(OpSchema schema, FakeOpHooks* hooks) : Op(std::move(schema)), hooks_(hooks) {}

  const std::vector<std::string>& metric_names() const override { return names_; }
  absl::Status Check(const google::protobuf::Message&, const Dims&) const override {
    return absl::OkStatus();
  }
  absl::StatusOr<PendingResult> Enqueue(const OpCall& call, Backend& backend) const override {
    ++hooks_->runs;
    auto record = backend.device->workspace().AllocateArray<ResultRecord>(1, "record");
    if (!record.ok()) return record.status();
    **record = ResultRecord();
    (*record)->count = 7;
    if (hooks_->run) {
      if (absl::Status status = hooks_->run(call, backend, *record); !status.ok()) return status;
    }
    if (call.options.record_copy != nullptr) *call.options.record_copy = **record;
    return PendingResult{*record, "fake"};
  }
  absl::Status Finish(const google::protobuf::Message&, const ResultRecord& record,
                      v1::OpReply* reply) const override {
    if (absl::Status status = RecordStatus(schema(), record); !status.ok()) return status;
    reply->set_count(record.count);
    return absl::OkStatus();
  }

 private:
  FakeOpHooks* const hooks_;
  const std::vector<std::string> names_;
};

// One fake for each operation of the protocol.
inline absl::StatusOr<Registry> FakeRegistry(FakeOpHooks* hooks) {
  std::vector<std::unique_ptr<Op>> ops;
  const auto* field = v1::Op::descriptor()->oneof_decl(0);
  for (int i = 0; i < field->field_count(); ++i) {
    auto schema = OpSchema::Create(field->field(i)->message_type());
    if (!schema.ok()) return schema.status();
    ops.push_back(std::make_unique<FakeOp>(*std::move(schema), hooks));
  }
  return Registry::Create(std::move(ops));
}

}  // namespace lossd

#endif  // LOSSD_TESTS_TESTING_FAKE_BACKEND_H_
