// The session socket: one thread, frames of session.proto, descriptors by SCM_RIGHTS; a client's end of file is the end of its session.
#ifndef LOSSD_SERVER_SESSION_SOCKET_H_
#define LOSSD_SERVER_SESSION_SOCKET_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "lossd/v1/session.pb.h"
#include "server/log.h"
#include "server/session_table.h"
#include "server/unique_fd.h"

namespace lossd {

// Opens sessions and serves their memory requests until destroyed. No client can block another: nothing waits for a socket.
class SessionSocket {
 public:
  static constexpr uint32_t kMaxFrameBytes = 64 << 10;
  // Connections that have not opened a session; more are turned away, and each has kOpenTimeout to do it.
  static constexpr int kMaxUnopened = 64;
  static constexpr absl::Duration kOpenTimeout = absl::Seconds(10);

  struct Options {
    std::string path;
    std::vector<uint32_t> allow_uids;
    // Called on the socket's thread when a request finds that the device has failed for good.
    std::function<void(const absl::Status&)> on_device_lost;
    bool open_to_all = false;  // file mode 0666 and not 0600: who may come is decided by allow_uids
  };

  // Borrows all but `options`. A file at the path is replaced: the caller holds the path's lock.
  // Errors: UNAVAILABLE if the path cannot be bound.
  static absl::StatusOr<std::unique_ptr<SessionSocket>> Start(Options options,
                                                              SessionTable& sessions,
                                                              Device& device,
                                                              const v1::ServerInfo& info,
                                                              const Logger& log);
  // Ends the sessions of all connections and removes the socket's file.
  ~SessionSocket();

 private:
  struct Connection;

  SessionSocket(Options options, SessionTable& sessions, Device& device, const v1::ServerInfo& info,
                const Logger& log);
  absl::Status Bind();
  void Loop();
  void Accept();
  // False: the connection is over.
  bool Read(Connection& connection);
  bool Write(Connection& connection);
  bool HandleFrame(Connection& connection);
  absl::StatusOr<v1::SessionReply> Handle(Connection& connection, const v1::SessionRequest& request,
                                          UniqueFd fd, UniqueFd* reply_fd);
  absl::StatusOr<v1::OpenSessionReply> Open(Connection& connection,
                                            const v1::OpenSessionRequest& request);
  void Queue(Connection& connection, const v1::SessionReply& reply, UniqueFd fd);
  int Unopened() const;

  const Options options_;
  SessionTable& sessions_;
  Device& device_;
  const v1::ServerInfo info_;
  const Logger& log_;
  UniqueFd listener_;
  UniqueFd stop_;  // eventfd
  uint64_t pid_namespace_ = 0;
  std::list<std::unique_ptr<Connection>> connections_;  // of the thread
  absl::Time accept_again_ = absl::InfinitePast();      // after the process ran out of descriptors
  std::thread thread_;
};

}  // namespace lossd

#endif  // LOSSD_SERVER_SESSION_SOCKET_H_
