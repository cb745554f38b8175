#include "server/stop_signal.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>

namespace lossd {
namespace {

// The kernel sends it when the *thread* that started this process ends, which says nothing of the process: it only makes us look.
constexpr int kParentSignal = SIGUSR1;

}  // namespace

StopSignal::StopSignal(bool parent_death, pid_t parent)
    : parent_death_(parent_death), parent_(parent != 0 ? parent : ::getppid()) {
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (parent_death_) sigaddset(&signals, kParentSignal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signals_.Reset(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (parent_death_) ::prctl(PR_SET_PDEATHSIG, kParentSignal);
}

bool StopSignal::IsParentGone() const { return parent_death_ && ::getppid() != parent_; }

const char* StopSignal::Wait(absl::Duration timeout) {
  if (IsParentGone()) return "parent_death";
  pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  ::poll(fds, 2, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  if (fds[1].revents != 0) return "wake";
  signalfd_siginfo info;
  if (fds[0].revents != 0 && ::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGTERM) return "SIGTERM";
    if (info.ssi_signo == SIGINT) return "SIGINT";
  }
  return IsParentGone() ? "parent_death" : nullptr;
}

void StopSignal::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
}

}  // namespace lossd
