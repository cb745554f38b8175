#include "server/session.h"

#include <set>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/session_table.h"
#include "tests/testing/fake_backend.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

constexpr auto kSocket = Session::Kind::kSocket;
constexpr auto kLease = Session::Kind::kLease;

TEST(ByteQuotaTest, TakesWhatFitsAndNeverWraps) {
  ByteQuota quota(100);
  EXPECT_TRUE(quota.Take(60));
  EXPECT_FALSE(quota.Take(41));
  EXPECT_FALSE(quota.Take(~uint64_t{0}));
  EXPECT_TRUE(quota.Take(40));
  quota.Give(60);
  EXPECT_EQ(quota.used(), 40u);
}

TEST(SessionTableTest, FindsByTokenAndKindOnly) {
  SessionTable table(10, {}, [](const Session&) {});
  const auto session = *table.Open(kSocket, "a");
  EXPECT_EQ(session->token().size(), SessionTable::kTokenBytes);
  EXPECT_EQ(*table.Find(session->token(), kSocket), session);
  std::string wrong = session->token();
  wrong[15] ^= 1;
  const std::vector<std::string> refused = {wrong, "", session->token().substr(1),
                                            session->token() + "x"};
  for (const std::string& token : refused) {
    const auto found = table.Find(token, kSocket);
    ASSERT_EQ(found.status().code(), absl::StatusCode::kUnauthenticated);
    EXPECT_EQ(GetErrorDetail(found.status())->reason(), "STALE_SESSION");
  }
  EXPECT_EQ(table.Find(session->token(), kLease).status().code(),
            absl::StatusCode::kUnauthenticated);
}

TEST(SessionTableTest, EndsOnceAndForAll) {
  int ends = 0;
  SessionTable table(10, {}, [&](const Session& session) {
    EXPECT_TRUE(session.closed());
    ++ends;
  });
  const auto session = *table.Open(kSocket, "a");
  auto mapping = std::make_shared<Mapping>();
  std::weak_ptr<Mapping> watched = mapping;
  ASSERT_OK(session->regions().Add(0, std::move(mapping)));
  table.End(session->id());
  table.End(session->id());
  EXPECT_EQ(ends, 1);
  EXPECT_TRUE(watched.expired());
  EXPECT_FALSE(table.Find(session->token(), kSocket).ok());
  EXPECT_EQ(table.size(), 0u);
}

TEST(SessionTableTest, KeepsItsLimitAndRefusesWhileDraining) {
  SessionTable table(2, {}, [](const Session&) {});
  std::set<std::string> tokens;
  for (int i = 0; i < 2; ++i) tokens.insert((*table.Open(kSocket, "a"))->token());
  EXPECT_EQ(tokens.size(), 2u);
  EXPECT_EQ(GetErrorDetail(table.Open(kSocket, "a").status())->reason(), "MAX_SESSIONS");
  table.EndAll();
  table.Refuse();
  EXPECT_EQ(GetErrorDetail(table.Open(kSocket, "a").status())->reason(), "DRAINING");
}

TEST(SessionTableTest, LeasesRunOutUnlessACallRuns) {
  SessionTable table(10, {}, [](const Session&) {});
  const auto unused = *table.Open(kLease, "unused");
  const auto busy = *table.Open(kLease, "busy");
  const auto socket = *table.Open(kSocket, "socket");
  busy->calls().fetch_add(1);
  table.EndUnusedSince(absl::Now() - absl::Seconds(10));
  EXPECT_FALSE(unused->closed());
  table.EndUnusedSince(absl::Now() + absl::Seconds(10));
  EXPECT_TRUE(unused->closed());
  EXPECT_FALSE(busy->closed());
  EXPECT_FALSE(socket->closed());
}

TEST(SessionTest, EventsAreCountedAndFoundByIndex) {
  SessionLimits limits;
  limits.max_events = 2;
  Session session(1, kSocket, "token", "a", limits);
  FakeDevice device;
  const auto make = [&] {
    return std::vector<std::shared_ptr<DeviceEvent>>{*device.CreateEvent()};
  };
  EXPECT_EQ(Refusal(session.ReadyEvent(0)), "INVALID_ARGUMENT ready.event");
  ASSERT_OK(session.AddEvents(make(), make()));
  ASSERT_OK(session.AddEvents(make(), make()));
  EXPECT_OK(session.ReadyEvent(1));
  EXPECT_OK(session.DoneEvent(1));
  EXPECT_EQ(Refusal(session.DoneEvent(2)), "INVALID_ARGUMENT done_event");
  EXPECT_EQ(session.AddEvents(make(), make()).code(), absl::StatusCode::kResourceExhausted);
  session.Close();
  EXPECT_FALSE(session.ReadyEvent(0).ok());
}

TEST(SessionTableTest, OpensFindsAndEndsFromManyThreads) {
  std::atomic<int> ends{0};
  SessionTable table(1000, {}, [&](const Session&) { ++ends; });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        const auto session = *table.Open(kLease, "a");
        EXPECT_OK(table.Find(session->token(), kLease));
        table.EndUnusedSince(absl::UnixEpoch());
        table.End(session->id());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ends, 400);
}

}  // namespace
}  // namespace lossd
