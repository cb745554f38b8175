#include "server/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "gtest/gtest.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

UniqueFd MakeMemfd(off_t bytes, int seals) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), bytes), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST(MemfdTest, SharesMemoryWithItsOwner) {
  const UniqueFd fd = MakeMemfd(8192, F_SEAL_SHRINK);
  auto theirs = MapMemfd(fd.get(), true);
  ASSERT_OK(theirs);
  auto ours = MapMemfd(fd.get(), false);
  ASSERT_OK(ours);
  EXPECT_EQ((*ours)->bytes(), 8192u);
  (*theirs)->base()[5] = std::byte{42};
  EXPECT_EQ((*ours)->base()[5], std::byte{42});
}

TEST(MemfdTest, RefusesWhatCouldKillTheServer) {
  const UniqueFd unsealed = MakeMemfd(4096, F_SEAL_GROW);
  EXPECT_EQ(Refusal(MapMemfd(unsealed.get(), true)), "INVALID_ARGUMENT memfd");
  const UniqueFd empty = MakeMemfd(0, F_SEAL_SHRINK);
  EXPECT_EQ(Refusal(MapMemfd(empty.get(), true)), "INVALID_ARGUMENT memfd");
  const UniqueFd sealed = MakeMemfd(4096, F_SEAL_SHRINK | F_SEAL_WRITE);
  EXPECT_EQ(Refusal(MapMemfd(sealed.get(), true)), "INVALID_ARGUMENT memfd");
  EXPECT_OK(MapMemfd(sealed.get(), false));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd read(ends[0]), write(ends[1]);
  EXPECT_EQ(Refusal(MapMemfd(read.get(), false)), "INVALID_ARGUMENT memfd");
  const UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(Refusal(MapMemfd(file.get(), false)), "INVALID_ARGUMENT memfd");
  EXPECT_EQ(Refusal(MapMemfd(-1, false)), "INVALID_ARGUMENT memfd");
}

TEST(MemfdTest, OwnMemoryIsZeroAndCannotBeResized) {
  auto own = CreateMemfd(10000);
  ASSERT_OK(own);
  EXPECT_EQ(own->mapping->base()[9999], std::byte{0});
  EXPECT_NE(::ftruncate(own->fd.get(), 1), 0);
  EXPECT_NE(::ftruncate(own->fd.get(), 20000), 0);
  EXPECT_OK(MapMemfd(own->fd.get(), true));
}

}  // namespace
}  // namespace lossd
