// A team of real threads for stages: what a GPU's block is, on the host.
#ifndef LOSSD_TESTS_TESTING_THREAD_TEAM_H_
#define LOSSD_TESTS_TESTING_THREAD_TEAM_H_

#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

namespace lossd {

// Sums in the order of the threads. One object for each thread, made by RunByThreads.
class ThreadTeam {
 public:
  struct Shared {
    explicit Shared(int size) : size(size), values(size), integers(size), barrier(size) {}
    int size;
    std::vector<double> values;
    std::vector<int64_t> integers;
    std::barrier<> barrier;
  };

  ThreadTeam(Shared* shared, int rank) : shared_(shared), rank_(rank) {}

  int rank() const { return rank_; }
  int size() const { return shared_->size; }
  void Sync() { shared_->barrier.arrive_and_wait(); }
  double Sum(double value) {
    return Reduce(value, &shared_->values, [](double a, double b) { return a + b; });
  }
  int64_t Sum(int64_t value) {
    return Reduce(value, &shared_->integers, [](int64_t a, int64_t b) { return a + b; });
  }
  int64_t Min(int64_t value) {
    return Reduce(value, &shared_->integers, [](int64_t a, int64_t b) { return a < b ? a : b; });
  }
  double Min(double value) {
    return Reduce(value, &shared_->values, [](double a, double b) { return a < b ? a : b; });
  }
  double Max(double value) {
    return Reduce(value, &shared_->values, [](double a, double b) { return a > b ? a : b; });
  }

 private:
  template <class T, class Combine>
  T Reduce(T value, std::vector<T>* values, const Combine& combine) {
    (*values)[rank_] = value;
    Sync();
    T result = (*values)[0];
    for (int i = 1; i < size(); ++i) result = combine(result, (*values)[i]);
    Sync();
    return result;
  }

  Shared* shared_;
  int rank_;
};

// Every instance of a stage by a team of `size` threads.
template <class Stage>
void RunByThreads(const Stage& stage, int64_t instances, int size) {
  for (int64_t instance = 0; instance < instances; ++instance) {
    ThreadTeam::Shared shared(size);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        ThreadTeam team(&shared, rank);
        stage.Run(team, instance);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace lossd

#endif  // LOSSD_TESTS_TESTING_THREAD_TEAM_H_
