// Clients that send what no honest client sends: the server says no, in its own words, and goes on.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/un.h>

#include <random>

#include "client/cpp/session_socket.h"
#include "client/cpp/unique_fd.h"
#include "tests/fault/processes.h"
#include "tests/fault/raw_call.h"

namespace lossd {
namespace {

using client::SessionSocket;
using client::UniqueFd;

constexpr char kRun[] = "/lossd.v1.Losses/Run";

class HostileClientTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new SocketFolder;
    server_ = new ServerAt(folder_->address());
  }
  static void TearDownTestSuite() {
    delete server_;
    delete folder_;
  }
  void TearDown() override {
    const auto client = Connect(folder_->address());
    ASSERT_NE(client, nullptr);
    EXPECT_TRUE(client->Run(CrossEntropy()).ok());
  }

  static std::unique_ptr<SessionSocket> Socket() {
    auto socket = SessionSocket::Connect(folder_->address().substr(5) + ".session",
                                         absl::Now() + absl::Seconds(5));
    EXPECT_TRUE(socket.ok()) << socket.status();
    return *std::move(socket);
  }
  static absl::StatusOr<v1::SessionReply> Ask(SessionSocket& socket,
                                              const v1::SessionRequest& request, int fd = -1) {
    std::vector<UniqueFd> fds;
    std::vector<int> sent;
    if (fd >= 0) sent.push_back(fd);
    return socket.Call(request, sent, &fds, absl::Now() + absl::Seconds(5));
  }
  static absl::StatusOr<v1::SessionReply> Open(SessionSocket& socket,
                                               const std::string& name = "hostile") {
    v1::SessionRequest request;
    request.mutable_open()->set_client_name(name);
    request.mutable_open()->set_protocol(1);
    return Ask(socket, request);
  }

  static SocketFolder* folder_;
  static ServerAt* server_;
};
SocketFolder* HostileClientTest::folder_ = nullptr;
ServerAt* HostileClientTest::server_ = nullptr;

