#include "server/dispatcher.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

// How often finished work is looked for while nothing new comes; it bounds how late a mapping closes, no reply waits for it.
constexpr auto kPollInterval = std::chrono::microseconds(500);

// How often works that are not ready are asked again while there is no other.
constexpr auto kReadyInterval = std::chrono::microseconds(50);

absl::Status Draining() {
  return ReasonError(absl::StatusCode::kUnavailable, "DRAINING", "the server is stopping");
}

}  // namespace

bool IsDeviceLost(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kUnavailable) return false;
  const auto detail = GetErrorDetail(status);
  return detail && detail->reason() == "GPU_LOST";
}

Dispatcher::Dispatcher(Backend backend, const Options& options,
                       std::function<void(const absl::Status&)> on_lost)
    : backend_(backend), options_(options), on_lost_(std::move(on_lost)) {
  thread_ = std::thread([this] { Loop(); });
}

Dispatcher::~Dispatcher() {
  std::vector<Item> queued;
  {
    std::lock_guard<std::mutex> lock(mu_);
    stopping_ = true;
    draining_ = true;
    queued = TakeAllLocked();
    submitted_.fetch_add(1);
  }
  work_.notify_all();
  for (const Item& item : queued) {
    Answer(item, absl::CancelledError("the server has stopped"), false);
  }
  thread_.join();
}

absl::Status Dispatcher::Submit(uint64_t session, std::shared_ptr<Work> work) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!lost_.ok()) return lost_;
    if (draining_) return Draining();
    SessionQueue& queue = sessions_[session];
    const bool session_full = queue.outstanding >= options_.session_depth;
    if (session_full || outstanding_ >= options_.total_depth) {
      v1::ErrorDetail detail;
      detail.set_reason("QUEUE_FULL");
      detail.set_retry_after_ms(
          static_cast<uint32_t>(std::clamp(run_seconds_ * 1e3 * outstanding_, 1.0, 10000.0)));
      const int limit = session_full ? options_.session_depth : options_.total_depth;
      if (queue.outstanding == 0) sessions_.erase(session);
      return DetailError(
          absl::StatusCode::kResourceExhausted, detail,
          absl::StrCat("the queue of the ", session_full ? "session" : "device", " holds its ",
                       limit, " calls; retry in ", detail.retry_after_ms(), " ms"));
    }
    if (queue.works.empty()) turns_.push_back(session);
    queue.works.push_back(std::move(work));
    ++queue.outstanding;
    ++outstanding_;
    ++queued_;
    submitted_.fetch_add(1, std::memory_order_release);
  }
  work_.notify_one();
  return absl::OkStatus();
}

void Dispatcher::Drop(uint64_t session, const absl::Status& status) {
  std::deque<std::shared_ptr<Work>> dropped;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = sessions_.find(session);
    if (found == sessions_.end() || found->second.works.empty()) return;
    dropped.swap(found->second.works);
    queued_ -= static_cast<int>(dropped.size());
    turns_.erase(std::find(turns_.begin(), turns_.end(), session));
  }
  for (auto& work : dropped) {
    Answer({session, std::move(work)}, status, false);
  }
}

bool Dispatcher::Drain(absl::Time deadline) {
  std::vector<Item> queued;
  bool done;
  {
    std::unique_lock<std::mutex> lock(mu_);
    draining_ = true;
    done = idle_.wait_until(lock, absl::ToChronoTime(deadline),
                            [this] { return outstanding_ == 0 || !lost_.ok(); });
    queued = TakeAllLocked();
  }
  for (const Item& item : queued) {
    Answer(item, Draining(), false);
  }
  return done;
}

int Dispatcher::outstanding() const {
  std::lock_guard<std::mutex> lock(mu_);
  return outstanding_;
}

std::vector<Dispatcher::Item> Dispatcher::TakeAllLocked() {
  std::vector<Item> items;
  for (auto& [session, queue] : sessions_) {
    for (auto& work : queue.works) items.push_back({session, std::move(work)});
    queue.works.clear();
  }
  turns_.clear();
  queued_ = 0;
  return items;
}

void Dispatcher::Loop() {
  while (true) {
    Item item = Take();
    if (item.work != nullptr) {
      if (CheckReady(item)) RunItem(std::move(item));
    } else {
      std::lock_guard<std::mutex> lock(mu_);
      if (stopping_) break;
    }
    if (!pending_.empty()) PollPending();
  }
  if (pending_.empty()) return;
  // Mappings must not close under work that runs; on a lost device nothing runs.
  (void)backend_.device->Synchronize();
  for (const Pending& pending : pending_) {
    FreePlace(pending.item);
    CountDone();
  }
  pending_.clear();
}

