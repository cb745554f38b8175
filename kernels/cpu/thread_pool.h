// The threads of the CPU backend.
#ifndef LOSSD_KERNELS_CPU_THREAD_POOL_H_
#define LOSSD_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lossd {

// A fixed number of threads, the caller's among them. One loop at a time; the caller must always be the same thread.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(i, worker) for i = 0 ... count - 1, each i once, in any order; returns when all are done. `worker` is below threads()
  // and tells concurrent calls apart. What a call computes must not depend on the worker.
  void For(int64_t count, const std::function<void(int64_t i, int worker)>& body);

 private:
  void Work(int worker);
  void Drain(int worker);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  // Of the current loop; written under the mutex while no worker is active.
  const std::function<void(int64_t, int)>* body_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  uint64_t loop_ = 0;
  int active_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_THREAD_POOL_H_
