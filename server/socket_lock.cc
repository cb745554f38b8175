#include "server/socket_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"

namespace lossd {

absl::StatusOr<SocketLock> SocketLock::Take(const std::string& path) {
  struct stat there;
  if (::lstat(path.c_str(), &there) == 0 && !S_ISSOCK(there.st_mode)) {
    return ReasonError(absl::StatusCode::kFailedPrecondition, "ADDRESS_IN_USE",
                       absl::StrCat(path, " exists and is no socket"));
  }
  const std::string file = absl::StrCat(path, ".lock");
  while (true) {
    UniqueFd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd && errno == ENOENT) {
      return absl::UnavailableError(
          absl::StrCat("the folder of ", path,
                       " does not exist: make it, or choose another --listen unix:/path.sock"));
    }
    if (!fd) return absl::UnavailableError(absl::StrCat(file, ": ", std::strerror(errno)));
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      return ReasonError(absl::StatusCode::kFailedPrecondition, "ADDRESS_IN_USE",
                         absl::StrCat("another server listens on ", path));
    }
    // The one before may have removed the file between our open and our lock; the lock then holds for nobody.
    struct stat locked, named;
    if (::fstat(fd.get(), &locked) == 0 && ::stat(file.c_str(), &named) == 0 &&
        locked.st_ino == named.st_ino && locked.st_dev == named.st_dev) {
      return SocketLock(file, std::move(fd));
    }
  }
}

SocketLock::~SocketLock() {
  if (fd_) ::unlink(file_.c_str());
}

}  // namespace lossd
