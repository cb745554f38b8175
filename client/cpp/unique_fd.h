// Owner of a file descriptor.
#ifndef LOSSD_CLIENT_CPP_UNIQUE_FD_H_
#define LOSSD_CLIENT_CPP_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace lossd::client {

// Closes its descriptor when destroyed. Thread-compatible.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace lossd::client

#endif  // LOSSD_CLIENT_CPP_UNIQUE_FD_H_
