// What phase 2 improves, and how the rewards of a group become advantages.
#ifndef LOSSD_CLIENT_DEMO_REWARD_H_
#define LOSSD_CLIENT_DEMO_REWARD_H_

#include <cstdint>
#include <string>
#include <unordered_set>

namespace lossd::demo {

inline constexpr char kRewardInWords[] =
    "share of a continuation's characters (spaces left out) in licence words of 7 letters and more";
inline constexpr int64_t kLongWord = 7;  // letters

class Reward {
 public:
  // Learns the long words of the text.
  explicit Reward(const std::string& text);

  // 0 ... 1. A run of letters is a word; one that the text does not have earns nothing.
  float operator()(const std::string& continuation) const;

 private:
  std::unordered_set<std::string> words_;
};

// GRPO: (reward - mean of the group) / standard deviation of the group; 0 in a group of equal rewards.
void GroupAdvantages(const float* reward, int64_t sequences, int64_t group, float* advantage);

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_REWARD_H_
