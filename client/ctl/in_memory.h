// Operations whose tensors are moved from the message to shared memory: the same answers by the other way.
#ifndef LOSSD_CLIENT_CTL_IN_MEMORY_H_
#define LOSSD_CLIENT_CTL_IN_MEMORY_H_

#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "lossd/v1/service.pb.h"

namespace lossd::ctl {

// Runs `op`, whose tensors are all inline, with every tensor in one buffer of the client, and puts the outputs into the reply.
// Errors: the server's; DATA_LOSS if an input was written, or a destination was added to although the call was refused.
absl::StatusOr<v1::OpReply> RunInMemory(Client& client, const v1::Op& op);

}  // namespace lossd::ctl

#endif  // LOSSD_CLIENT_CTL_IN_MEMORY_H_
