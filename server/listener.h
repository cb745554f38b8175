// The sockets that calls come by. We accept ourselves and hand connections on: a gRPC listener that runs out of descriptors once
// never accepts again.
#ifndef LOSSD_SERVER_LISTENER_H_
#define LOSSD_SERVER_LISTENER_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/log.h"
#include "server/options.h"
#include "server/unique_fd.h"

namespace lossd {

// A listening non-blocking Unix socket with file mode 0666 if `open_to_all`, else 0600. A file at the path is replaced: the caller holds
// the path's lock. Errors: INVALID_ARGUMENT (length of the path), UNAVAILABLE.
absl::StatusOr<UniqueFd> ListenUnix(const std::string& path, bool open_to_all);
// The same of TCP; *port is set to the one that the system chose if it is 0.
absl::StatusOr<UniqueFd> ListenTcp(const std::string& host, int* port);

// Whether accept failed for want of something that may be there again later.
bool IsExhausted(int error);

// Accepts on all addresses with one thread until destroyed, and removes the files of Unix sockets then.
class Listener {
 public:
  // Takes a connection: non-blocking, close-on-exec. Called on the listener's thread; must not wait.
  using Taker = std::function<void(UniqueFd connection)>;

  // Sets the port of addresses whose port is 0. `log` is borrowed. Errors: UNAVAILABLE naming the address.
  static absl::StatusOr<std::unique_ptr<Listener>> Start(std::vector<ListenAddress>& addresses,
                                                         bool open_to_all, const Logger& log,
                                                         Taker take);
  ~Listener();

 private:
  Listener(const Logger& log, Taker take) : log_(log), take_(std::move(take)) {}
  void Loop();
  void Accept(int socket);

  const Logger& log_;
  const Taker take_;
  std::vector<UniqueFd> sockets_;
  std::vector<std::string> paths_;
  UniqueFd stop_;                                   // eventfd
  absl::Time accept_again_ = absl::InfinitePast();  // of the thread: after something ran out
  std::thread thread_;
};

}  // namespace lossd

#endif  // LOSSD_SERVER_LISTENER_H_
