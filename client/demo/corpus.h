// The demo's text: the licences that every Debian and Ubuntu system carries, as word pieces.
#ifndef LOSSD_CLIENT_DEMO_CORPUS_H_
#define LOSSD_CLIENT_DEMO_CORPUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/demo/word_pieces.h"

namespace lossd::demo {

struct Corpus {
  int64_t files = 0;
  std::string text;
  WordPieces vocabulary;
  std::vector<int32_t> pieces;
  // Positions in `pieces` that are learnt, and those that are only measured: every 16th block of 256. The licences quote each other,
  // so a held-out passage may have a near relative among the learnt ones.
  std::vector<int64_t> learnt;
  std::vector<int64_t> held_out;

  // Of the pieces, to see that two processes read the same text.
  uint64_t Hash() const;
};

// Reads the regular files of a directory in the order of their names. Line breaks inside a paragraph become spaces; bytes that are not
// ASCII are dropped. Errors: NOT_FOUND without readable text, INVALID_ARGUMENT if there is too little of it.
absl::StatusOr<Corpus> ReadCorpus(const std::string& directory);

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_CORPUS_H_
