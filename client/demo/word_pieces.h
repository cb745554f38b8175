// A vocabulary of word pieces learnt from a text by joining frequent neighbours (byte pair encoding; Sennrich et al. 2016).
#ifndef LOSSD_CLIENT_DEMO_WORD_PIECES_H_
#define LOSSD_CLIENT_DEMO_WORD_PIECES_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"

namespace lossd::demo {

class WordPieces {
 public:
  // Errors: INVALID_ARGUMENT if the text does not give `size` pieces.
  static absl::StatusOr<WordPieces> Learn(const std::string& text, int64_t size);

  // Characters that are not in the vocabulary are left out.
  std::vector<int32_t> Encode(const std::string& text) const;
  std::string Decode(const int32_t* pieces, int64_t count) const;
  int64_t size() const { return static_cast<int64_t>(text_of_.size()); }

 private:
  std::vector<int32_t> Characters(const std::string& word) const;

  std::vector<std::string> text_of_;
  std::vector<int32_t> piece_of_byte_ = std::vector<int32_t>(256, -1);
  // (left, right) -> the joined piece; smaller ids were joined earlier.
  std::unordered_map<uint64_t, int32_t> joined_;
};

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_WORD_PIECES_H_
