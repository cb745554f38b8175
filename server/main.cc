// The executable: flags, signals, exit code.
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "server/log.h"
#include "server/options.h"
#include "server/server.h"
#include "server/stop_signal.h"

namespace {

enum ExitCode { kStopped = 0, kStoppedEarly = 1, kNotStarted = 2, kDeviceLost = 3 };

// Every registered memfd and every connection is a descriptor.
void RaiseDescriptorLimit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int Serve(const lossd::Options& options) {
  const lossd::Logger log(options.log_level);
  // Before any thread starts: all of them inherit the signal mask.
  lossd::StopSignal stop(options.parent_death, options.parent_pid);
  RaiseDescriptorLimit();
  auto server = lossd::Server::Start(options, log, [&stop] { stop.Wake(); });
  if (!server.ok()) {
    log.Error("start_failed", {{"status", server.status()}});
    return kNotStarted;
  }
  for (const lossd::ListenAddress& address : (*server)->addresses()) {
    log.Info("listening", {{"address", address.ToString()}});
  }
  const char* reason = nullptr;
  while ((reason = stop.Wait(absl::Seconds(1))) == nullptr && !(*server)->lost()) (*server)->Tick();
  if ((*server)->lost()) {
    (*server)->Abandon();
    // Destructors of what lives on a lost device may hang.
    ::_exit(kDeviceLost);
  }
  log.Info("draining", {{"reason", reason}});
  if (!(*server)->Drain(options.drain_timeout)) {
    (*server)->Abandon();
    ::_exit(kStoppedEarly);
  }
  log.Info("stopped");
  return kStopped;
}

int Tune(const lossd::Options& options) {
  const absl::Status status = lossd::Tune(options.tune_shapes, options.tune_rounds, options.tune);
  if (status.ok()) return kStopped;
  std::fprintf(stderr, "lossd: --tune: %s\n", std::string(status.message()).c_str());
  return kNotStarted;
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = lossd::ParseOptions(std::vector<std::string>(argv + 1, argv + argc));
  if (!options.ok()) {
    std::fprintf(stderr, "lossd: %s\n", std::string(options.status().message()).c_str());
    return kNotStarted;
  }
  if (options->help) {
    std::fputs(lossd::HelpText().c_str(), stdout);
    return kStopped;
  }
  if (options->version) {
    std::printf("lossd %s\n", LOSSD_VERSION);
    return kStopped;
  }
  if (!options->tune.empty()) return Tune(*options);
  // One epoll set for all threads, gRPC's default, lets any thread take another's event and wake it: several times the latency of a call.
  // Before gRPC starts, and only if the user has not chosen.
  ::setenv("GRPC_POLL_STRATEGY", "poll", 0);
  return Serve(*options);
}
