#include "client/demo/options.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lossd::demo {
namespace {

// One flag: a pointer to one of the two, and the least value of a number.
struct Flag {
  const char* name;
  std::string Options::*text = nullptr;
  int64_t Options::*number = nullptr;
  int64_t least = 0;
};

constexpr Flag kFlags[] = {
    {.name = "--target", .text = &Options::target},
    {.name = "--server", .text = &Options::server},
    {.name = "--text", .text = &Options::text},
    {.name = "--steps", .number = &Options::steps, .least = 1},
    {.name = "--batches", .number = &Options::batches, .least = 1},
    {.name = "--seed", .number = &Options::seed},
    {.name = "--role", .text = &Options::role},
    {.name = "--parent", .number = &Options::parent},
    {.name = "--began", .number = &Options::began_ns},
};

absl::Status Set(const Flag& flag, absl::string_view value, Options* options) {
  if (flag.text != nullptr) {
    options->*flag.text = std::string(value);
    return absl::OkStatus();
  }
  int64_t number;
  if (!absl::SimpleAtoi(value, &number) || number < flag.least) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag.name, ": must be a whole number of at least ", flag.least, ", is \"", value, "\""));
  }
  options->*flag.number = number;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Options> ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      options.help = true;
      continue;
    }
    const size_t equal = argument.find('=');
    const absl::string_view name = argument.substr(0, equal);
    const Flag* found = nullptr;
    for (const Flag& flag : kFlags) {
      if (name == flag.name) found = &flag;
    }
    if (found == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(argument, ": must be a flag of --help, is unknown"));
    }
    absl::string_view value;
    if (equal != absl::string_view::npos) {
      value = argument.substr(equal + 1);
    } else if (i + 1 < argc) {
      value = argv[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat(name, ": must have a value, has none"));
    }
    if (absl::Status set = Set(*found, value, &options); !set.ok()) return set;
  }
  return options;
}

std::vector<std::string> FormatOptions(const Options& options) {
  std::vector<std::string> arguments;
  for (const Flag& flag : kFlags) {
    arguments.push_back(flag.text != nullptr ? absl::StrCat(flag.name, "=", options.*flag.text)
                                             : absl::StrCat(flag.name, "=", options.*flag.number));
  }
  return arguments;
}

const char* HelpText() {
  return R"(lossd_demo: a small language model learns the licence texts, then learns to prefer long words.

Three processes: a lossd server, a trainer and a rollout process. The model's head (vocabulary
product, loss, gradients) is evaluated by the server for both of them. Phase 1: cross entropy.
Phase 2: the rollout samples continuations, the trainer raises their reward by the policy loss.

  --target ADDRESS  a server that runs already, unix:/path or host:port (default: start one)
  --server FILE     the server to start (default: lossd beside this program, then on PATH)
  --text DIRECTORY  the text to learn (default: /usr/share/common-licenses)
  --steps N         steps of phase 1 (default: 400)
  --batches N       batches of phase 2 (default: 50)
  --seed N          of weights, batches and samples (default: 1); equal seeds give equal output
  --help

Exit status 0: the held-out loss fell by at least 2 nats, the reward rose by at least 0.3, and the
first ratio of every token of every batch was exactly 1. 1: one of these failed, or a process died.
2: a wrong flag.
)";
}

}  // namespace lossd::demo
