// What trainer and rollout have in common: the text, a connection to lossd, the channel to each other and the shared memory.
#ifndef LOSSD_CLIENT_DEMO_SESSION_H_
#define LOSSD_CLIENT_DEMO_SESSION_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "client/demo/channel.h"
#include "client/demo/corpus.h"
#include "client/demo/exchange.h"
#include "client/demo/options.h"

namespace lossd::demo {

struct Session {
  Options options;
  Corpus corpus;
  std::unique_ptr<Client> client;
  std::unique_ptr<Channel> channel;
  Exchange* exchange = nullptr;
};

// In a child of the launcher. Sees to it that this process ends with the launcher, and that the other process read the same text.
absl::StatusOr<std::unique_ptr<Session>> OpenSession(const Options& options);

// The continuations of these prompts are shown before and after phase 2.
inline constexpr const char* kShownPrompts[] = {
    "\nThis program is distributed in the hope that it will be useful, but",
    "\nYou may copy and distribute verbatim copies of the",
};

// Phase by phase, with progress on standard output. False if the demo did not show what it promises (it has then said so).
absl::StatusOr<bool> RunTrainer(Session& session);
// Answers the trainer until it says kEnd.
absl::Status RunRollout(Session& session);

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_SESSION_H_
