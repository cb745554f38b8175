// lossd_demo: launcher, trainer and rollout are this program in three roles. --help says what it shows.
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "client/demo/launcher.h"
#include "client/demo/options.h"
#include "client/demo/session.h"

namespace lossd::demo {
namespace {

int RunRole(const Options& options) {
  auto session = OpenSession(options);
  absl::Status end = session.status();
  if (session.ok() && options.role == "trainer") {
    const auto kept = RunTrainer(**session);
    if (kept.ok()) return *kept ? 0 : kExitPromiseBroken;
    end = kept.status();
  } else if (session.ok()) {
    end = RunRollout(**session);
  }
  if (end.ok()) return 0;
  if (absl::IsAborted(end)) return kExitPeerEnded;
  absl::FPrintF(stderr, "demo: %s: %s\n", options.role, end.ToString());
  return kExitFailed;
}

int Main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto options = ParseOptions(argc, argv);
  if (!options.ok()) {
    absl::FPrintF(stderr, "demo: %s\n", std::string(options.status().message()));
    return 2;
  }
  if (options->help) {
    std::fputs(HelpText(), stdout);
    return 0;
  }
  if (!options->role.empty()) return RunRole(*options);
  const absl::Status end = Launch(*options);
  if (end.ok()) return 0;
  if (!end.message().empty()) absl::FPrintF(stderr, "demo: %s\n", std::string(end.message()));
  return 1;
}

}  // namespace
}  // namespace lossd::demo

int main(int argc, char** argv) { return lossd::demo::Main(argc, argv); }
