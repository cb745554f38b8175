// All sessions, found by their secret token.
#ifndef LOSSD_SERVER_SESSION_TABLE_H_
#define LOSSD_SERVER_SESSION_TABLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/session.h"

namespace lossd {

// Fresh random bytes from the system.
std::string RandomBytes(size_t count);

// Thread-safe.
class SessionTable {
 public:
  static constexpr size_t kTokenBytes = 16;

  // `on_end` is called once for each session, after it was closed and without a lock.
  SessionTable(int max_sessions, const SessionLimits& limits,
               std::function<void(const Session&)> on_end)
      : max_sessions_(max_sessions),
        limits_(limits),
        on_end_(std::move(on_end)),
        key_(RandomBytes(16)) {}

  // Errors: RESOURCE_EXHAUSTED with reason MAX_SESSIONS, UNAVAILABLE with reason DRAINING after Refuse.
  absl::StatusOr<std::shared_ptr<Session>> Open(Session::Kind kind, absl::string_view client_name);
  // The session of a token on a transport of its kind. Takes the same time for every wrong token.
  // Errors: UNAUTHENTICATED with reason STALE_SESSION.
  absl::StatusOr<std::shared_ptr<Session>> Find(absl::string_view token, Session::Kind kind) const;
  // Nothing happens if it has ended already.
  void End(uint64_t id);
  // Ends sessions whose lease ran out before `oldest`.
  void EndUnusedSince(absl::Time oldest);
  // No new sessions.
  void Refuse();
  void EndAll();
  size_t size() const;

 private:
  // Where a token is kept: a keyed hash, so that the time of a search says nothing about the tokens that exist.
  uint64_t SlotOf(absl::string_view token) const;

  const int max_sessions_;
  const SessionLimits limits_;
  const std::function<void(const Session&)> on_end_;
  const std::string key_;
  mutable std::mutex mu_;
  // Guarded by mu_.
  std::map<uint64_t, std::shared_ptr<Session>> by_id_;
  std::multimap<uint64_t, std::shared_ptr<Session>> by_slot_;
  uint64_t next_id_ = 1;
  bool refusing_ = false;
};

}  // namespace lossd

#endif  // LOSSD_SERVER_SESSION_TABLE_H_
