#include "server/options.h"

#include "gtest/gtest.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

TEST(OptionsTest, BytesHaveSuffixes) {
  EXPECT_EQ(*ParseBytes("512M"), uint64_t{512} << 20);
  EXPECT_EQ(*ParseBytes("2.2e9"), 2200000000u);
  EXPECT_EQ(*ParseBytes("1k"), 1024u);
  for (const char* bad : {"", "M", "-1", "12X", "1e30", "nan"})
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
}

TEST(OptionsTest, OnlyLoopbackIsListenedOn) {
  EXPECT_EQ(ParseListenAddress("localhost:80")->ToString(), "127.0.0.1:80");
  EXPECT_EQ(ParseListenAddress("[::1]:80")->ToString(), "[::1]:80");
  EXPECT_EQ(ParseListenAddress("unix:/a.sock")->ToString(), "unix:/a.sock");
  EXPECT_EQ(ParseListenAddress("/a.sock")->ToString(), "unix:/a.sock");
  EXPECT_OK(ParseListenAddress("/" + std::string(98, 'x')));
  for (const std::string& bad :
       {std::string("0.0.0.0:80"), std::string("10.0.0.1:80"), std::string("example.org:80"),
        std::string("127.0.0.1"), std::string("127.0.0.1:99999"), std::string("unix:"),
        "/" + std::string(99, 'x')}) {
    EXPECT_FALSE(ParseListenAddress(bad).ok()) << bad;
  }
}

TEST(OptionsTest, FlagsTakeTheirValueEitherWay) {
  const auto options =
      ParseOptions({"--listen", "unix:/a.sock", "--listen=127.0.0.1:0", "--workspace=1G", "--lease",
                    "5s", "--parent-death", "--allow-uid", "7", "--log-level=debug"});
  ASSERT_OK(options);
  EXPECT_EQ(options->listen.size(), 2u);
  EXPECT_EQ(options->workspace_bytes, uint64_t{1} << 30);
  EXPECT_EQ(options->lease, absl::Seconds(5));
  EXPECT_TRUE(options->parent_death);
  EXPECT_TRUE(options->AllowsOtherUsers());
  EXPECT_EQ(ParseOptions({"--parent-death=12"})->parent_pid, 12);
  EXPECT_EQ(ParseOptions({})->listen[0].ToString(), "unix:/run/lossd/lossd.sock");
}

TEST(OptionsTest, NamesTheFlagThatIsWrong) {
  EXPECT_EQ(Refusal(ParseOptions({"--nonsense"})), "INVALID_ARGUMENT --nonsense");
  EXPECT_EQ(Refusal(ParseOptions({"--workspace"})), "INVALID_ARGUMENT --workspace");
  EXPECT_EQ(Refusal(ParseOptions({"--workspace", "10"})), "INVALID_ARGUMENT --workspace");
  EXPECT_EQ(Refusal(ParseOptions({"--queue-depth=0"})), "INVALID_ARGUMENT --queue-depth");
  EXPECT_EQ(Refusal(ParseOptions({"--help=yes"})), "INVALID_ARGUMENT --help");
  EXPECT_EQ(Refusal(ParseOptions({"--listen", "0.0.0.0:1"})), "INVALID_ARGUMENT --listen");
  EXPECT_EQ(Refusal(ParseOptions({"--listen=/a", "--listen=/b"})), "INVALID_ARGUMENT --listen");
  EXPECT_EQ(Refusal(ParseOptions({"stray"})), "INVALID_ARGUMENT stray");
}

TEST(OptionsTest, TuningHasShapes) {
  const auto none = ParseOptions({"--tune", "t"});
  ASSERT_OK(none);
  ASSERT_EQ(none->tune_shapes.size(), 1u);
  EXPECT_EQ(none->tune_shapes[0].vocab, 128256);
  EXPECT_EQ(none->tune_rounds, 7);
  const auto two = ParseOptions(
      {"--tune=t", "--tune-shape", "8x4x100:f16", "--tune-shape=1x2x3:f32", "--tune-rounds", "3"});
  ASSERT_OK(two);
  ASSERT_EQ(two->tune_shapes.size(), 2u);
  EXPECT_EQ(two->tune_shapes[0].rows, 8);
  EXPECT_EQ(two->tune_shapes[0].hidden, 4);
  EXPECT_EQ(two->tune_shapes[0].vocab, 100);
  EXPECT_EQ(two->tune_shapes[0].model, DType::kF16);
  EXPECT_EQ(two->tune_rounds, 3);
  for (const char* bad : {"", "8x4:bf16", "8x4x100", "8x4x100:i32", "0x4x100:bf16", "8x4x1e3:bf16",
                          "8x4x100x2:bf16", "8x4x99999999999:bf16", "8x4x100:bf16:f32"}) {
    EXPECT_FALSE(ParseOptions({"--tune=t", "--tune-shape", bad}).ok()) << bad;
  }
  // Nothing is ignored.
  EXPECT_FALSE(ParseOptions({"--tune-shape", "8x4x100:bf16"}).ok());
  EXPECT_FALSE(ParseOptions({"--tune-rounds", "3"}).ok());
  EXPECT_FALSE(ParseOptions({"--tune="}).ok());
  EXPECT_FALSE(ParseOptions({"--algorithms="}).ok());
  EXPECT_EQ(ParseOptions({"--algorithms", "t"})->algorithms, "t");
}

}  // namespace
}  // namespace lossd
