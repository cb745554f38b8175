#include "server/request_window.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"

namespace lossd {

RequestWindow::Turn RequestWindow::Begin(const std::string& id, Waiter waiter, PastResult* result) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto [found, inserted] = entries_.try_emplace(id);
  if (inserted) return Turn::kFirst;
  if (!found->second.done) {
    found->second.waiters.push_back(std::move(waiter));
    return Turn::kWaiting;
  }
  *result = found->second.result;
  if (result->status.ok() && result->reply == nullptr) {
    result->status = ReasonError(absl::StatusCode::kAborted, "REPLY_FORGOTTEN",
                                 absl::StrCat("request_id: ", id,
                                              " has run and is not run again, but its "
                                              "reply is no longer kept"));
  }
  return Turn::kKnown;
}

void RequestWindow::End(const std::string& id, bool ran, const absl::Status& status,
                        const v1::RunReply* reply) {
  PastResult result;
  result.status = status;
  size_t bytes = 0;
  if (ran && status.ok() && reply != nullptr) {
    bytes = reply->ByteSizeLong();
    if (bytes <= kReplyBytes)
      result.reply = std::make_shared<v1::RunReply>(*reply);
    else
      bytes = 0;
  }
  std::vector<Waiter> waiters;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return;
    Entry& entry = found->second;
    if (!ran) {
      if (entry.waiters.empty()) {
        entries_.erase(found);
        return;
      }
      waiters.push_back(std::move(entry.waiters.front()));
      entry.waiters.erase(entry.waiters.begin());
    } else {
      entry.done = true;
      entry.result = result;
      entry.bytes = bytes;
      waiters.swap(entry.waiters);
      reply_bytes_ += bytes;
      done_.push_back(id);
      TrimLocked();
    }
  }
  // A waiter shares the moment of the first call: even a reply that is too large to keep is still at hand.
  if (ran && status.ok() && result.reply == nullptr && !waiters.empty()) {
    result.reply = std::make_shared<v1::RunReply>(*reply);
  }
  for (const Waiter& waiter : waiters) waiter(ran ? &result : nullptr);
}

void RequestWindow::TrimLocked() {
  while (done_.size() > kIds) {
    const auto oldest = entries_.find(done_.front());
    reply_bytes_ -= oldest->second.bytes;
    entries_.erase(oldest);
    done_.pop_front();
    if (dropped_replies_ > 0) --dropped_replies_;
  }
  while (reply_bytes_ > kReplyBytes && dropped_replies_ < done_.size()) {
    Entry& entry = entries_.find(done_[dropped_replies_++])->second;
    reply_bytes_ -= entry.bytes;
    entry.bytes = 0;
    entry.result.reply = nullptr;
  }
}

}  // namespace lossd
