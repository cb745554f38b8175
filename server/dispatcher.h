// The one thread that owns a device: what it runs, in which order, and what it still holds.
#ifndef LOSSD_SERVER_DISPATCHER_H_
#define LOSSD_SERVER_DISPATCHER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/core/op.h"

namespace lossd {

// Something that needs the device. Shared by the dispatcher until it is settled and nothing of it is left on the device.
class Work {
 public:
  virtual ~Work() = default;
  // Just before the launch: an error if nobody wants it any more (cancelled, past its deadline, its session has ended).
  virtual absl::Status CheckStillWanted() = 0;
  // Whether the work may be launched now; asked on the dispatcher's thread until it says true. Its session waits meanwhile, others do not.
  // An error settles the work without a launch.
  virtual absl::StatusOr<bool> CheckReady(Backend&) { return true; }
  // Uses the device. Sets *pending if work is left on the device when it returns; this object is then kept until the device is done.
  // After an error nothing may be left on the device.
  virtual absl::Status Run(Backend& backend, bool* pending) = 0;
  // Exactly once, on any thread: the outcome. `launched` says whether Run was called.
  virtual void Settle(const absl::Status& status, bool launched) = 0;
};

// Sessions take turns; within a session the order is that of Submit. Thread-safe.
class Dispatcher {
 public:
  struct Options {
    int session_depth = 64;  // works of one session that wait, run or are pending
    int total_depth = 1024;
    absl::Duration spin = absl::ZeroDuration();  // how long an idle thread looks before it sleeps
  };

  // `on_lost` is called once, on the thread that sees it, when the device has failed for good.
  Dispatcher(Backend backend, const Options& options,
             std::function<void(const absl::Status&)> on_lost);
  // Settles what is queued with CANCELLED and waits for what runs.
  ~Dispatcher();

  // Queues. On an error the work is not taken and not settled.
  // Errors: RESOURCE_EXHAUSTED with reason QUEUE_FULL and retry_after_ms, UNAVAILABLE with reason DRAINING or that of the lost device.
  absl::Status Submit(uint64_t session, std::shared_ptr<Work> work);

  // Settles what the session has queued with `status`. What was launched goes on.
  void Drop(uint64_t session, const absl::Status& status);

  // Refuses new work and waits until all that was accepted is done, at most until `deadline`; what is still queued then is settled with
  // UNAVAILABLE (DRAINING). Returns whether everything was done.
  bool Drain(absl::Time deadline);

  // For other threads that use the device: the same as a loss that the dispatcher sees itself. What is queued fails with `status`; what
  // runs ends as the device lets it.
  void ReportLost(const absl::Status& status) { Lose(status); }

  // Works that wait, run or are pending.
  int outstanding() const;

 private:
  struct Item {
    uint64_t session = 0;
    std::shared_ptr<Work> work;
  };
  struct SessionQueue {
    std::deque<std::shared_ptr<Work>> works;
    int outstanding = 0;
  };
  struct Pending {
    Item item;
    std::shared_ptr<DeviceEvent> marker;
  };

  void Loop();
  // The next work, or an item without one: time to look at pending or unready work, or to stop.
  Item Take();
  // Whether the item may run now. If not it goes back to the front of its session's queue, or has been settled.
  bool CheckReady(const Item& item);
  void RunItem(Item item);
  // Keeps the item until the device has reached this point.
  absl::Status Hold(Item item);
  // Lets go of what the device has finished.
  void PollPending();
  // Gives the session's place in the queue back: before the answer, or else a client with as many calls as places would be refused.
  void FreePlace(const Item& item);
  // After the answer: what Drain waits for.
  void CountDone();
  void Answer(const Item& item, const absl::Status& status, bool launched);
  void Lose(const absl::Status& status);
  std::vector<Item> TakeAllLocked();

  Backend backend_;
  const Options options_;
  const std::function<void(const absl::Status&)> on_lost_;

  mutable std::mutex mu_;
  std::condition_variable work_;
  std::condition_variable idle_;
  std::atomic<uint64_t> submitted_{0};  // changes with every Submit; what a spinning thread watches
  // Guarded by mu_.
  std::map<uint64_t, SessionQueue> sessions_;
  std::deque<uint64_t> turns_;  // sessions with queued works, next first
  int queued_ = 0;
  int outstanding_ = 0;
  double run_seconds_ = 1e-3;  // moving average of a run
  bool draining_ = false;
  bool stopping_ = false;
  absl::Status lost_;

  // Of the dispatcher's thread.
  int unready_ = 0;              // how many sessions in a row had nothing that may run
  std::deque<Pending> pending_;  // in the order of the device
  std::vector<std::shared_ptr<DeviceEvent>> free_markers_;

  std::thread thread_;
};

// Whether a status says that the device has failed for good.
bool IsDeviceLost(const absl::Status& status);

}  // namespace lossd

#endif  // LOSSD_SERVER_DISPATCHER_H_
