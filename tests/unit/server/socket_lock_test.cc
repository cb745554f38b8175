#include "server/socket_lock.h"

#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

TEST(SocketLockTest, OneServerForAPath) {
  char name[] = "/tmp/lossd_test_XXXXXX";
  const std::string directory = ::mkdtemp(name);
  const std::string path = directory + "/s";
  {
    auto first = SocketLock::Take(path);
    ASSERT_OK(first);
    const auto second = SocketLock::Take(path);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(GetErrorDetail(second.status())->reason(), "ADDRESS_IN_USE");
    const SocketLock moved = *std::move(first);
    EXPECT_FALSE(SocketLock::Take(path).ok());
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  EXPECT_OK(SocketLock::Take(path));
  std::ofstream(path) << "a file";
  EXPECT_FALSE(SocketLock::Take(path).ok());
  EXPECT_FALSE(SocketLock::Take(directory + "/missing/s").ok());
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace lossd
