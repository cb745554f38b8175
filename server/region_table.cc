#include "server/region_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

v1::RegionInfo InfoOf(uint64_t id, const Mapping& mapping) {
  v1::RegionInfo info;
  info.set_region(id);
  info.set_bytes(mapping.bytes);
  info.set_kind(mapping.kind);
  info.set_access(mapping.access);
  info.set_uses(mapping.uses.load(std::memory_order_relaxed));
  info.set_buffer_id(mapping.buffer_id);
  return info;
}

// A call's hold on a mapping.
struct Use {
  explicit Use(std::shared_ptr<const Mapping> used) : mapping(std::move(used)) { ++mapping->uses; }
  ~Use() { --mapping->uses; }
  const std::shared_ptr<const Mapping> mapping;
};

absl::Status NotFound(uint64_t id) {
  v1::ErrorDetail detail;
  detail.set_field("region");
  detail.set_must_be("a region of this session");
  detail.set_is(absl::StrCat(id));
  return DetailError(absl::StatusCode::kNotFound, detail);
}

}  // namespace

absl::Status RegionTable::CheckRoomLocked(uint64_t id) const {
  if (closed_) {
    return ReasonError(absl::StatusCode::kUnauthenticated, "STALE_SESSION",
                       "the session has ended");
  }
  if (id >= kFirstOwnId) {
    return FieldError("region",
                      absl::StrCat("below ", kFirstOwnId, ", or 0 for the server's choice"),
                      absl::StrCat(id));
  }
  if (id != 0 && regions_.count(id) > 0) {
    v1::ErrorDetail detail;
    detail.set_field("region");
    detail.set_must_be("an id that is not taken");
    detail.set_is(absl::StrCat(id));
    return DetailError(absl::StatusCode::kAlreadyExists, detail);
  }
  if (regions_.size() >= static_cast<size_t>(max_regions_)) {
    return ReasonError(
        absl::StatusCode::kResourceExhausted, "QUOTA_REGIONS",
        absl::StrCat("the session has its ", max_regions_,
                     " regions; unregister some, "
                     "or register larger allocations and address tensors by offset"));
  }
  return absl::OkStatus();
}

absl::Status RegionTable::CheckRoom(uint64_t id) const {
  std::lock_guard<std::mutex> lock(mu_);
  return CheckRoomLocked(id);
}

absl::StatusOr<v1::RegionInfo> RegionTable::Add(uint64_t id,
                                                std::shared_ptr<const Mapping> mapping) {
  std::lock_guard<std::mutex> lock(mu_);
  LOSSD_RETURN_IF_ERROR(CheckRoomLocked(id));
  if (id == 0) id = next_id_++;
  v1::RegionInfo info = InfoOf(id, *mapping);
  regions_.emplace(id, std::move(mapping));
  return info;
}

absl::Status RegionTable::Remove(uint64_t id) {
  std::shared_ptr<const Mapping> removed;  // closed after the lock is gone
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = regions_.find(id);
  if (found == regions_.end()) return NotFound(id);
  removed = std::move(found->second);
  regions_.erase(found);
  return absl::OkStatus();
}

absl::Status RegionTable::RemoveStale(absl::string_view handle, uint64_t buffer_id) {
  std::vector<std::shared_ptr<const Mapping>> removed;
  std::lock_guard<std::mutex> lock(mu_);
  for (auto it = regions_.begin(); it != regions_.end();) {
    const Mapping& mapping = *it->second;
    if (mapping.handle != handle || mapping.handle.empty() || mapping.buffer_id == buffer_id) {
      ++it;
      continue;
    }
    if (mapping.uses.load() > 0) {
      return ReasonError(
          absl::StatusCode::kFailedPrecondition, "HANDLE_IN_USE",
          absl::StrCat("region ", it->first,
                       " has the same handle for a freed allocation "
                       "and is still used by a call; register again when it is done"));
    }
    removed.push_back(std::move(it->second));
    it = regions_.erase(it);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Mapping>> RegionTable::Find(uint64_t id) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = regions_.find(id);
  if (found == regions_.end()) return NotFound(id);
  return found->second;
}

std::vector<v1::RegionInfo> RegionTable::List() const {
  std::lock_guard<std::mutex> lock(mu_);
  std::vector<v1::RegionInfo> list;
  list.reserve(regions_.size());
  for (const auto& [id, mapping] : regions_) list.push_back(InfoOf(id, *mapping));
  return list;
}

void RegionTable::Close() {
  std::map<uint64_t, std::shared_ptr<const Mapping>> removed;
  std::lock_guard<std::mutex> lock(mu_);
  closed_ = true;
  removed.swap(regions_);
}

absl::StatusOr<Region> CallRegions::Resolve(uint64_t id) const {
  if (table_ == nullptr) {
    return absl::UnauthenticatedError("a region needs a session: its token is missing");
  }
  if (const auto known = found_.find(id); known != found_.end()) return known->second;
  LOSSD_ASSIGN_OR_RETURN(std::shared_ptr<const Mapping> mapping, table_->Find(id));
  Region region;
  region.base = mapping->base;
  region.bytes = mapping->bytes;
  region.writable = mapping->access == v1::READ_WRITE;
  region.owner = std::make_shared<Use>(std::move(mapping));
  found_.emplace(id, region);
  return region;
}

}  // namespace lossd
