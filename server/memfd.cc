#include "server/memfd.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

absl::Status OutOfMemory(absl::string_view what) {
  return ReasonError(absl::StatusCode::kResourceExhausted, "HOST_MEMORY",
                     absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<std::shared_ptr<HostMapping>> Map(int fd, uint64_t bytes, bool writable) {
  void* base =
      ::mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    if (errno == EACCES || errno == EPERM) {
      return FieldError("memfd", writable ? "open and unsealed for writing" : "open for reading",
                        std::strerror(errno));
    }
    return OutOfMemory("mmap");
  }
  return std::make_shared<HostMapping>(static_cast<std::byte*>(base), bytes);
}

}  // namespace

HostMapping::~HostMapping() { ::munmap(base_, bytes_); }

absl::StatusOr<std::shared_ptr<HostMapping>> MapMemfd(int fd, bool writable) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return FieldError("memfd", "a memfd sealed with F_SEAL_SHRINK",
                      seals < 0 ? "no memfd" : "not sealed so");
  }
  struct stat info;
  struct statfs system;
  if (::fstat(fd, &info) != 0 || ::fstatfs(fd, &system) != 0) {
    return FieldError("memfd", "a memfd", std::strerror(errno));
  }
  // A huge page that is not there when it is touched is a SIGBUS too.
  if (system.f_type == HUGETLBFS_MAGIC)
    return FieldError("memfd", "of ordinary pages", "in huge pages");
  if (info.st_size <= 0) return FieldError("memfd", "of at least one byte", "empty");
  return Map(fd, static_cast<uint64_t>(info.st_size), writable);
}

absl::StatusOr<OwnMemfd> CreateMemfd(uint64_t bytes) {
  OwnMemfd own;
  own.fd.Reset(::memfd_create("lossd", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!own.fd) return OutOfMemory("memfd_create");
  if (::ftruncate(own.fd.get(), static_cast<off_t>(bytes)) != 0) return OutOfMemory("ftruncate");
  if (::fcntl(own.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return OutOfMemory("seal");
  }
  LOSSD_ASSIGN_OR_RETURN(own.mapping, Map(own.fd.get(), bytes, true));
  return own;
}

}  // namespace lossd
