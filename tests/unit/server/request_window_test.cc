#include "server/request_window.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

using Turn = RequestWindow::Turn;

v1::RunReply ReplyWithPlan(const std::string& plan) {
  v1::RunReply reply;
  reply.add_ops()->set_plan(plan);
  return reply;
}

TEST(RequestWindowTest, ARepeatGetsTheFirstResult) {
  RequestWindow window;
  PastResult past;
  ASSERT_EQ(window.Begin("a", nullptr, &past), Turn::kFirst);
  const v1::RunReply reply = ReplyWithPlan("p");
  window.End("a", true, absl::OkStatus(), &reply);
  ASSERT_EQ(window.Begin("a", nullptr, &past), Turn::kKnown);
  EXPECT_EQ(past.reply->ops(0).plan(), "p");
  ASSERT_EQ(window.Begin("b", nullptr, &past), Turn::kFirst);
  window.End("b", true, absl::InvalidArgumentError("bad"), nullptr);
  ASSERT_EQ(window.Begin("b", nullptr, &past), Turn::kKnown);
  EXPECT_EQ(past.status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(RequestWindowTest, AConcurrentRepeatWaits) {
  RequestWindow window;
  PastResult past;
  ASSERT_EQ(window.Begin("a", nullptr, &past), Turn::kFirst);
  std::string got;
  ASSERT_EQ(window.Begin(
                "a", [&](const PastResult* result) { got = result->reply->ops(0).plan(); }, &past),
            Turn::kWaiting);
  const v1::RunReply reply = ReplyWithPlan("p");
  window.End("a", true, absl::OkStatus(), &reply);
  EXPECT_EQ(got, "p");
}

TEST(RequestWindowTest, ACallThatDidNotRunLeavesItsIdToTheNext) {
  RequestWindow window;
  PastResult past;
  ASSERT_EQ(window.Begin("a", nullptr, &past), Turn::kFirst);
  int promoted = 0, answered = 0;
  const auto waiter = [&](const PastResult* result) {
    ++(result == nullptr ? promoted : answered);
  };
  ASSERT_EQ(window.Begin("a", waiter, &past), Turn::kWaiting);
  ASSERT_EQ(window.Begin("a", waiter, &past), Turn::kWaiting);
  window.End("a", false, absl::CancelledError(""), nullptr);
  EXPECT_EQ(promoted, 1);
  EXPECT_EQ(answered, 0);
  const v1::RunReply reply = ReplyWithPlan("p");
  window.End("a", true, absl::OkStatus(), &reply);
  EXPECT_EQ(answered, 1);
  ASSERT_EQ(window.Begin("b", nullptr, &past), Turn::kFirst);
  window.End("b", false, absl::CancelledError(""), nullptr);
  EXPECT_EQ(window.Begin("b", nullptr, &past), Turn::kFirst);
}

TEST(RequestWindowTest, RemembersTheLastIds) {
  RequestWindow window;
  PastResult past;
  const v1::RunReply reply = ReplyWithPlan("p");
  for (size_t i = 0; i <= RequestWindow::kIds; ++i) {
    ASSERT_EQ(window.Begin(absl::StrCat(i), nullptr, &past), Turn::kFirst);
    window.End(absl::StrCat(i), true, absl::OkStatus(), &reply);
  }
  EXPECT_EQ(window.Begin("1", nullptr, &past), Turn::kKnown);
  EXPECT_EQ(window.Begin("0", nullptr, &past), Turn::kFirst);
}

TEST(RequestWindowTest, ALargeReplyIsForgottenButNotRunAgain) {
  RequestWindow window;
  PastResult past;
  const v1::RunReply large = ReplyWithPlan(std::string(RequestWindow::kReplyBytes / 2 + 1000, 'x'));
  for (const char* id : {"a", "b"}) {
    ASSERT_EQ(window.Begin(id, nullptr, &past), Turn::kFirst);
    window.End(id, true, absl::OkStatus(), &large);
  }
  ASSERT_EQ(window.Begin("a", nullptr, &past), Turn::kKnown);
  EXPECT_EQ(past.status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(GetErrorDetail(past.status)->reason(), "REPLY_FORGOTTEN");
  ASSERT_EQ(window.Begin("b", nullptr, &past), Turn::kKnown);
  EXPECT_OK(past.status);
}

}  // namespace
}  // namespace lossd
