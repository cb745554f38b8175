// The demo's command line.
#ifndef LOSSD_CLIENT_DEMO_OPTIONS_H_
#define LOSSD_CLIENT_DEMO_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lossd::demo {

struct Options {
  std::string target;  // empty: a private server
  std::string server;  // binary of the private server; empty: beside this executable
  std::string text = "/usr/share/common-licenses";
  int64_t steps = 400;   // of phase 1
  int64_t batches = 50;  // of phase 2
  int64_t seed = 1;
  bool help = false;

  // Between the launcher and its children.
  std::string role;      // "", "trainer", "rollout"
  int64_t parent = 0;    // process id of the launcher
  int64_t began_ns = 0;  // CLOCK_MONOTONIC when the launcher began
};

// Errors: INVALID_ARGUMENT with the flag's name.
absl::StatusOr<Options> ParseOptions(int argc, char** argv);
// The command line (without the program's name) that gives these options.
std::vector<std::string> FormatOptions(const Options& options);
const char* HelpText();

}  // namespace lossd::demo

#endif  // LOSSD_CLIENT_DEMO_OPTIONS_H_
