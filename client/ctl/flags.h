// Command lines of lossctl: "--name value", "--name=value", "--name", and words.
#ifndef LOSSD_CLIENT_CTL_FLAGS_H_
#define LOSSD_CLIENT_CTL_FLAGS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lossd::ctl {

struct Flag {
  const char* name;      // without the dashes
  const char* argument;  // "ADDRESS"; null: the flag has none
  const char* help;
  bool many = false;  // may be given more than once
};

// What a command accepts.
struct Usage {
  const char* command;
  const char* words;  // "DIR", "[NAME]"; "" for none
  int min_words;
  int max_words;
  const char* summary;  // one sentence
  std::vector<Flag> flags;
};

struct Arguments {
  std::vector<std::string> words;
  std::map<std::string, std::vector<std::string>> flags;  // by name; "" for a flag without argument
  bool help = false;

  bool Has(const std::string& flag) const { return flags.count(flag) != 0; }
  // "" if it was not given.
  std::string Get(const std::string& flag) const;
  // Of a flag that may be given more than once, in order.
  std::vector<std::string> All(const std::string& flag) const;
  // The number that was given, or `absent`. Errors: INVALID_ARGUMENT that names the flag.
  absl::StatusOr<int64_t> Integer(const std::string& flag, int64_t absent, int64_t min,
                                  int64_t max) const;
};

// Errors: INVALID_ARGUMENT that names the flag or word.
absl::StatusOr<Arguments> ParseArguments(const Usage& usage, const std::vector<std::string>& given);

std::string HelpText(const Usage& usage);

}  // namespace lossd::ctl

#endif  // LOSSD_CLIENT_CTL_FLAGS_H_
