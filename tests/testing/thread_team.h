// A team of real threads for stages: a reduction that not every thread reaches would hang or be wrong.
#ifndef LOSSD_TESTS_TESTING_THREAD_TEAM_H_
#define LOSSD_TESTS_TESTING_THREAD_TEAM_H_

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/objectives/team.h"

namespace lossd {

// As kernels/objectives/team.h says.
class ThreadTeam {
 public:
  struct Shared {
    explicit Shared(int threads) : barrier(threads), values(threads), counters(kTeamCounters) {}
    std::barrier<> barrier;
    std::vector<double> values;
    std::vector<uint32_t> counters;
  };
  ThreadTeam(int rank, int size, Shared* shared) : rank_(rank), size_(size), shared_(shared) {}
  int rank() const { return rank_; }
  int size() const { return size_; }
  template <class T>
  T Sum(T value) {
    return static_cast<T>(Reduce(static_cast<double>(value), std::plus<double>()));
  }
  template <class... T>
  void SumAll(T*... values) {
    ((*values = Sum(*values)), ...);
  }
  template <class T>
  T Min(T value) {
    const auto min = [](double a, double b) { return std::min(a, b); };
    return static_cast<T>(Reduce(static_cast<double>(value), min));
  }
  template <class T>
  T Max(T value) {
    const auto max = [](double a, double b) { return std::max(a, b); };
    return static_cast<T>(Reduce(static_cast<double>(value), max));
  }
  uint32_t* counters() { return shared_->counters.data(); }
  void Count(uint32_t* counter) { std::atomic_ref<uint32_t>(*counter).fetch_add(1); }
  void Sync() { shared_->barrier.arrive_and_wait(); }

 private:
  template <class F>
  double Reduce(double value, F f) {
    shared_->values[rank_] = value;
    Sync();
    double result = shared_->values[0];
    for (int i = 1; i < size_; ++i) result = f(result, shared_->values[i]);
    Sync();
    return result;
  }

  int rank_;
  int size_;
  Shared* shared_;
};

// work(team) by each of `threads` threads; one thread is a SerialTeam.
template <class Work>
void RunTeam(int threads, const Work& work) {
  if (threads == 1) {
    SerialTeam team;
    work(team);
    return;
  }
  ThreadTeam::Shared shared(threads);
  std::vector<std::thread> running;
  for (int rank = 0; rank < threads; ++rank) {
    running.emplace_back([&work, &shared, rank, threads] {
      ThreadTeam team(rank, threads, &shared);
      work(team);
    });
  }
  for (std::thread& thread : running) thread.join();
}

// Every instance of a stage by a team of `threads` threads.
template <class Stage>
void RunByThreads(const Stage& stage, int64_t instances, int threads) {
  for (int64_t instance = 0; instance < instances; ++instance) {
    RunTeam(threads, [&](auto& team) { stage.Run(team, instance); });
  }
}

}  // namespace lossd

#endif  // LOSSD_TESTS_TESTING_THREAD_TEAM_H_
