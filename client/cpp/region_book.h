// The client's own list of its regions: ids, and what it takes to have them again in a new session.
#ifndef LOSSD_CLIENT_CPP_REGION_BOOK_H_
#define LOSSD_CLIENT_CPP_REGION_BOOK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cpp/connection.h"
#include "client/cpp/shared_memory.h"
#include "lossd/v1/service.pb.h"

namespace lossd::client {

// One region. Memory of this process can be registered again; memory of the server ends with its session.
struct RegionEntry {
  v1::RegisterRegionRequest registration;
  std::shared_ptr<SharedMemory>
      memory;  // of a memfd, and of host memory of the server that is mapped here
  bool server_held = false;
  bool lost = false;  // server-held, and the session that had it has ended
};

// Thread-safe.
class RegionBook {
 public:
  // A fresh id. Ids are the client's choice and never come twice, so that a lost region is not mistaken for a new one.
  uint64_t NextId();

  void Add(uint64_t region, RegionEntry entry);
  void Remove(uint64_t region);
  bool IsLost(uint64_t region) const;

  // In a new session: registers all regions again under their ids; server-held ones become lost.
  absl::Status RegisterAll(Connection& connection, absl::Time deadline);

  // FAILED_PRECONDITION with the field, if a tensor lies in a region that was lost.
  absl::Status CheckNotLost(const v1::RunRequest& request) const;

 private:
  mutable std::mutex mu_;
  // Guarded by mu_.
  uint64_t next_id_ = 1;
  bool any_lost_ = false;
  std::map<uint64_t, RegionEntry> entries_;
};

}  // namespace lossd::client

#endif  // LOSSD_CLIENT_CPP_REGION_BOOK_H_
