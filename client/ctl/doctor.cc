// lossctl doctor: what this machine can do, transport by transport, and what to do about what it cannot.
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cpp/frames.h"
#include "client/cpp/shared_memory.h"
#include "client/cpp/unique_fd.h"
#include "client/ctl/commands.h"
#include "client/ctl/cuda_probe.h"
#include "client/ctl/target.h"
#include "lossd/v1/session.pb.h"

namespace lossd::ctl {
namespace {

using client::UniqueFd;

struct Finding {
  enum Level { kOk, kLimited, kMissing };
  Level level = kOk;
  std::string text;
  std::string advice;
};

Finding Ok(const std::string& text) { return {Finding::kOk, text, ""}; }
Finding Limited(const std::string& text, const std::string& advice) {
  return {Finding::kLimited, text, advice};
}
Finding Missing(const std::string& text, const std::string& advice) {
  return {Finding::kMissing, text, advice};
}

// A bound socket in a private folder, and a descriptor passed over a pair.
Finding CheckUnixSocket() {
  std::string folder = absl::StrCat(P_tmpdir, "/lossctl-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    return Missing(absl::StrCat("no folder in ", P_tmpdir, ": ", strerror(errno)),
                   absl::StrCat("make ", P_tmpdir,
                                " writable, or name a socket elsewhere with lossd --listen"));
  }
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = absl::StrCat(folder, "/s");
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool bound = socket.valid() &&
                     bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  const int error = errno;
  unlink(path.c_str());
  rmdir(folder.c_str());
  if (!bound) {
    return Missing(absl::StrCat("bind in ", P_tmpdir, ": ", strerror(error)),
                   "use a local file system for the socket (not NFS or a Windows share)");
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return Missing(absl::StrCat("socketpair: ", strerror(errno)),
                   "allow AF_UNIX in the sandbox (seccomp)");
  }
  const UniqueFd left(ends[0]);
  const UniqueFd right(ends[1]);
  std::vector<UniqueFd> received;
  v1::SessionRequest message;
  const int passed[] = {left.get()};
  const absl::Time deadline = absl::Now() + absl::Seconds(2);
  absl::Status status = client::SendFrame(left.get(), message, passed, deadline);
  if (status.ok()) status = client::ReceiveFrame(right.get(), &message, &received, deadline);
  if (!status.ok() || received.size() != 1) {
    return Missing("descriptors cannot be passed (SCM_RIGHTS)",
                   "allow sendmsg with descriptors in the sandbox");
  }
  return Ok("sockets bind and pass descriptors");
}

Finding CheckTcp() {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (!socket.valid() ||
      bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return Limited(absl::StrCat("127.0.0.1 cannot be bound: ", strerror(errno)),
                   "only Unix sockets will work; bring the loopback interface up for TCP");
  }
  return Ok("127.0.0.1 can be bound: inline tensors and server-held buffers");
}

Finding CheckMemfd() {
  auto memory = client::SharedMemory::Create(1 << 20);
  if (!memory.ok()) {
    return Missing(std::string(memory.status().message()),
                   "a kernel of 3.17 or later and a sandbox that allows memfd_create and "
                   "F_ADD_SEALS are needed; "
                   "without, tensors travel inside the messages");
  }
  if (ftruncate((*memory)->fd(), 1) == 0) {
    return Missing("a sealed memfd could be shrunk",
                   "this kernel does not honour seals: do not share memory on it");
  }
  return Ok("sealed memory can be shared");
}

Finding CheckShm() {
  struct statvfs shm;
  if (statvfs("/dev/shm", &shm) != 0) {
    return Limited(
        "/dev/shm is missing",
        "lossd does not need it (it uses memfd), but torch and NCCL do: mount a tmpfs there");
  }
  const uint64_t free_mib = (static_cast<uint64_t>(shm.f_bavail) * shm.f_frsize) >> 20;
  const std::string text = absl::StrCat("/dev/shm has ", free_mib, " MiB free");
  if (free_mib < 256) {
    return Limited(text,
                   "lossd does not need it (it uses memfd), but torch and NCCL do: docker "
                   "--shm-size, or an emptyDir of "
                   "medium Memory in Kubernetes");
  }
  return Ok(text);
}

Finding CheckDevice(const CudaProbe& probe) {
  if (!probe.driver_error.empty()) {
    return Limited(absl::StrCat("no CUDA driver: ", probe.driver_error),
                   "without a GPU lossd computes on the CPU; with one install the NVIDIA driver, "
                   "in a container "
                   "use --gpus or the device plugin");
  }
  const std::string driver = absl::StrFormat("driver for CUDA %d.%d", probe.driver_version / 1000,
                                             probe.driver_version % 1000 / 10);
  if (probe.devices.empty()) {
    return Limited(absl::StrCat(driver, ", no device"),
                   "check CUDA_VISIBLE_DEVICES and the container's devices");
  }
  std::string text =
      absl::StrCat(driver, ", ", probe.devices.size(), " device(s): ", probe.devices[0].name);
  if (probe.driver_version < 13000) {
    return Limited(text, "lossd is built with CUDA 13: a driver of 580 or later is needed");
  }
  return Ok(text);
}

Finding CheckIpc(const CudaProbe& probe) {
  if (probe.devices.empty()) return Limited("not without a device", "see above");
  for (const CudaDevice& device : probe.devices) {
    if (!device.ipc) {
      return Limited(absl::StrCat(device.name, ": no IPC handle: ", device.ipc_error),
                     "CUDA IPC needs Linux on bare metal or a full GPU passed through; let the "
                     "server allocate, or send "
                     "tensors inline");
    }
  }
  return Ok(
      "handles of allocations can be made; torch must not use expandable_segments for what it "
      "shares");
}

Finding CheckMps(const CudaProbe& probe) {
  const char* named = getenv("CUDA_MPS_PIPE_DIRECTORY");  // NVIDIA's own variable
  const std::string folder = named != nullptr ? named : "/tmp/nvidia-mps";
  const bool running = access(absl::StrCat(folder, "/control").c_str(), F_OK) == 0;
  if (running) {
    return Ok(absl::StrCat(
        "a control daemon is at ", folder,
        ": hand-overs take about 50 us; a fault of one process can take the others down"));
  }
  if (probe.devices.empty()) return Ok("not running, not needed without a device");
  return Limited("not running: hand-overs between processes take about 0.3 ms",
                 "full isolation, the default; for processes that trust each other start "
                 "nvidia-cuda-mps-control -d "
                 "before them");
}

std::string ReadLink(const char* path) {
  char target[128];
  const ssize_t length = readlink(path, target, sizeof target);
  return length < 0 ? "" : std::string(target, length);
}

// The process ids of this process, from the outermost namespace that /proc shows inwards.
int NamespaceDepth() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    absl::string_view ids = line;
    if (!absl::ConsumePrefix(&ids, "NSpid:")) continue;
    const std::vector<std::string> parts =
        absl::StrSplit(ids, absl::ByAnyChar("\t "), absl::SkipEmpty());
    return static_cast<int>(parts.size());
  }
  return 0;
}

