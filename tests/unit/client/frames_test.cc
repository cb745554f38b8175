#include "client/cpp/frames.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "absl/time/clock.h"
#include "client/cpp/session_socket.h"
#include "client/cpp/shared_memory.h"
#include "lossd/v1/session.pb.h"

namespace lossd::client {
namespace {

class FramesTest : public testing::Test {
 protected:
  FramesTest() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    left_ = UniqueFd(ends[0]);
    right_ = UniqueFd(ends[1]);
  }

  static absl::Time Soon() { return absl::Now() + absl::Seconds(5); }

  UniqueFd left_;
  UniqueFd right_;
};

TEST(FrameTest, LengthIsLittleEndian) {
  v1::SessionRequest message;
  message.mutable_open()->set_client_name(std::string(300, 'a'));
  std::string bytes;
  ASSERT_TRUE(EncodeFrame(message, &bytes).ok());
  const size_t size = message.ByteSizeLong();
  ASSERT_EQ(bytes.size(), size + 4);
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]), size & 255);
  EXPECT_EQ(static_cast<unsigned char>(bytes[1]), size >> 8);
  EXPECT_EQ(bytes[2], 0);
  EXPECT_EQ(bytes.substr(4), message.SerializeAsString());
}

TEST_F(FramesTest, MessageAndDescriptorsArrive) {
  v1::SessionRequest sent;
  sent.mutable_register_()->set_memfd(true);
  sent.mutable_register_()->set_bytes(4096);
  auto memory = SharedMemory::Create(4096);
  ASSERT_TRUE(memory.ok()) << memory.status();
  (*memory)->data()[4095] = std::byte{7};
  const int fds[] = {(*memory)->fd()};
  ASSERT_TRUE(SendFrame(left_.get(), sent, fds, Soon()).ok());
  v1::SessionRequest second;
  second.mutable_list();
  ASSERT_TRUE(SendFrame(left_.get(), second, {}, Soon()).ok());

  v1::SessionRequest got;
  std::vector<UniqueFd> received;
  ASSERT_TRUE(ReceiveFrame(right_.get(), &got, &received, Soon()).ok());
  EXPECT_EQ(got.SerializeAsString(), sent.SerializeAsString());
  ASSERT_EQ(received.size(), 1u);
  auto mapped = SharedMemory::Map(std::move(received[0]), 4096);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ((*mapped)->data()[4095], std::byte{7});
  received.clear();
  ASSERT_TRUE(ReceiveFrame(right_.get(), &got, &received, Soon()).ok());
  EXPECT_TRUE(got.has_list());
  EXPECT_TRUE(received.empty());
}

TEST_F(FramesTest, AnEndIsUnavailable) {
  left_ = UniqueFd();
  v1::SessionReply reply;
  std::vector<UniqueFd> fds;
  EXPECT_TRUE(absl::IsUnavailable(ReceiveFrame(right_.get(), &reply, &fds, Soon())));
  EXPECT_TRUE(absl::IsUnavailable(SendFrame(right_.get(), reply, {}, Soon())));
}

TEST_F(FramesTest, AnEndInsideAFrameIsUnavailable) {
  ASSERT_EQ(send(left_.get(), "\x08\0\0\0abc", 7, 0), 7);
  left_ = UniqueFd();
  v1::SessionReply reply;
  std::vector<UniqueFd> fds;
  EXPECT_TRUE(absl::IsUnavailable(ReceiveFrame(right_.get(), &reply, &fds, Soon())));
}

TEST_F(FramesTest, SilenceIsOverAtTheDeadline) {
  v1::SessionReply reply;
  std::vector<UniqueFd> fds;
  const absl::Time start = absl::Now();
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      ReceiveFrame(right_.get(), &reply, &fds, start + absl::Milliseconds(50))));
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
}

TEST_F(FramesTest, AReaderThatDoesNotReadIsOverAtTheDeadline) {
  v1::SessionRequest message;
  message.mutable_open()->set_client_name(std::string(4 << 20, 'a'));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      SendFrame(left_.get(), message, {}, absl::Now() + absl::Milliseconds(50))));
}

TEST_F(FramesTest, WildLengthsAndBytesAreRefused) {
  v1::SessionReply reply;
  std::vector<UniqueFd> fds;
  ASSERT_EQ(send(left_.get(), "\xff\xff\xff\xff", 4, 0), 4);
  EXPECT_EQ(ReceiveFrame(right_.get(), &reply, &fds, Soon()).code(), absl::StatusCode::kInternal);
  ASSERT_EQ(send(left_.get(), "\x02\0\0\0\xff\xff", 6, 0), 6);
  EXPECT_EQ(ReceiveFrame(right_.get(), &reply, &fds, Soon()).code(), absl::StatusCode::kInternal);
  v1::SessionRequest large;
  large.mutable_open()->set_client_name(std::string(kMaxFrameBytes + 1, 'a'));
  EXPECT_TRUE(absl::IsInvalidArgument(SendFrame(left_.get(), large, {}, Soon())));
}

TEST(SharedMemoryTest, CannotShrinkOrGrow) {
  auto memory = SharedMemory::Create(10000);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_NE(ftruncate((*memory)->fd(), 1), 0);
  EXPECT_NE(ftruncate((*memory)->fd(), 20000), 0);
  EXPECT_EQ((*memory)->data()[9999], std::byte{0});
  EXPECT_TRUE(absl::IsInvalidArgument(SharedMemory::Create(0).status()));
}

TEST(SharedMemoryTest, SmallerMemoryThanPromisedIsRefused) {
  auto memory = SharedMemory::Create(100);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(SharedMemory::Map(UniqueFd(dup((*memory)->fd())), 5000).status().code(),
            absl::StatusCode::kInternal);
}

TEST(SessionSocketTest, NobodyThereIsUnavailable) {
  const auto socket =
      SessionSocket::Connect("/nowhere/lossd.sock.session", absl::Now() + absl::Seconds(1));
  EXPECT_TRUE(absl::IsUnavailable(socket.status())) << socket.status();
}

}  // namespace
}  // namespace lossd::client
