// The memory of one session by id, and how a call holds on to what it uses.
#ifndef LOSSD_SERVER_REGION_TABLE_H_
#define LOSSD_SERVER_REGION_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/binding.h"
#include "lossd/v1/session.pb.h"

namespace lossd {

// One piece of memory that a session registered, or that was allocated for it.
struct Mapping {
  std::byte* base = nullptr;  // on the device
  std::byte* host = nullptr;  // the same memory for host code; null for device memory
  uint64_t bytes = 0;
  v1::MemoryKind kind = v1::MEMORY_KIND_UNSPECIFIED;
  v1::Access access = v1::READ_WRITE;
  uint64_t buffer_id = 0;
  std::string handle;                 // CUDA IPC handle of a registered allocation
  std::shared_ptr<const void> owner;  // closes the mapping
  mutable std::atomic<uint32_t> uses{0};
};

// Ids to mappings. Removal is immediate for new calls; the mapping itself closes when the last call that uses it lets go.
// Thread-safe; never holds its lock while a mapping is closed.
class RegionTable {
 public:
  // Ids from here on are the table's own choice; smaller ones are the client's.
  static constexpr uint64_t kFirstOwnId = uint64_t{1} << 32;

  explicit RegionTable(int max_regions) : max_regions_(max_regions) {}

  // Adds under `id`, or under an id of its own if that is 0.
  // Errors: ALREADY_EXISTS (id), INVALID_ARGUMENT (id from kFirstOwnId on), RESOURCE_EXHAUSTED with reason QUOTA_REGIONS,
  // UNAUTHENTICATED with reason STALE_SESSION once closed.
  absl::StatusOr<v1::RegionInfo> Add(uint64_t id, std::shared_ptr<const Mapping> mapping);
  // What Add would say of the id, before the cost of opening a handle.
  absl::Status CheckRoom(uint64_t id) const;
  // Errors: NOT_FOUND.
  absl::Status Remove(uint64_t id);
  // Drops regions of an allocation that is gone: the same handle under another buffer id is new memory.
  // Errors: FAILED_PRECONDITION with reason HANDLE_IN_USE while calls still use such a region.
  absl::Status RemoveStale(absl::string_view handle, uint64_t buffer_id);
  // Errors: NOT_FOUND.
  absl::StatusOr<std::shared_ptr<const Mapping>> Find(uint64_t id) const;
  std::vector<v1::RegionInfo> List() const;
  // Removes everything and refuses what comes later.
  void Close();

 private:
  absl::Status CheckRoomLocked(uint64_t id) const;

  const int max_regions_;
  mutable std::mutex mu_;
  // Guarded by mu_.
  std::map<uint64_t, std::shared_ptr<const Mapping>> regions_;
  uint64_t next_id_ = kFirstOwnId;
  bool closed_ = false;
};

// The regions of one call: each is looked up once and counted once, however many tensors lie in it. Thread-compatible.
class CallRegions final : public RegionResolver {
 public:
  // Without a table every region is UNAUTHENTICATED: there is no session.
  explicit CallRegions(const RegionTable* table) : table_(table) {}
  absl::StatusOr<Region> Resolve(uint64_t region) const override;

 private:
  const RegionTable* const table_;
  mutable std::map<uint64_t, Region> found_;
};

}  // namespace lossd

#endif  // LOSSD_SERVER_REGION_TABLE_H_
