// A client is killed at every stage of its life: the server lives, lets go of what it held, and nobody else notices.
#include <fcntl.h>
#include <sys/un.h>

#include <array>

#include "client/cpp/frames.h"
#include "client/cpp/unique_fd.h"
#include "tests/fault/processes.h"

namespace lossd {
namespace {

// The child tells its parent that the stage is reached, and waits for its end.
[[noreturn]] void Reached() {
  [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, "!", 1);
  while (true) pause();
}

int RawSessionSocket(const std::string& address) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::snprintf(name.sun_path, sizeof name.sun_path, "%s.session", address.c_str() + 5);
  if (connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0) _exit(9);
  return fd;
}

// The first `share` of an open frame's bytes.
void SendPart(int fd, double share) {
  v1::SessionRequest request;
  request.mutable_open()->set_client_name("half");
  request.mutable_open()->set_protocol(1);
  std::string bytes;
  if (!client::EncodeFrame(request, &bytes).ok()) _exit(9);
  const auto size = static_cast<size_t>(static_cast<double>(bytes.size()) * share);
  if (send(fd, bytes.data(), size, 0) != static_cast<ssize_t>(size)) _exit(9);
}

void RunLong(const std::string& address, int calls) {
  const auto client = Connect(address);
  const auto buffer = LongBuffer(*client);
  std::vector<std::thread> threads;
  for (int i = 0; i < calls; ++i) {
    threads.emplace_back([&] { client->Run(LongCall(*buffer)).IgnoreError(); });
  }
  absl::SleepFor(absl::Milliseconds(60));
  Reached();
}

void CallOnAndOn(const std::string& address) {
  const auto client = Connect(address);
  for (int i = 0;; ++i) {
    if (!client->Run(CrossEntropy()).ok()) _exit(9);
    if (i == 20) {
      [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, "!", 1);
    }
  }
}

// TCP, where bytes go over Upload: on a Unix socket they are in shared memory.
void UploadOnAndOn(const std::string& address) {
  const auto client = Connect(address);
  auto buffer = client->CreateBuffer(32 << 20);
  const std::string bytes(32 << 20, 'u');
  for (int i = 0; buffer.ok(); ++i) {
    if (!(*buffer)->Write(0, bytes).ok()) break;
    if (i == 0) {
      [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, "!", 1);
    }
  }
  _exit(9);
}

struct Stage {
  const char* name;
  bool tcp;
  void (*reach)(const std::string& address);
};

const Stage kStages[] = {
    {"connected", false,
     [](const std::string& address) {
       RawSessionSocket(address);
       Reached();
     }},
    {"half_header", false,
     [](const std::string& address) {
       SendPart(RawSessionSocket(address), 0.15);
       Reached();
     }},
    {"half_frame", false,
     [](const std::string& address) {
       SendPart(RawSessionSocket(address), 0.6);
       Reached();
     }},
    {"opened_and_not_read", false,
     [](const std::string& address) {
       SendPart(RawSessionSocket(address), 1);
       Reached();
     }},
    {"registered", false,
     [](const std::string& address) {
       const auto client = Connect(address);
       std::array<absl::StatusOr<std::unique_ptr<Buffer>>, 3> buffers = {
           client->CreateBuffer(8 << 20), client->CreateBuffer(4096),
           client->AllocateAtServer(1 << 20, v1::HOST)};
       for (const auto& buffer : buffers) {
         if (!buffer.ok()) _exit(9);
       }
       Reached();
     }},
    {"call_runs", false, [](const std::string& address) { RunLong(address, 1); }},
    {"calls_queued", false, [](const std::string& address) { RunLong(address, 6); }},
    {"streaming", false, CallOnAndOn},
    {"uploading", true, UploadOnAndOn},
};

class Child {
 public:
  Child(const std::string& stage, const std::string& address) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    output_ = client::UniqueFd(ends[0]);
    const client::UniqueFd input(ends[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::string words[] = {"/proc/self/exe", "--child", stage, address};
    char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(),
                         nullptr};
    EXPECT_EQ(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Child() { Kill(); }

  // False if it ended before.
  bool WaitUntilReached() {
    char mark = 0;
    return read(output_.get(), &mark, 1) == 1 && mark == '!';
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  client::UniqueFd output_;
  pid_t pid_ = 0;
};

class ClientKilledTest : public testing::TestWithParam<Stage> {};

TEST_P(ClientKilledTest, LeavesNothingAndNobodyNotices) {
  const SocketFolder folder;
  const std::string tcp = FreeTcpAddress();
  ServerAt server(folder.address(), {"--listen", tcp, "--lease", "500ms", "--threads", "1"});
  Neighbour neighbour(folder.address());
  Holdings baseline = HoldingsOf(server.pid());
  EXPECT_TRUE(Eventually(absl::Seconds(2), [&] {
    absl::SleepFor(absl::Milliseconds(100));
    const Holdings before = baseline;
    baseline = HoldingsOf(server.pid());
    return baseline == before;
  }));
  neighbour.Start();

  const std::string& address = GetParam().tcp ? tcp : folder.address();
  Child child(GetParam().name, address);
  ASSERT_TRUE(child.WaitUntilReached());
  // It holds something indeed: else its end would show nothing.
  EXPECT_TRUE(Eventually(absl::Seconds(1), [&] {
    const Holdings now = HoldingsOf(server.pid());
    return now.descriptors > baseline.descriptors && now.memfd_mappings >= baseline.memfd_mappings;
  }));
  const int before = neighbour.calls();
  child.Kill();
  // Long calls that run when their client dies are finished first.
  EXPECT_TRUE(Eventually(absl::Seconds(5), [&] { return neighbour.calls() > before + 3; }));
  ExpectReturnsTo(baseline, server.pid());
  neighbour.Stop();
  EXPECT_TRUE(Connect(address)->Run(CrossEntropy()).ok());
}

INSTANTIATE_TEST_SUITE_P(Stages, ClientKilledTest, testing::ValuesIn(kStages),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace

// Runs the child's part if the arguments say so; false otherwise.
bool RunAsChild(int argc, char** argv) {
  if (argc != 4 || std::string(argv[1]) != "--child") return false;
  for (const Stage& stage : kStages) {
    if (stage.name == std::string(argv[2])) stage.reach(argv[3]);
  }
  return true;
}

}  // namespace lossd

int main(int argc, char** argv) {
  if (lossd::RunAsChild(argc, argv)) return 9;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