Finding CheckPidNamespace() {
  const std::string own = ReadLink("/proc/self/ns/pid");
  if (own.empty())
    return Limited("/proc/self/ns/pid cannot be read", "mount /proc in the container");
  const std::string text = absl::StrCat(own, ", process ", getpid());
  if (NamespaceDepth() > 1 || getpid() < 100) {
    return Limited(absl::StrCat(text, ", probably a container's"),
                   "CUDA refuses IPC between processes of equal id in different namespaces: share "
                   "the pid namespace "
                   "(shareProcessNamespace: true, docker --pid), or see that the ids differ");
  }
  return Ok(text);
}

Finding CheckServer() {
  const auto target = OpenTarget(Arguments());
  if (!target.ok()) {
    return Missing(std::string(target.status().message()),
                   "build lossd, and keep it beside lossctl or on PATH");
  }
  const v1::ServerInfo info = target->client->server_info();
  return Ok(absl::StrCat("a private server starts: ", info.backend(), ", ", info.device()));
}

// Whether the finding is one that lossd cannot do without.
bool Show(const char* name, const Finding& finding) {
  static constexpr const char* kWords[] = {"ok", "limited", "missing"};
  std::cout << absl::StrFormat("%-8s %-14s %s\n", kWords[finding.level], name, finding.text);
  if (!finding.advice.empty()) std::cout << "                        -> " << finding.advice << "\n";
  std::cout.flush();
  return finding.level == Finding::kMissing;
}

int RunDoctor(const Arguments&) {
  bool missing = false;
  missing |= Show("unix socket", CheckUnixSocket());
  missing |= Show("loopback TCP", CheckTcp());
  missing |= Show("memfd", CheckMemfd());
  missing |= Show("/dev/shm", CheckShm());
  const CudaProbe probe = ProbeCuda();
  missing |= Show("CUDA device", CheckDevice(probe));
  missing |= Show("CUDA IPC", CheckIpc(probe));
  missing |= Show("MPS", CheckMps(probe));
  missing |= Show("pid namespace", CheckPidNamespace());
  missing |= Show("server", CheckServer());
  return missing ? 1 : 0;
}

}  // namespace

Command DoctorCommand() {
  return {{"doctor",
           "",
           0,
           0,
           "Says what this machine can do, transport by transport, and what to do about what it "
           "cannot. The exit code is 1 if\n"
           "  something is missing that lossd cannot do without.",
           {}},
          RunDoctor};
}

}  // namespace lossd::ctl
