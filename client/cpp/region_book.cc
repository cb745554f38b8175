#include "client/cpp/region_book.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/op_scan.h"
#include "client/cpp/status.h"

namespace lossd::client {

uint64_t RegionBook::NextId() {
  std::lock_guard<std::mutex> lock(mu_);
  return next_id_++;
}

void RegionBook::Add(uint64_t region, RegionEntry entry) {
  std::lock_guard<std::mutex> lock(mu_);
  entries_[region] = std::move(entry);
}

void RegionBook::Remove(uint64_t region) {
  std::lock_guard<std::mutex> lock(mu_);
  entries_.erase(region);
}

bool RegionBook::IsLost(uint64_t region) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = entries_.find(region);
  return found != entries_.end() && found->second.lost;
}

absl::Status RegionBook::RegisterAll(Connection& connection, absl::Time deadline) {
  std::map<uint64_t, RegionEntry> entries;  // a copy: the server is not asked under the lock
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (auto& [region, entry] : entries_) {
      if (entry.server_held) entry.lost = any_lost_ = true;
    }
    entries = entries_;
  }
  for (const auto& [region, entry] : entries) {
    if (entry.server_held) continue;
    v1::SessionRequest request;
    *request.mutable_register_() = entry.registration;
    std::vector<int> fds;
    if (entry.memory != nullptr) fds.push_back(entry.memory->fd());
    std::vector<UniqueFd> reply_fds;
    const auto reply = connection.Control(request, fds, &reply_fds, deadline);
    if (!reply.ok())
      return Prefix(absl::StrCat("region ", region, " in a new session"), reply.status());
  }
  return absl::OkStatus();
}

absl::Status RegionBook::CheckNotLost(const v1::RunRequest& request) const {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!any_lost_) return absl::OkStatus();
  }
  std::vector<RegionUse> uses;
  FindRegions(request, &uses);
  for (const RegionUse& use : uses) {
    if (!IsLost(use.region)) continue;
    v1::ErrorDetail detail;
    detail.set_field(use.field);
    detail.set_must_be("in memory of this session");
    detail.set_is(absl::StrCat("in region ", use.region, ", lost when the server ended"));
    detail.set_reason("REGION_LOST");
    return MakeError(absl::StatusCode::kFailedPrecondition, detail,
                     absl::StrCat(use.field, ": region ", use.region,
                                  " was memory of a server that has ended: allocate it again"));
  }
  return absl::OkStatus();
}

}  // namespace lossd::client
