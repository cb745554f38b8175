#include "client/ctl/flags.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace lossd::ctl {

std::string Arguments::Get(const std::string& flag) const {
  const auto found = flags.find(flag);
  return found == flags.end() ? "" : found->second;
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
    if (arguments.Has(name)) return wrong(absl::StrCat("--", name, ": given twice"));
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
    arguments.flags[name] = value;
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
    absl::StrAppendFormat(&text, "  %-22s %s\n", head, flag.help);
  }
  return text;
}

}  // namespace lossd::ctl
