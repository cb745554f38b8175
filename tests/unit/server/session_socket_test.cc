#include "server/session_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/frame.h"
#include "server/rich_status.h"
#include "tests/testing/fake_backend.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

UniqueFd SealedMemfd(off_t bytes) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), bytes), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  return fd;
}

// A client by hand.
class Client {
 public:
  explicit Client(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof(address.sun_path), "%s", path.c_str());
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }

  void SendRaw(absl::string_view bytes) {
    ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void Send(const v1::SessionRequest& request, UniqueFd fd = UniqueFd()) {
    FrameWriter writer;
    writer.Add(request.SerializeAsString(), std::move(fd));
    EXPECT_TRUE(writer.Flush(fd_.get()));
  }
  // The next reply; an error "closed" at the end of the connection.
  v1::SessionReply Receive(std::vector<UniqueFd>* fds = nullptr) {
    v1::SessionReply reply;
    while (true) {
      pollfd ready = {fd_.get(), POLLIN, 0};
      if (::poll(&ready, 1, 5000) <= 0) break;
      const auto progress = reader_.Read(fd_.get());
      if (progress == FrameReader::Progress::kMore || progress == FrameReader::Progress::kBlocked)
        continue;
      if (progress != FrameReader::Progress::kFrame) break;
      if (fds != nullptr) *fds = reader_.TakeFds();
      EXPECT_TRUE(reply.ParseFromString(reader_.TakeFrame()));
      return reply;
    }
    reply.mutable_error()->set_message("closed");
    return reply;
  }
  v1::OpenSessionReply Open() {
    v1::SessionRequest request;
    request.mutable_open()->set_client_name("test");
    Send(request);
    return Receive().open();
  }
  void Hang() { ::shutdown(fd_.get(), SHUT_RDWR); }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  FrameReader reader_{1 << 20};
};

class SessionSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/lossd_test_XXXXXX";
    directory_ = ::mkdtemp(name);
    Start({::geteuid()});
  }
  void TearDown() override {
    socket_ = nullptr;
    EXPECT_EQ(sessions_.size(), 0u);
    std::filesystem::remove_all(directory_);
  }
  void Start(std::vector<uint32_t> uids) {
    socket_ = nullptr;
    SessionSocket::Options options;
    options.path = path();
    options.allow_uids = std::move(uids);
    v1::ServerInfo info;
    info.set_backend("fake");
    auto socket = SessionSocket::Start(std::move(options), sessions_, device_, info, log_);
    ASSERT_OK(socket);
    socket_ = *std::move(socket);
  }
  std::string path() const { return directory_ + "/s.session"; }
  bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 2000; ++i) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }

  std::string directory_;
  Logger log_{LogLevel::kError};
  FakeDevice device_;
  SessionTable sessions_{100, SessionLimits(), [](const Session&) {}};
  std::unique_ptr<SessionSocket> socket_;
};

TEST_F(SessionSocketTest, OpensASessionThatEndsWithTheConnection) {
  Client client(path());
  const v1::OpenSessionReply open = client.Open();
  EXPECT_EQ(open.token().size(), 16u);
  EXPECT_EQ(open.server().backend(), "fake");
  const auto session = sessions_.Find(open.token(), Session::Kind::kSocket);
  ASSERT_OK(session);
  client.Hang();
  EXPECT_TRUE(Eventually([&] { return (*session)->closed() && sessions_.size() == 0; }));
}

