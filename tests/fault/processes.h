// What the fault tests look at and work with: a server's resources, calls that take their time, a neighbour who must not notice.
#ifndef LOSSD_TESTS_FAULT_PROCESSES_H_
#define LOSSD_TESTS_FAULT_PROCESSES_H_

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "tests/integration/client_fixture.h"

namespace lossd {

// What a process holds for its clients.
struct Holdings {
  int descriptors = 0;
  int memfd_mappings = 0;
  bool operator==(const Holdings& other) const {
    return descriptors == other.descriptors && memfd_mappings == other.memfd_mappings;
  }
};

inline std::ostream& operator<<(std::ostream& out, const Holdings& holdings) {
  return out << holdings.descriptors << " descriptors, " << holdings.memfd_mappings << " mappings";
}

inline Holdings HoldingsOf(pid_t pid) {
  Holdings holdings;
  std::error_code error;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    ++holdings.descriptors;
  }
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  for (std::string line; std::getline(maps, line);) {
    holdings.memfd_mappings += line.find("/memfd:") != std::string::npos;
  }
  return holdings;
}

inline bool Eventually(absl::Duration patience, const std::function<bool()>& condition) {
  const absl::Time end = absl::Now() + patience;
  while (!condition()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

inline void ExpectReturnsTo(const Holdings& baseline, pid_t server) {
  EXPECT_TRUE(Eventually(absl::Seconds(2), [&] { return HoldingsOf(server) == baseline; }))
      << "baseline " << baseline << ", now " << HoldingsOf(server);
}

// A call of some tenths of a second: tensors in `buffer` of kLongBytes, losses and lse in the reply.
inline constexpr int64_t kLongRows = 256;
inline constexpr int64_t kLongHidden = 512;
inline constexpr int64_t kLongVocab = 16384;
inline constexpr uint64_t kLongWeight = kLongRows * kLongHidden * 4;
inline constexpr uint64_t kLongGradient = kLongWeight + kLongVocab * kLongHidden * 4;
inline constexpr uint64_t kLongBytes = kLongGradient + kLongVocab * kLongHidden * 4;

inline v1::LinearCrossEntropy LongCall(Buffer& buffer) {
  v1::LinearCrossEntropy op;
  *op.mutable_linear()->mutable_hidden() = buffer.Tensor(v1::F32, {kLongRows, kLongHidden}, 0);
  *op.mutable_linear()->mutable_weight() =
      buffer.Tensor(v1::F32, {kLongVocab, kLongHidden}, kLongWeight);
  std::vector<int64_t> targets(kLongRows);
  for (int64_t i = 0; i < kLongRows; ++i) targets[i] = i * 37 % kLongVocab;
  *op.mutable_head()->mutable_target() = Ids(targets);
  *op.mutable_loss() = Output({1});
  *op.mutable_lse() = Output({kLongRows});
  *op.mutable_gradients()->mutable_grad_weight() =
      buffer.Tensor(v1::F32, {kLongVocab, kLongHidden}, kLongGradient);
  return op;
}

// A buffer filled for LongCall.
inline std::unique_ptr<Buffer> LongBuffer(Client& client) {
  auto buffer = client.CreateBuffer(kLongBytes);
  if (!buffer.ok()) return nullptr;
  auto* values = reinterpret_cast<float*>((*buffer)->data());
  for (uint64_t i = 0; i < kLongGradient / 4; ++i) {
    values[i] = static_cast<float>(static_cast<int64_t>(i * 2654435761u % 2001) - 1000) * 1e-4f;
  }
  return *std::move(buffer);
}

// Another client that calls all the time, and counts what is not right to the bit.
class Neighbour {
 public:
  explicit Neighbour(const std::string& address) : client_(Connect(address)) {
    const auto first = client_->Run(Op());
    EXPECT_TRUE(first.ok()) << first.status();
    if (first.ok()) expected_ = first->outputs().at("grad_weight").inline_data();
  }
  ~Neighbour() { Stop(); }

  void Start() {
    thread_ = std::thread([this] {
      while (!stop_) {
        const auto reply = client_->Run(Op());
        if (!reply.ok()) {
          ADD_FAILURE() << "neighbour: " << reply.status();
          return;
        }
        if (reply->outputs().at("grad_weight").inline_data() != expected_) {
          ADD_FAILURE() << "neighbour: wrong bits";
        }
        ++calls_;
      }
    });
  }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int calls() const { return calls_; }

 private:
  static v1::LinearCrossEntropy Op() {
    v1::LinearCrossEntropy op;
    *op.mutable_linear()->mutable_hidden() =
        Floats({16, 32}, [](int64_t i) { return std::sin(0.7f * i); });
    *op.mutable_linear()->mutable_weight() =
        Floats({64, 32}, [](int64_t i) { return std::cos(0.3f * i); });
    *op.mutable_head()->mutable_target() =
        Ids({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, -100, 13, 62, 63});
    *op.mutable_loss() = Output({1});
    *op.mutable_gradients()->mutable_grad_weight() = Output({64, 32});
    return op;
  }

  const std::unique_ptr<Client> client_;
  std::string expected_;
  std::atomic<bool> stop_{false};
  std::atomic<int> calls_{0};
  std::thread thread_;
};

}  // namespace lossd

#endif  // LOSSD_TESTS_FAULT_PROCESSES_H_
