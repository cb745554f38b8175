// What the client must know of the operations in a request, whichever they are.
#ifndef LOSSD_CLIENT_CPP_OP_SCAN_H_
#define LOSSD_CLIENT_CPP_OP_SCAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "google/protobuf/message.h"

namespace lossd::client {

// Whether some output of the message, or of a message in it, is added to: then the same call twice is not the same as once.
bool Accumulates(const google::protobuf::Message& message);

struct RegionUse {
  std::string field;
  uint64_t region;
};

// All tensors that lie in regions.
void FindRegions(const google::protobuf::Message& message, std::vector<RegionUse>* uses);

}  // namespace lossd::client

#endif  // LOSSD_CLIENT_CPP_OP_SCAN_H_
