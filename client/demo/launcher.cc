#include "client/demo/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/demo/exchange.h"

extern char** environ;

namespace lossd::demo {
namespace {

// Closes at the end of a scope.
struct Descriptor {
  int value = -1;
  Descriptor() = default;
  explicit Descriptor(int value) : value(value) {}
  Descriptor(Descriptor&& other) noexcept : value(std::exchange(other.value, -1)) {}
  ~Descriptor() {
    if (value >= 0) close(value);
  }
};

// By number: glibc has pidfd_open only since 2.36.
int PidDescriptor(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

// A child of ours; killed and reaped with the object if it still runs.
class Child {
 public:
  Child(std::string name, pid_t pid)
      : name_(std::move(name)), pid_(pid), ended_(PidDescriptor(pid)) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (reaped_) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  // Readable once it has ended; -1 after Reap.
  int ended() const { return reaped_ ? -1 : ended_.value; }
  bool reaped() const { return reaped_; }

  // After its end. OK for exit status 0.
  absl::Status Reap() {
    int status = 0;
    waitpid(pid_, &status, 0);
    reaped_ = true;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
    if (WIFEXITED(status) && WEXITSTATUS(status) == kExitPeerEnded) {
      return absl::AbortedError(absl::StrCat("the ", name_, " ended since the other had ended"));
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == kExitPromiseBroken) {
      return absl::FailedPreconditionError("");
    }
    if (WIFEXITED(status)) {
      return absl::InternalError(
          absl::StrCat("the ", name_, " failed with exit status ", WEXITSTATUS(status)));
    }
    return absl::InternalError(absl::StrCat("the ", name_, " (process ", pid_,
                                            ") was killed by signal ", WTERMSIG(status), " (",
                                            strsignal(WTERMSIG(status)), ")"));
  }

 private:
  const std::string name_;
  const pid_t pid_;
  const Descriptor ended_;
  bool reaped_ = false;
};

absl::StatusOr<std::unique_ptr<Child>> Spawn(const Options& options, int channel, int exchange) {
  std::vector<std::string> arguments = FormatOptions(options);
  std::string program = "lossd_demo";
  std::vector<char*> argv = {program.data()};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, channel, kChannelDescriptor);
  posix_spawn_file_actions_adddup2(&actions, exchange, kExchangeDescriptor);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("start of the ", options.role));
  return std::make_unique<Child>(options.role, pid);
}

// A descriptor above the numbers that children use, so that one dup2 cannot hit the source of the next.
absl::StatusOr<Descriptor> MoveUp(Descriptor from) {
  Descriptor moved(fcntl(from.value, F_DUPFD_CLOEXEC, 10));
  if (moved.value < 0) return absl::ErrnoToStatus(errno, "fcntl F_DUPFD_CLOEXEC");
  return moved;
}

// Trainer and rollout. No end of their channel stays open here: each must see the other's end.
absl::Status SpawnBoth(Options options, std::vector<std::unique_ptr<Child>>* children) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "socketpair");
  }
  Descriptor raw_ends[2] = {Descriptor(ends[0]), Descriptor(ends[1])};
  const auto memory = CreateExchange();
  if (!memory.ok()) return memory.status();
  const auto exchange = MoveUp(Descriptor(*memory));
  if (!exchange.ok()) return exchange.status();
  const char* const roles[2] = {"trainer", "rollout"};
  for (int i = 0; i < 2; ++i) {
    const auto channel = MoveUp(std::move(raw_ends[i]));
    if (!channel.ok()) return channel.status();
    options.role = roles[i];
    auto child = Spawn(options, channel->value, exchange->value);
    if (!child.ok()) return child.status();
    children->push_back(*std::move(child));
  }
  return absl::OkStatus();
}

// Until both have ended well, or the first failure.
absl::Status Wait(std::vector<std::unique_ptr<Child>>& children, int server_ended) {
  absl::Status aborted;  // kept until the other's cause is known
  for (;;) {
    std::vector<pollfd> waits = {{server_ended, POLLIN, 0}};
    bool any = false;
    for (const auto& child : children) {
      waits.push_back({child->ended(), POLLIN, 0});
      any |= !child->reaped();
    }
    if (!any) return aborted;
    // A child that ended on account of its peer's end: the peer's own end is a matter of moments.
    const int ready = poll(waits.data(), waits.size(), aborted.ok() ? -1 : 5000);
    if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "poll");
    if (ready == 0) return aborted;
    for (size_t i = 0; i < children.size(); ++i) {
      if (ready < 0 || (waits[i + 1].revents & POLLIN) == 0) continue;
      const absl::Status end = children[i]->Reap();
      if (absl::IsAborted(end)) {
        aborted = end;
      } else if (!end.ok()) {
        return end;
      }
    }
    if (ready > 0 && (waits[0].revents & POLLIN) != 0) {
      return absl::UnavailableError("the server has ended");
    }
  }
}

}  // namespace

absl::Status Launch(const Options& options) {
  Options child_options = options;
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  child_options.began_ns = now.tv_sec * 1'000'000'000 + now.tv_nsec;
  child_options.parent = getpid();

  std::unique_ptr<PrivateServer> server;
  Descriptor server_ended;
  if (options.target.empty()) {
    auto started = PrivateServer::Start({.binary = options.server});
    if (!started.ok()) return started.status();
    server = *std::move(started);
    child_options.target = server->address();
    server_ended.value = PidDescriptor(server->pid());
  }

  std::vector<std::unique_ptr<Child>> children;
  if (absl::Status spawned = SpawnBoth(child_options, &children); !spawned.ok()) return spawned;
  return Wait(children, server_ended.value);
}

}  // namespace lossd::demo
