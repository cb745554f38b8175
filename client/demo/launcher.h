// Starts the demo's processes and waits for them.
#ifndef LOSSD_CLIENT_DEMO_LAUNCHER_H_
#define LOSSD_CLIENT_DEMO_LAUNCHER_H_

#include "absl/status/status.h"
#include "client/demo/options.h"

namespace lossd::demo {

// Descriptors that a child finds open.
inline constexpr int kChannelDescriptor = 3;
inline constexpr int kExchangeDescriptor = 4;

// Exit statuses of a child.
inline constexpr int kExitFailed = 1;
// It ended because the other child did, and has said nothing about it.
inline constexpr int kExitPeerEnded = 3;
// The trainer's: it ran to the end and printed which promise was not kept.
inline constexpr int kExitPromiseBroken = 4;

// The server (unless options.target names one), the trainer and the rollout. Errors: the first process that failed, by name; the others
// are ended. FAILED_PRECONDITION without a text if the trainer has said it all.
absl::Status Launch(const Options& options);

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_LAUNCHER_H_
