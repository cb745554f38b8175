#include "server/session_table.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/error.h"

namespace lossd {
namespace {

bool IsEqualInConstantTime(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

uint64_t Load(const char* bytes) {
  uint64_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// High and low half of the product, folded.
uint64_t Mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  size_t have = 0;
  while (have < count) {
    const ssize_t got = ::getrandom(bytes.data() + have, count - have, 0);
    if (got > 0) have += static_cast<size_t>(got);
    // Without randomness there are no secrets, and so no service.
    else if (errno != EINTR)
      std::abort();
  }
  return bytes;
}

uint64_t SessionTable::SlotOf(absl::string_view token) const {
  const uint64_t inner =
      Mix(Load(token.data()) ^ Load(key_.data()), Load(token.data() + 8) ^ Load(key_.data() + 8));
  return Mix(inner ^ Load(key_.data() + 8), Load(key_.data()) | 1);
}

absl::StatusOr<std::shared_ptr<Session>> SessionTable::Open(Session::Kind kind,
                                                            absl::string_view client_name) {
  std::string token = RandomBytes(kTokenBytes);
  std::lock_guard<std::mutex> lock(mu_);
  if (refusing_) {
    return ReasonError(absl::StatusCode::kUnavailable, "DRAINING", "the server is stopping");
  }
  if (by_id_.size() >= static_cast<size_t>(max_sessions_)) {
    return ReasonError(absl::StatusCode::kResourceExhausted, "MAX_SESSIONS",
                       absl::StrCat("the server has its ", max_sessions_, " sessions"));
  }
  const uint64_t id = next_id_++;
  const uint64_t slot = SlotOf(token);
  auto session =
      std::make_shared<Session>(id, kind, std::move(token), std::string(client_name), limits_);
  session->Touch(absl::Now());
  by_id_.emplace(id, session);
  by_slot_.emplace(slot, session);
  return session;
}

absl::StatusOr<std::shared_ptr<Session>> SessionTable::Find(absl::string_view token,
                                                            Session::Kind kind) const {
  if (token.size() == kTokenBytes) {
    const uint64_t slot = SlotOf(token);
    std::lock_guard<std::mutex> lock(mu_);
    const auto [begin, end] = by_slot_.equal_range(slot);
    for (auto it = begin; it != end; ++it) {
      if (it->second->kind() == kind && IsEqualInConstantTime(it->second->token(), token)) {
        it->second->Touch(absl::Now());
        return it->second;
      }
    }
  }
  return ReasonError(absl::StatusCode::kUnauthenticated, "STALE_SESSION",
                     "the token is of no session of this server; open a new one");
}

void SessionTable::End(uint64_t id) {
  std::shared_ptr<Session> session;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) return;
    session = std::move(found->second);
    by_id_.erase(found);
    const auto [begin, end] = by_slot_.equal_range(SlotOf(session->token()));
    for (auto it = begin; it != end; ++it) {
      if (it->second == session) {
        by_slot_.erase(it);
        break;
      }
    }
  }
  session->Close();
  on_end_(*session);
}

void SessionTable::EndUnusedSince(absl::Time oldest) {
  std::vector<uint64_t> ended;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [id, session] : by_id_) {
      if (session->kind() == Session::Kind::kLease && session->calls().load() == 0 &&
          session->last_used() < oldest) {
        ended.push_back(id);
      }
    }
  }
  for (uint64_t id : ended) End(id);
}

void SessionTable::Refuse() {
  std::lock_guard<std::mutex> lock(mu_);
  refusing_ = true;
}

void SessionTable::EndAll() {
  std::vector<uint64_t> ids;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [id, session] : by_id_) ids.push_back(id);
  }
  for (uint64_t id : ids) End(id);
}

size_t SessionTable::size() const {
  std::lock_guard<std::mutex> lock(mu_);
  return by_id_.size();
}

}  // namespace lossd
