#include "client/demo/reward.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>
#include <vector>

namespace lossd::demo {
namespace {

bool IsLetter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

std::vector<std::string> LongRuns(const std::string& text) {
  std::vector<std::string> runs;
  for (auto begin = text.begin(); begin != text.end();) {
    begin = std::find_if(begin, text.end(), IsLetter);
    const auto end = std::find_if_not(begin, text.end(), IsLetter);
    if (end - begin >= kLongWord) runs.emplace_back(begin, end);
    begin = end;
  }
  return runs;
}

}  // namespace

Reward::Reward(const std::string& text) {
  for (std::string& run : LongRuns(text)) words_.insert(std::move(run));
}

float Reward::operator()(const std::string& continuation) const {
  const auto characters = std::count_if(continuation.begin(), continuation.end(),
                                        [](char c) { return c != ' ' && c != '\n'; });
  size_t earned = 0;
  for (const std::string& run : LongRuns(continuation)) {
    if (words_.count(run) != 0) earned += run.size();
  }
  return characters == 0 ? 0 : static_cast<float>(earned) / static_cast<float>(characters);
}

void GroupAdvantages(const float* reward, int64_t sequences, int64_t group, float* advantage) {
  for (int64_t first = 0; first < sequences; first += group) {
    double mean = 0, square = 0;
    for (int64_t i = first; i < first + group; ++i) mean += reward[i] / group;
    for (int64_t i = first; i < first + group; ++i) {
      square += (reward[i] - mean) * (reward[i] - mean) / group;
    }
    const double deviation = std::sqrt(square);
    for (int64_t i = first; i < first + group; ++i) {
      advantage[i] = deviation < 1e-6 ? 0 : static_cast<float>((reward[i] - mean) / deviation);
    }
  }
}

}  // namespace lossd::demo
