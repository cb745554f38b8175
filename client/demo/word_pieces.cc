#include "client/demo/word_pieces.h"

#include <cctype>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lossd::demo {
namespace {

uint64_t Key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

// Words carry the space before them; letters, digits and everything else do not mix. Pieces never reach over a word.
std::vector<std::string> SplitWords(const std::string& text) {
  auto kind = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return std::isalpha(byte) ? 1 : std::isdigit(byte) ? 2 : 0;
  };
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;
    if (text[begin] == ' ' && end < text.size() && kind(text[end]) != 0) ++end;
    const int first = kind(text[end - 1]);
    while (first != 0 && end < text.size() && kind(text[end]) == first) ++end;
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

void Join(std::vector<int32_t>& pieces, int32_t left, int32_t right, int32_t joined) {
  size_t kept = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const bool match = pieces[i] == left && i + 1 < pieces.size() && pieces[i + 1] == right;
    pieces[kept++] = match ? joined : pieces[i];
    if (match) ++i;
  }
  pieces.resize(kept);
}

}  // namespace

std::vector<int32_t> WordPieces::Characters(const std::string& word) const {
  std::vector<int32_t> pieces;
  for (const char c : word) {
    const int32_t piece = piece_of_byte_[static_cast<unsigned char>(c)];
    if (piece >= 0) pieces.push_back(piece);
  }
  return pieces;
}

absl::StatusOr<WordPieces> WordPieces::Learn(const std::string& text, int64_t size) {
  WordPieces result;
  std::map<std::string, int64_t> count_of;  // ordered, so that ties fall alike everywhere
  for (std::string& word : SplitWords(text)) ++count_of[std::move(word)];
  for (const auto& [word, count] : count_of) {
    for (const char c : word) result.piece_of_byte_[static_cast<unsigned char>(c)] = 0;
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (result.piece_of_byte_[byte] < 0) continue;
    result.piece_of_byte_[byte] = static_cast<int32_t>(result.text_of_.size());
    result.text_of_.push_back(std::string(1, static_cast<char>(byte)));
  }
  std::vector<std::pair<std::vector<int32_t>, int64_t>> words;
  for (const auto& [word, count] : count_of) words.emplace_back(result.Characters(word), count);

  std::vector<int64_t> pair_count(size * size, 0);
  std::vector<int64_t> touched;
  while (result.size() < size) {
    for (const int64_t pair : touched) pair_count[pair] = 0;
    touched.clear();
    for (const auto& [pieces, count] : words) {
      for (size_t i = 1; i < pieces.size(); ++i) {
        const int64_t pair = pieces[i - 1] * size + pieces[i];
        if (pair_count[pair] == 0) touched.push_back(pair);
        pair_count[pair] += count;
      }
    }
    int64_t best = -1;
    for (const int64_t pair : touched) {
      if (best < 0 || pair_count[pair] > pair_count[best] ||
          (pair_count[pair] == pair_count[best] && pair < best)) {
        best = pair;
      }
    }
    if (best < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("text: must give ", size, " word pieces, gives ", result.size()));
    }
    const auto left = static_cast<int32_t>(best / size), right = static_cast<int32_t>(best % size);
    const auto joined = static_cast<int32_t>(result.size());
    result.text_of_.push_back(result.text_of_[left] + result.text_of_[right]);
    result.joined_[Key(left, right)] = joined;
    for (auto& [pieces, count] : words) Join(pieces, left, right, joined);
  }
  return result;
}

std::vector<int32_t> WordPieces::Encode(const std::string& text) const {
  std::vector<int32_t> all;
  std::unordered_map<std::string, std::vector<int32_t>> known;
  for (const std::string& word : SplitWords(text)) {
    auto [place, is_new] = known.try_emplace(word);
    std::vector<int32_t>& pieces = place->second;
    if (is_new) {
      pieces = Characters(word);
      for (;;) {
        int32_t earliest = -1, left = 0, right = 0;
        for (size_t i = 1; i < pieces.size(); ++i) {
          const auto found = joined_.find(Key(pieces[i - 1], pieces[i]));
          if (found == joined_.end() || (earliest >= 0 && found->second >= earliest)) continue;
          earliest = found->second, left = pieces[i - 1], right = pieces[i];
        }
        if (earliest < 0) break;
        Join(pieces, left, right, earliest);
      }
    }
    all.insert(all.end(), pieces.begin(), pieces.end());
  }
  return all;
}

std::string WordPieces::Decode(const int32_t* pieces, int64_t count) const {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += text_of_[pieces[i]];
  return text;
}

}  // namespace lossd::demo
