// The last requests of a session by request_id, so that a repeat is answered and not run: accumulated gradients must not be added twice.
#ifndef LOSSD_SERVER_REQUEST_WINDOW_H_
#define LOSSD_SERVER_REQUEST_WINDOW_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "lossd/v1/service.pb.h"

namespace lossd {

// How a request ended.
struct PastResult {
  absl::Status status;
  // With an OK status; null if it was too large to keep.
  std::shared_ptr<const v1::RunReply> reply;
};

// Thread-safe. Waiters are called without its lock.
class RequestWindow {
 public:
  static constexpr size_t kIds = 1024;
  static constexpr size_t kReplyBytes = size_t{32} << 20;

  // Called with the first call's result, or with null: the first was dropped before it ran, and the waiter is the first now.
  using Waiter = std::function<void(const PastResult*)>;

  enum class Turn { kFirst, kWaiting, kKnown };

  // kFirst: run it and call End. kWaiting: `waiter` will be called. kKnown: *result is filled.
  Turn Begin(const std::string& id, Waiter waiter, PastResult* result);

  // The first call's end. `ran`: its result is kept and goes to all waiters. Otherwise nothing has happened to any tensor: the id is free
  // again, and goes to the next waiter if there is one.
  void End(const std::string& id, bool ran, const absl::Status& status, const v1::RunReply* reply);

 private:
  struct Entry {
    bool done = false;
    PastResult result;
    size_t bytes = 0;
    std::vector<Waiter> waiters;
  };

  void TrimLocked();

  std::mutex mu_;
  // Guarded by mu_.
  std::unordered_map<std::string, Entry> entries_;
  std::deque<std::string> done_;  // oldest first
  size_t reply_bytes_ = 0;
  size_t dropped_replies_ = 0;  // of done_'s first entries
};

}  // namespace lossd

#endif  // LOSSD_SERVER_REQUEST_WINDOW_H_
