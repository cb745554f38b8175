// When to stop: SIGTERM, SIGINT, the end of the starting process, or a word from another thread.
#ifndef LOSSD_SERVER_STOP_SIGNAL_H_
#define LOSSD_SERVER_STOP_SIGNAL_H_

#include <sys/types.h>

#include "absl/time/time.h"
#include "server/unique_fd.h"

namespace lossd {

// Signals are blocked and read as data, so that nothing ever runs in a signal handler. Make it before any thread. One per process.
class StopSignal {
 public:
  // With `parent_death`, Wait also ends when the process that started this one is gone; `parent` is its id, or 0 if it is not known.
  StopSignal(bool parent_death, pid_t parent);

  // Waits at most `timeout`. Returns why to stop ("SIGTERM", "SIGINT", "parent_death", "wake"), or null.
  const char* Wait(absl::Duration timeout);
  // Ends Wait. Thread-safe.
  void Wake();

 private:
  bool IsParentGone() const;

  const bool parent_death_;
  pid_t parent_ = 0;
  UniqueFd signals_;
  UniqueFd wake_;
};

}  // namespace lossd

#endif  // LOSSD_SERVER_STOP_SIGNAL_H_
