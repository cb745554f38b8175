#include "client/demo/session.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/demo/launcher.h"

namespace lossd::demo {

absl::StatusOr<std::unique_ptr<Session>> OpenSession(const Options& options) {
  // The second look covers a launcher that ended before the first call.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != options.parent) return absl::AbortedError("the launcher has ended");

  auto session = std::make_unique<Session>();
  session->options = options;
  session->channel = std::make_unique<Channel>(kChannelDescriptor);
  auto exchange = MapExchange(kExchangeDescriptor);
  if (!exchange.ok()) return exchange.status();
  session->exchange = *exchange;
  auto corpus = ReadCorpus(options.text);
  if (!corpus.ok()) return corpus.status();
  session->corpus = *std::move(corpus);
  auto client = Client::Connect(
      {.address = options.target, .name = absl::StrCat("lossd-demo-", options.role)});
  if (!client.ok()) return client.status();
  session->client = *std::move(client);

  const uint64_t hash = session->corpus.Hash();
  absl::Status sent = session->channel->Send({.kind = MessageKind::kHello, .number = hash});
  if (!sent.ok()) return sent;
  const auto hello = session->channel->Receive(MessageKind::kHello);
  if (!hello.ok()) return hello.status();
  if (hello->number != hash) {
    return absl::InternalError(absl::StrCat("text: must be the same in both processes, has hash ",
                                            hash, " here and ", hello->number, " there"));
  }
  return session;
}

}  // namespace lossd::demo