TEST_F(SessionSocketTest, RegistersSharedMemoryAndAllocates) {
  Client client(path());
  const auto session = *sessions_.Find(client.Open().token(), Session::Kind::kSocket);
  v1::SessionRequest request;
  request.mutable_register_()->set_memfd(true);
  request.mutable_register_()->set_access(v1::READ_WRITE);
  request.mutable_register_()->set_region(3);
  client.Send(request, SealedMemfd(4096));
  EXPECT_EQ(client.Receive().register_().region().bytes(), 4096u);

  v1::SessionRequest allocate;
  allocate.mutable_allocate()->set_bytes(100);
  allocate.mutable_allocate()->set_kind(v1::HOST);
  client.Send(allocate);
  std::vector<UniqueFd> fds;
  const v1::SessionReply allocated = client.Receive(&fds);
  EXPECT_EQ(allocated.allocate().region().bytes(), 100u);
  ASSERT_EQ(fds.size(), 1u);
  EXPECT_EQ(::lseek(fds[0].get(), 0, SEEK_END), 100);
  EXPECT_EQ(session->memory_quota()->used(), 100u);

  v1::SessionRequest unregister;
  unregister.mutable_unregister()->set_region(allocated.allocate().region().region());
  client.Send(unregister);
  EXPECT_TRUE(client.Receive().has_unregister());
  EXPECT_EQ(session->memory_quota()->used(), 0u);
  v1::SessionRequest list;
  list.mutable_list();
  client.Send(list);
  const v1::SessionReply listed = client.Receive();
  ASSERT_EQ(listed.list().regions_size(), 1);
  EXPECT_EQ(listed.list().regions(0).region(), 3u);
}

TEST_F(SessionSocketTest, RefusesHandlesThatAreWrong) {
  Client client(path());
  client.Open();
  const auto register_with = [&](const std::string& handle) {
    v1::SessionRequest request;
    request.mutable_register_()->set_cuda_ipc(handle);
    request.mutable_register_()->set_access(v1::READ_WRITE);
    client.Send(request);
    return client.Receive();
  };
  for (size_t bytes : {size_t{0}, size_t{63}, size_t{65}, size_t{66}, size_t{1000}}) {
    const v1::SessionReply reply = register_with(std::string(bytes, 'h'));
    EXPECT_EQ(Refusal(FromRichStatus(reply.error())), "INVALID_ARGUMENT cuda_ipc") << bytes;
  }
  EXPECT_EQ(Refusal(FromRichStatus(register_with(std::string(64, 'x')).error())),
            "INVALID_ARGUMENT cuda_ipc");
  EXPECT_EQ(register_with(std::string(64, 'h')).register_().region().bytes(), 4096u);
  // Larger than the driver says: the mapping that was opened for the check is closed again.
  v1::SessionRequest request;
  request.mutable_register_()->set_cuda_ipc(std::string(64, 'h'));
  request.mutable_register_()->set_access(v1::READ_WRITE);
  request.mutable_register_()->set_bytes(4097);
  client.Send(request);
  EXPECT_EQ(Refusal(FromRichStatus(client.Receive().error())), "INVALID_ARGUMENT bytes");
  EXPECT_EQ(device_.open_handles(), 1);
  request.mutable_register_()->clear_bytes();
  request.mutable_register_()->set_device_uuid(std::string(16, 'v'));
  client.Send(request);
  EXPECT_EQ(Refusal(FromRichStatus(client.Receive().error())), "FAILED_PRECONDITION device_uuid");
  client.Hang();
  EXPECT_TRUE(Eventually([&] { return device_.open_handles() == 0; }));
}

TEST_F(SessionSocketTest, ADescriptorBelongsToItsFrameAndStrayOnesAreClosed) {
  const int before = OpenDescriptors();
  {
    Client client(path());
    client.Open();
    v1::SessionRequest list, memfd;
    list.mutable_list();
    memfd.mutable_register_()->set_memfd(true);
    memfd.mutable_register_()->set_access(v1::READ_ONLY);
    // Two frames at once: the descriptor is the second one's.
    client.Send(list);
    client.Send(memfd, SealedMemfd(4096));
    EXPECT_TRUE(client.Receive().has_list());
    EXPECT_TRUE(client.Receive().has_register_());
    client.Send(list, SealedMemfd(4096));
    EXPECT_EQ(Refusal(FromRichStatus(client.Receive().error())), "INVALID_ARGUMENT fds");
    client.Send(memfd);
    EXPECT_EQ(Refusal(FromRichStatus(client.Receive().error())), "INVALID_ARGUMENT fds");
    client.Send(list);
    EXPECT_TRUE(client.Receive().has_list());
  }
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() == before; }));
}

