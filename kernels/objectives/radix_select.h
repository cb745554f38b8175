// The n smallest of many keys, exactly, by one team: integer counts of one digit after the other, so that the result does not depend on the
// number of threads. Plain C++: nvcc reads it.
#ifndef LOSSD_KERNELS_OBJECTIVES_RADIX_SELECT_H_
#define LOSSD_KERNELS_OBJECTIVES_RADIX_SELECT_H_

#include <cstdint>
#include <cstring>

#include "kernels/core/host_device.h"
#include "kernels/objectives/team.h"

namespace lossd {

// A key whose unsigned order is the falling order of reals: the largest first, -0 like 0, NaN last.
LOSSD_HD uint64_t FallingKey(double value) {
  if (value != value) return ~uint64_t{0};
  value += 0.0;  // -0 becomes 0
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  const bool negative = (bits >> 63) != 0;
  return negative ? bits : ~bits & ~(uint64_t{1} << 63);
}

// Key and row as one number of 96 bits, in which no two rows are equal: digits of 8 bits, the highest first.
struct RowKey {
  static constexpr int kKeyDigits = 8;
  static constexpr int kDigits = 12;
  uint64_t key = 0;
  uint32_t row = 0;

  LOSSD_HD uint32_t Digit(int digit) const {
    return digit < kKeyDigits ? static_cast<uint32_t>(key >> (56 - 8 * digit)) & 255
                              : row >> (24 - 8 * (digit - kKeyDigits)) & 255;
  }
  LOSSD_HD void SetDigit(int digit, uint32_t value) {
    if (digit < kKeyDigits) {
      key = (key & ~(uint64_t{255} << (56 - 8 * digit))) | uint64_t{value} << (56 - 8 * digit);
    } else {
      const int shift = 24 - 8 * (digit - kKeyDigits);
      row = (row & ~(uint32_t{255} << shift)) | value << shift;
    }
  }
  // Whether the digits before `digit` are the same.
  LOSSD_HD bool Leads(const RowKey& other, int digit) const {
    if (digit == 0) return true;
    if (digit < kKeyDigits) return (key ^ other.key) >> (64 - 8 * digit) == 0;
    if (key != other.key) return false;
    return digit == kKeyDigits || (row ^ other.row) >> (32 - 8 * (digit - kKeyDigits)) == 0;
  }
  LOSSD_HD bool IsAtMost(const RowKey& other) const {
    return key < other.key || (key == other.key && row <= other.row);
  }
};

// The largest of the `wanted` smallest row keys among marked rows, of which there must be more than `wanted`, which is at least 1.
// At most 12 sweeps over rows; usually the keys' first half decides.
template <class Team>
LOSSD_HD RowKey FindBound(Team& team, const uint64_t* keys, const uint8_t* marked, int64_t rows,
                          int64_t wanted) {
  constexpr int kBatch = 4;  // loads in flight
  RowKey bound;
  for (int digit = 0; digit < RowKey::kDigits; ++digit) {
    team.Sync();  // the last round's counters have been read
    for (int c = team.rank(); c < kTeamCounters; c += team.size()) team.counters()[c] = 0;
    team.Sync();
    for (int64_t begin = team.rank(); begin < rows; begin += kBatch * int64_t{team.size()}) {
      RowKey batch[kBatch];
      bool takes[kBatch];
      for (int k = 0; k < kBatch; ++k) {
        const int64_t i = begin + k * int64_t{team.size()};
        takes[k] = i < rows && marked[i] != 0;
        batch[k].key = i < rows ? keys[i] : 0;
        batch[k].row = static_cast<uint32_t>(i);
      }
      for (int k = 0; k < kBatch; ++k) {
        if (takes[k] && batch[k].Leads(bound, digit)) {
          team.Count(&team.counters()[batch[k].Digit(digit)]);
        }
      }
    }
    team.Sync();
    uint32_t value = 0;
    for (; value < kTeamCounters - 1 && team.counters()[value] < wanted; ++value) {
      wanted -= team.counters()[value];
    }
    bound.SetDigit(digit, value);
    if (team.counters()[value] == wanted) {  // all that begin so are in
      for (int rest = digit + 1; rest < RowKey::kDigits; ++rest) bound.SetDigit(rest, 255);
      break;
    }
  }
  return bound;
}

// Takes the mark from all rows but the `wanted` ones with the smallest keys, equal keys by smaller row. `count`: how many are marked.
// Every thread of the team must call; keys and marks must have been synchronised.
template <class Team>
LOSSD_HD void KeepSmallest(Team& team, const uint64_t* keys, uint8_t* marked, int64_t rows,
                           int64_t count, int64_t wanted) {
  if (count <= wanted) return;
  const RowKey bound = FindBound(team, keys, marked, rows, wanted);
  for (int64_t i = team.rank(); i < rows; i += team.size()) {
    const RowKey key = {keys[i], static_cast<uint32_t>(i)};
    if (marked[i] != 0 && !key.IsAtMost(bound)) marked[i] = 0;
  }
}

}  // namespace lossd

#endif  // LOSSD_KERNELS_OBJECTIVES_RADIX_SELECT_H_
