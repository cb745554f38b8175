#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/cpp/client.h"
#include "client/cpp/unique_fd.h"

namespace lossd {
namespace {

constexpr absl::Duration kStopTimeout = absl::Seconds(5);  // between the polite end and SIGKILL
constexpr off_t kLastWordsBytes = 2000;

bool IsExecutable(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

std::string ExitText(int status) {
  if (WIFSIGNALED(status)) return absl::StrCat("was killed by signal ", WTERMSIG(status));
  return absl::StrCat("ended with exit code ", WEXITSTATUS(status));
}

class PrivateServerImpl final : public PrivateServer {
 public:
  ~PrivateServerImpl() override {
    Stop();
    for (const char* name : {"/lossd.sock", "/lossd.sock.session", "/lossd.sock.lock"}) {
      if (!folder_.empty()) unlink(absl::StrCat(folder_, name).c_str());
    }
    if (!folder_.empty()) rmdir(folder_.c_str());
  }

  const std::string& address() const override { return address_; }
  int pid() const override { return pid_; }

  absl::Status MakeFolder() {
    // Mode 0700: nobody else reaches the sockets in it.
    std::string folder = absl::StrCat(P_tmpdir, "/lossd-XXXXXX");
    if (mkdtemp(folder.data()) == nullptr) {
      return absl::InternalError(absl::StrCat(folder, ": ", strerror(errno)));
    }
    folder_ = folder;
    log_ = client::UniqueFd(memfd_create("lossd-log", MFD_CLOEXEC));
    if (!log_.valid()) return absl::InternalError(absl::StrCat("memfd_create: ", strerror(errno)));
    address_ = absl::StrCat("unix:", folder_, "/lossd.sock");
    return absl::OkStatus();
  }

  absl::Status Spawn(const std::string& binary, const std::vector<std::string>& flags);
  absl::Status WaitUntilReady(absl::Duration timeout);

 private:
  // Whether the process has ended; it is reaped.
  bool Reap() {
    if (pid_ <= 0 || reaped_) return true;
    const pid_t ended = waitpid(pid_, &exit_status_, WNOHANG);
    // ECHILD: somebody else in this process has reaped it.
    reaped_ = ended == pid_ || (ended < 0 && errno == ECHILD);
    return reaped_;
  }

  void Stop() {
    if (Reap()) return;
    kill(pid_, SIGTERM);
    const absl::Time deadline = absl::Now() + kStopTimeout;
    while (!Reap()) {
      if (absl::Now() > deadline) kill(pid_, SIGKILL);
      absl::SleepFor(absl::Milliseconds(2));
    }
  }

  std::string LastWords() const {
    const off_t end = lseek(log_.get(), 0, SEEK_END);
    const off_t start = std::max<off_t>(0, end - kLastWordsBytes);
    std::string words(std::max<off_t>(0, end - start), '\0');
    words.resize(std::max<ssize_t>(0, pread(log_.get(), words.data(), words.size(), start)));
    return words.empty() ? "it said nothing" : absl::StrCat("its last words:\n", words);
  }

  std::string folder_;
  std::string address_;
  client::UniqueFd log_;  // what the server says; a file without a name leaves nothing behind
  pid_t pid_ = 0;
  bool reaped_ = false;
  int exit_status_ = 0;
};

absl::Status PrivateServerImpl::Spawn(const std::string& binary,
                                      const std::vector<std::string>& flags) {
  std::vector<std::string> words = {binary, "--listen", address_,
                                    absl::StrCat("--parent-death=", getpid())};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, log_.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  // A group of its own: the terminal's Ctrl-C is the client's business.
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, binary.c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return absl::InternalError(absl::StrCat(binary, ": ", strerror(error)));
  pid_ = pid;
  return absl::OkStatus();
}

absl::Status PrivateServerImpl::WaitUntilReady(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  absl::Status last = absl::UnavailableError("not tried");
  while (absl::Now() < deadline) {
    if (Reap()) {
      return absl::InternalError(
          absl::StrCat("lossd ", ExitText(exit_status_), " before it served; ", LastWords()));
    }
    ClientOptions options;
    options.address = address_;
    options.name = "private-server";
    options.connect_timeout = std::min(deadline - absl::Now(), absl::Seconds(5));
    options.call_timeout = options.connect_timeout;
    auto client = Client::Connect(options);
    last = client.status();
    if (last.ok()) last = (*client)->ListOps().status();
    if (last.ok()) return last;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return absl::InternalError(absl::StrCat("lossd did not serve within ",
                                          absl::FormatDuration(timeout), " (", last.message(),
                                          "); ", LastWords()));
}

}  // namespace

absl::StatusOr<std::string> PrivateServer::FindBinary(const std::string& given) {
  if (!given.empty()) {
    if (IsExecutable(given)) return given;
    return absl::NotFoundError(absl::StrCat(given, ": no such program"));
  }
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self);
  if (length > 0) {
    const std::string own(self, length);
    const std::string beside = absl::StrCat(own.substr(0, own.rfind('/')), "/lossd");
    if (IsExecutable(beside)) return beside;
  }
  const char* path = getenv("PATH");
  for (absl::string_view folder :
       absl::StrSplit(path == nullptr ? "" : path, ':', absl::SkipEmpty())) {
    const std::string candidate = absl::StrCat(folder, "/lossd");
    if (IsExecutable(candidate)) return candidate;
  }
  return absl::NotFoundError("lossd is neither beside this program nor on PATH: name its path");
}

absl::StatusOr<std::unique_ptr<PrivateServer>> PrivateServer::Start(const Options& options) {
  const auto binary = FindBinary(options.binary);
  if (!binary.ok()) return binary.status();
  auto server = std::make_unique<PrivateServerImpl>();
  absl::Status status = server->MakeFolder();
  if (status.ok()) status = server->Spawn(*binary, options.flags);
  if (status.ok()) status = server->WaitUntilReady(options.start_timeout);
  if (!status.ok()) return status;
  return server;
}

}  // namespace lossd
