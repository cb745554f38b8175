#include "client/ctl/flags.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace lossd::ctl {

std::string Arguments::Get(const std::string& flag) const {
  const auto found = flags.find(flag);
  return found == flags.end() ? "" : found->second.front();
}

std::vector<std::string> Arguments::All(const std::string& flag) const {
  const auto found = flags.find(flag);
  return found == flags.end() ? std::vector<std::string>() : found->second;
}

absl::StatusOr<int64_t> Arguments::Integer(const std::string& flag, int64_t absent, int64_t min,
                                           int64_t max) const {
  if (!Has(flag)) return absent;
  int64_t value = 0;
  if (!absl::SimpleAtoi(Get(flag), &value) || value < min || value > max) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, ": must be an integer from ", min,
                                                   " to ", max, ", is ", Get(flag)));
  }
  return value;
}

absl::StatusOr<Arguments> ParseArguments(const Usage& usage,
                                         const std::vector<std::string>& given) {
  const auto wrong = [&](absl::string_view text) {
    return absl::InvalidArgumentError(
        absl::StrCat(text, "; see lossctl ", usage.command, " --help"));
  };
  Arguments arguments;
  for (size_t i = 0; i < given.size(); ++i) {
    absl::string_view word = given[i];
    if (word == "--help" || word == "-h") {
      arguments.help = true;
      return arguments;
    }
    if (!absl::ConsumePrefix(&word, "--")) {
      if (given[i].size() > 1 && given[i][0] == '-')
        return wrong(absl::StrCat(given[i], ": no such flag"));
      arguments.words.push_back(given[i]);
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name(word.substr(0, equals));
    const auto flag = std::find_if(usage.flags.begin(), usage.flags.end(),
                                   [&](const Flag& known) { return name == known.name; });
    if (flag == usage.flags.end()) return wrong(absl::StrCat("--", name, ": no such flag"));
    if (arguments.Has(name) && !flag->many) return wrong(absl::StrCat("--", name, ": given twice"));
    std::string value;
    if (equals != absl::string_view::npos) {
      if (flag->argument == nullptr) return wrong(absl::StrCat("--", name, ": takes no value"));
      value = std::string(word.substr(equals + 1));
    } else if (flag->argument != nullptr) {
      if (++i == given.size()) return wrong(absl::StrCat("--", name, ": needs ", flag->argument));
      value = given[i];
    }
    if (flag->argument != nullptr && value.empty()) {
      return wrong(absl::StrCat("--", name, ": needs ", flag->argument));
    }
    arguments.flags[name].push_back(value);
  }
  const int words = static_cast<int>(arguments.words.size());
  if (words > usage.max_words) {
    return wrong(absl::StrCat("\"", arguments.words[usage.max_words], "\": one word too many"));
  }
  if (words < usage.min_words) return wrong(absl::StrCat("needs ", usage.words));
  return arguments;
}

std::string HelpText(const Usage& usage) {
  std::string text = absl::StrCat("lossctl ", usage.command);
  if (usage.words[0] != '\0') absl::StrAppend(&text, " ", usage.words);
  absl::StrAppend(&text, usage.flags.empty() ? "" : " [FLAGS]", "\n  ", usage.summary, "\n");
  for (const Flag& flag : usage.flags) {
    const std::string head = absl::StrCat(
        "--", flag.name, flag.argument == nullptr ? "" : absl::StrCat(" ", flag.argument));
    absl::StrAppendFormat(&text, "  %-26s %s\n", head, flag.help);
  }
  return text;
}

}  // namespace lossd::ctl