Dispatcher::Item Dispatcher::Take() {
  const auto ready = [this] { return queued_ > 0 || stopping_; };
  std::unique_lock<std::mutex> lock(mu_);
  if (!ready() && options_.spin > absl::ZeroDuration()) {
    const uint64_t seen = submitted_.load();
    lock.unlock();
    const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options_.spin);
    while (submitted_.load(std::memory_order_acquire) == seen &&
           std::chrono::steady_clock::now() < end) {
    }
    lock.lock();
  }
  if (unready_ > 0 && unready_ >= static_cast<int>(turns_.size())) {
    // All that is queued was asked: until something new comes, a short sleep.
    unready_ = 0;
    const uint64_t seen = submitted_.load();
    work_.wait_for(lock, kReadyInterval, [&] { return submitted_.load() != seen || stopping_; });
  } else if (pending_.empty()) {
    work_.wait(lock, ready);
  } else {
    work_.wait_for(lock, kPollInterval, ready);
  }
  if (queued_ == 0) return {};
  Item item;
  item.session = turns_.front();
  turns_.pop_front();
  SessionQueue& queue = sessions_[item.session];
  item.work = std::move(queue.works.front());
  queue.works.pop_front();
  --queued_;
  if (!queue.works.empty()) turns_.push_back(item.session);
  return item;
}

bool Dispatcher::CheckReady(const Item& item) {
  absl::Status status = item.work->CheckStillWanted();
  absl::StatusOr<bool> ready = true;
  if (status.ok()) {
    ready = item.work->CheckReady(backend_);
    status = ready.status();
  }
  if (status.ok() && !*ready) {
    std::lock_guard<std::mutex> lock(mu_);
    // Nobody settles what comes back to the queue after that.
    if (stopping_ || !lost_.ok()) {
      status = lost_.ok() ? absl::CancelledError("the server has stopped") : lost_;
    } else {
      SessionQueue& queue = sessions_[item.session];
      if (queue.works.empty()) turns_.push_back(item.session);
      queue.works.push_front(item.work);
      ++queued_;
      ++unready_;
      return false;
    }
  }
  if (!status.ok()) {
    Answer(item, status, false);
    if (IsDeviceLost(status)) Lose(status);
  }
  unready_ = 0;
  return status.ok();
}

void Dispatcher::RunItem(Item item) {
  absl::Status status;
  bool pending = false;
  const auto start = std::chrono::steady_clock::now();
  try {
    status = item.work->Run(backend_, &pending);
  } catch (const std::exception& error) {
    status = absl::InternalError(absl::StrCat("exception: ", error.what()));
    // What was enqueued may still read memory of the call.
    const absl::Status synchronized = backend_.device->Synchronize();
    if (!synchronized.ok()) status = synchronized;
    pending = false;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  {
    std::lock_guard<std::mutex> lock(mu_);
    run_seconds_ += 0.1 * (took.count() - run_seconds_);
  }
  if (status.ok() && pending) {
    item.work->Settle(status, true);
    status = Hold(std::move(item));
  } else {
    Answer(item, status, true);
  }
  if (IsDeviceLost(status)) Lose(status);
}

absl::Status Dispatcher::Hold(Item item) {
  std::shared_ptr<DeviceEvent> marker;
  if (!free_markers_.empty()) {
    marker = std::move(free_markers_.back());
    free_markers_.pop_back();
  } else if (auto created = backend_.device->CreateEvent(); created.ok()) {
    marker = *std::move(created);
  }
  if (marker != nullptr && backend_.device->RecordEvent(*marker).ok()) {
    pending_.push_back({std::move(item), std::move(marker)});
    return absl::OkStatus();
  }
  // Without an event to ask, the device is waited for.
  const absl::Status status = backend_.device->Synchronize();
  FreePlace(item);
  CountDone();
  return status;
}

void Dispatcher::PollPending() {
  while (!pending_.empty()) {
    const absl::StatusOr<bool> reached = backend_.device->QueryEvent(*pending_.front().marker);
    if (!reached.ok() && IsDeviceLost(reached.status())) return Lose(reached.status());
    if (reached.ok() && !*reached) return;
    if (!reached.ok() && !backend_.device->Synchronize().ok()) return;
    FreePlace(pending_.front().item);
    CountDone();
    free_markers_.push_back(std::move(pending_.front().marker));
    pending_.pop_front();
  }
}

void Dispatcher::FreePlace(const Item& item) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = sessions_.find(item.session);
  if (--found->second.outstanding == 0) sessions_.erase(found);
}

void Dispatcher::CountDone() {
  bool idle;
  {
    std::lock_guard<std::mutex> lock(mu_);
    idle = --outstanding_ == 0;
  }
  if (idle) idle_.notify_all();
}

void Dispatcher::Answer(const Item& item, const absl::Status& status, bool launched) {
  FreePlace(item);
  item.work->Settle(status, launched);
  CountDone();
}

void Dispatcher::Lose(const absl::Status& status) {
  std::vector<Item> queued;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!lost_.ok()) return;
    lost_ = status;
    queued = TakeAllLocked();
  }
  for (const Item& item : queued) {
    Answer(item, status, false);
  }
  // What is pending keeps its mappings: closing them on a lost device may hang, and the process ends anyway.
  idle_.notify_all();
  on_lost_(status);
}

}  // namespace lossd
