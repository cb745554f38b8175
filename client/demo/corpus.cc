#include "client/demo/corpus.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/demo/shape.h"

namespace lossd::demo {
namespace {

constexpr int64_t kLeastCharacters = 50000;
constexpr int64_t kBlock = 256;
constexpr int64_t kHeldOutEvery = 16;

void AppendParagraphs(const std::string& raw, std::string* text) {
  int newlines = 2;  // a file starts a paragraph
  bool space = false;
  for (const char c : raw) {
    if (c == '\n') {
      ++newlines;
      space = true;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f') {
      space = true;
    } else if (c > ' ' && c <= '~') {
      if (newlines >= 2) {
        if (!text->empty()) *text += '\n';
      } else if (space) {
        *text += ' ';
      }
      *text += c;
      newlines = 0;
      space = false;
    }
  }
}

}  // namespace

uint64_t Corpus::Hash() const {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (const int32_t piece : pieces)
    hash = (hash ^ static_cast<uint32_t>(piece)) * 0x100000001b3ull;
  return hash;
}

absl::StatusOr<Corpus> ReadCorpus(const std::string& directory) {
  Corpus corpus;
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code status_error;
    // Links are second names of texts that are there already.
    if (entry->symlink_status(status_error).type() == std::filesystem::file_type::regular) {
      paths.push_back(entry->path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::string& text = corpus.text;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string raw{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (raw.empty()) continue;
    ++corpus.files;
    AppendParagraphs(raw, &text);
  }
  if (corpus.files == 0) {
    return absl::NotFoundError(absl::StrCat(
        directory,
        ": must hold the licence texts that Debian and Ubuntu install there "
        "(package base-files), holds no readable file; --text names another directory"));
  }
  if (static_cast<int64_t>(text.size()) < kLeastCharacters) {
    return absl::InvalidArgumentError(absl::StrCat(directory, ": must hold at least ",
                                                   kLeastCharacters, " characters of text, holds ",
                                                   text.size()));
  }
  auto vocabulary = WordPieces::Learn(text, kVocab);
  if (!vocabulary.ok()) return vocabulary.status();
  corpus.vocabulary = *std::move(vocabulary);
  corpus.pieces = corpus.vocabulary.Encode(text);
  for (int64_t i = kContext; i < static_cast<int64_t>(corpus.pieces.size()); ++i) {
    const bool held = i / kBlock % kHeldOutEvery == kHeldOutEvery - 1;
    (held ? corpus.held_out : corpus.learnt).push_back(i);
  }
  if (static_cast<int64_t>(corpus.held_out.size()) > kHeldOutRows) {
    corpus.held_out.resize(kHeldOutRows);
  }
  return corpus;
}

}  // namespace lossd::demo