TEST_F(SessionSocketTest, AHalfFrameKeepsNobodyWaiting) {
  Client slow(path());
  slow.SendRaw(absl::string_view("\x10\x00", 2));
  Client half(path());
  half.SendRaw(absl::string_view("\x10\x00\x00\x00half", 8));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Client(path()).Open().token().size(), 16u);
  // A client that does not read its replies.
  Client deaf(path());
  deaf.Open();
  v1::SessionRequest list;
  list.mutable_list();
  const std::string body = list.SerializeAsString();
  std::string frame = {static_cast<char>(body.size()), 0, 0, 0};
  frame += body;
  ::fcntl(deaf.fd(), F_SETFL, O_NONBLOCK);
  for (int i = 0; i < 100000; ++i) {
    if (::send(deaf.fd(), frame.data(), frame.size(), MSG_NOSIGNAL) < 0) break;
  }
  EXPECT_EQ(Client(path()).Open().token().size(), 16u);
}

TEST_F(SessionSocketTest, OversizeFramesAndEarlyRequestsEndTheConnection) {
  Client large(path());
  large.SendRaw(absl::string_view("\x01\x00\x01\x00", 4));  // 64 KiB + 1
  EXPECT_EQ(Refusal(FromRichStatus(large.Receive().error())), "INVALID_ARGUMENT frame");
  EXPECT_EQ(large.Receive().error().message(), "closed");
  Client early(path());
  v1::SessionRequest list;
  list.mutable_list();
  early.Send(list);
  EXPECT_EQ(early.Receive().error().code(), static_cast<int>(absl::StatusCode::kUnauthenticated));
  EXPECT_EQ(early.Receive().error().message(), "closed");
}

TEST_F(SessionSocketTest, OtherUsersAreRefused) {
  Start({::geteuid() + 1});
  Client client(path());
  EXPECT_EQ(client.Receive().error().code(), static_cast<int>(absl::StatusCode::kPermissionDenied));
  EXPECT_EQ(client.Receive().error().message(), "closed");
}

TEST_F(SessionSocketTest, IdleConnectionsWithoutASessionAreLimited) {
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < SessionSocket::kMaxUnopened; ++i)
    idle.push_back(std::make_unique<Client>(path()));
  Client refused(path());
  EXPECT_EQ(GetErrorDetail(FromRichStatus(refused.Receive().error()))->reason(), "MAX_CONNECTIONS");
  idle.clear();
  EXPECT_TRUE(Eventually([&] { return Client(path()).Open().token().size() == 16; }));
}

TEST_F(SessionSocketTest, SurvivesRandomFrames) {
  std::mt19937 random(7);
  const int before = OpenDescriptors();
  for (int round = 0; round < 200; ++round) {
    Client client(path());
    if (round % 2 == 0) client.Open();
    for (int i = 0; i < 8; ++i) {
      v1::SessionRequest request;
      request.mutable_register_()->set_memfd(true);
      request.mutable_register_()->set_access(v1::READ_WRITE);
      request.mutable_register_()->set_bytes(random());
      std::string body = request.SerializeAsString();
      for (char& byte : body) {
        if (random() % 4 == 0) byte = static_cast<char>(random());
      }
      const size_t claimed = random() % 16 == 0 ? random() : body.size();
      std::string frame;
      for (int shift = 0; shift < 32; shift += 8)
        frame.push_back(static_cast<char>(claimed >> shift));
      frame += body;
      client.SendRaw(frame);
      if (random() % 4 == 0) {
        FrameWriter writer;
        writer.Add(body, SealedMemfd(random() % 2 == 0 ? 0 : 4096));
        writer.Flush(client.fd());
      }
    }
  }
  Client client(path());
  EXPECT_EQ(client.Open().token().size(), 16u);
  client.Hang();
  EXPECT_TRUE(Eventually([&] { return sessions_.size() == 0 && OpenDescriptors() <= before + 1; }));
}

}  // namespace
}  // namespace lossd
