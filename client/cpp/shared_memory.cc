#include "client/cpp/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lossd::client {
namespace {

absl::Status Failed(absl::string_view doing, uint64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat(doing, " of ", bytes, " bytes of shared memory: ", strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("bytes: must be above 0, is 0");
  UniqueFd fd(memfd_create("lossd-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Failed("memfd_create", bytes);
  if (bytes > static_cast<uint64_t>(INT64_MAX) ||
      ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return Failed("ftruncate", bytes);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Failed("sealing", bytes);
  }
  return Map(std::move(fd), bytes);
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Map(UniqueFd fd, uint64_t bytes) {
  struct stat file;
  if (fstat(fd.get(), &file) != 0) return Failed("fstat", bytes);
  if (static_cast<uint64_t>(file.st_size) < bytes) {
    return absl::InternalError(
        absl::StrCat("the server's memory must have ", bytes, " bytes, has ", file.st_size));
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return Failed("mmap", bytes);
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(std::move(fd), static_cast<std::byte*>(data), bytes));
}

SharedMemory::SharedMemory(UniqueFd fd, std::byte* data, uint64_t bytes)
    : fd_(std::move(fd)), data_(data), bytes_(bytes) {}

SharedMemory::~SharedMemory() { munmap(data_, bytes_); }

}  // namespace lossd::client