TEST_F(HostileClientTest, RandomBytesAreRefused) {
  const auto channel = RawChannel(folder_->address());
  std::mt19937_64 random(7);
  v1::RunRequest valid;
  *valid.add_ops()->mutable_linear_cross_entropy() = CrossEntropy();
  const std::string good = valid.SerializeAsString();
  int refused = 0;
  for (int i = 0; i < 600; ++i) {
    std::string bytes;
    if (i % 2 == 0) {
      bytes.resize(random() % 400);
      for (char& byte : bytes) byte = static_cast<char>(random());
    } else {
      // Valid but for a few bytes: these reach further.
      bytes = good;
      for (int flips = 0; flips < 3; ++flips) {
        bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
      }
      if (i % 4 == 1) bytes.resize(random() % bytes.size());
    }
    const grpc::Status status = RawCall(channel, kRun, bytes);
    refused += !status.ok();
    EXPECT_NE(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_GT(refused, 400);
}

TEST_F(HostileClientTest, RandomFramesEndTheirConnectionOnly) {
  const auto bystander = Connect(folder_->address());
  std::mt19937_64 random(8);
  for (int i = 0; i < 200; ++i) {
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    std::snprintf(name.sun_path, sizeof name.sun_path, "%s.session",
                  folder_->address().c_str() + 5);
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    std::string bytes(random() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (i % 2 == 0 && bytes.size() > 4) {  // a length that fits
      const auto body = static_cast<uint32_t>(bytes.size() - 4);
      std::memcpy(bytes.data(), &body, sizeof body);
    }
    send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  EXPECT_TRUE(bystander->Run(CrossEntropy()).ok());
}

TEST_F(HostileClientTest, AMessageThatIsTooLargeIsResourceExhausted) {
  const auto channel = RawChannel(folder_->address());
  const grpc::Status status = RawCall(channel, kRun, std::string(66 << 20, '\0'));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
}

TEST_F(HostileClientTest, LongTextsArriveAsTheErrorThatTheyAre) {
  const auto channel = RawChannel(folder_->address());
  std::string utf8;
  while (utf8.size() < 9000) utf8 += "\xc3\xa9";
  // As gRPC encodes it, every byte of the latter two takes three.
  for (const std::string& text : {std::string(9000, 'x'), utf8, std::string(9000, '\xff')}) {
    v1::RunRequest base;
    *base.add_ops()->mutable_linear_cross_entropy() = CrossEntropy();
    v1::RunRequest group = base, donate = base, id = base;
    group.mutable_ops(0)->mutable_linear_cross_entropy()->mutable_head()->set_group(text);
    donate.add_donate(text);
    id.set_request_id(text);
    const auto code_of = [&](const v1::RunRequest& request) {
      const grpc::Status status = RawCall(channel, kRun, request.SerializeAsString());
      EXPECT_FALSE(status.error_details().empty()) << status.error_message();
      return status.error_code();
    };
    EXPECT_EQ(code_of(id), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(code_of(group), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_EQ(code_of(donate), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_TRUE(absl::IsInvalidArgument(Open(*Socket(), text).status()));
    // The same over the stream.
    const auto client = Connect(folder_->address());
    EXPECT_TRUE(absl::IsInvalidArgument(client->Run(id, absl::Seconds(5)).status()));
    // A method that is not there, by a long name.
    const grpc::Status unknown = RawCall(channel, "/lossd.v1.Losses/" + std::string(6000, 'm'), "");
    EXPECT_EQ(unknown.error_code(), grpc::StatusCode::UNIMPLEMENTED) << unknown.error_message();
  }
}

TEST_F(HostileClientTest, MemoryThatCouldShrinkIsRefused) {
  const auto socket = Socket();
  ASSERT_TRUE(Open(*socket).ok());
  const auto make = [](off_t bytes, int seals) {
    UniqueFd fd(memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), bytes), 0);
    EXPECT_TRUE(seals == 0 || fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
    return fd;
  };
  v1::SessionRequest request;
  request.mutable_register_()->set_memfd(true);
  request.mutable_register_()->set_access(v1::READ_WRITE);
  request.mutable_register_()->set_bytes(8192);
  const auto register_fd = [&](uint64_t region, const UniqueFd& fd) {
    request.mutable_register_()->set_region(region);
    return Ask(*socket, request, fd.get()).status();
  };
  ExpectField(register_fd(1, make(8192, 0)), absl::StatusCode::kInvalidArgument, "memfd");
  ExpectField(register_fd(2, make(8192, F_SEAL_GROW)), absl::StatusCode::kInvalidArgument, "memfd");
  // Cut before it was sealed: smaller than it says.
  ExpectField(register_fd(3, make(4096, F_SEAL_SHRINK)), absl::StatusCode::kInvalidArgument,
              "bytes");
  ExpectField(register_fd(4, make(0, F_SEAL_SHRINK)), absl::StatusCode::kInvalidArgument, "memfd");
  ExpectField(register_fd(5, make(8192, F_SEAL_SHRINK | F_SEAL_WRITE)),
              absl::StatusCode::kInvalidArgument, "memfd");
  const UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  ExpectField(register_fd(6, file), absl::StatusCode::kInvalidArgument, "memfd");
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  ExpectField(register_fd(7, reader), absl::StatusCode::kInvalidArgument, "memfd");
  const UniqueFd good = make(8192, F_SEAL_SHRINK);
  EXPECT_TRUE(register_fd(8, good).ok());
  EXPECT_NE(ftruncate(good.get(), 0), 0);
}

TEST_F(HostileClientTest, AThousandSessionsLeaveNothing) {
  Open(*Socket()).IgnoreError();
  absl::SleepFor(absl::Milliseconds(300));
  const Holdings baseline = HoldingsOf(server_->pid());
  for (int i = 0; i < 1000; ++i) {
    const auto socket = Socket();
    ASSERT_TRUE(Open(*socket).ok()) << i;
    if (i % 10 != 0) continue;
    v1::SessionRequest request;
    request.mutable_allocate()->set_kind(v1::HOST);
    request.mutable_allocate()->set_bytes(1 << 16);
    EXPECT_TRUE(Ask(*socket, request).ok());
  }
  ExpectReturnsTo(baseline, server_->pid());
}

TEST_F(HostileClientTest, ReflectionListsTheServices) {
  // One ServerReflectionRequest with list_services (field 7); a stream of one message is a unary call on the wire.
  std::string reply;
  const grpc::Status status = RawCall(
      RawChannel(folder_->address()),
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3a\x01*", &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  for (const char* service :
       {"lossd.v1.Losses", "lossd.v1.Sessions", "lossd.v1.Buffers", "grpc.health.v1.Health"}) {
    EXPECT_NE(reply.find(service), std::string::npos) << service;
  }
}

}  // namespace
}  // namespace lossd
