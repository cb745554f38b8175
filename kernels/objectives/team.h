// Threads that work on one instance of a stage together. The same stage code runs on the CPU with one thread and on a GPU with a block.
#ifndef LOSSD_KERNELS_OBJECTIVES_TEAM_H_
#define LOSSD_KERNELS_OBJECTIVES_TEAM_H_

#include <cstdint>

#include "kernels/core/host_device.h"

namespace lossd {

// How many counters a team has.
inline constexpr int kTeamCounters = 256;

// What a Team offers (kernels/cuda has a BlockTeam of the same shape):
//   rank(), size()      this thread's number and how many there are: for (i = rank(); i < n; i += size())
//   Sum, Min, Max       over all threads' values (int32_t, int64_t, float, double; no Sum of float), in a fixed order; every thread must call,
//                       every thread gets the result
//   SumAll(&a, &b, ...) Sum of each
//   counters()          kTeamCounters integers that all threads share, undefined until they are written
//   Count(counter)      adds 1 to one of them, from any thread at any time: integers, so that the order says nothing
//   Sync()              barrier; memory written before it by any thread is seen after it by all
struct SerialTeam {
  LOSSD_HD int rank() const { return 0; }
  LOSSD_HD int size() const { return 1; }
  template <class T>
  LOSSD_HD T Sum(T value) {
    return value;
  }
  template <class... T>
  LOSSD_HD void SumAll(T*...) {}
  template <class T>
  LOSSD_HD T Min(T value) {
    return value;
  }
  template <class T>
  LOSSD_HD T Max(T value) {
    return value;
  }
  LOSSD_HD uint32_t* counters() { return counters_; }
  LOSSD_HD void Count(uint32_t* counter) { ++*counter; }
  LOSSD_HD void Sync() {}

 private:
  uint32_t counters_[kTeamCounters];
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_TEAM_H_
