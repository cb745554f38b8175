#include "server/options.h"

#include <arpa/inet.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"

namespace lossd {
namespace {

constexpr char kDefaultAddress[] = "unix:/run/lossd/lossd.sock";
constexpr char kDefaultShape[] = "8192x4096x128256:bf16";
constexpr int kTuneRounds = 7;
constexpr char kSessionSuffix[] = ".session";

bool IsLoopback(const std::string& host) {
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::StatusOr<int> ParseInt(absl::string_view text, int min, int max) {
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < min || value > max) {
    return absl::InvalidArgumentError(absl::StrCat("an integer from ", min, " to ", max));
  }
  return value;
}

absl::StatusOr<absl::Duration> ParseDuration(absl::string_view text, absl::Duration max) {
  absl::Duration value;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds) && std::isfinite(seconds)) {
    value = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &value)) {
    return absl::InvalidArgumentError("a duration such as 30s, 500ms or 50us");
  }
  if (value < absl::ZeroDuration() || value > max) {
    return absl::InvalidArgumentError(absl::StrCat("between 0 and ", absl::FormatDuration(max)));
  }
  return value;
}

// The message of a setter's error says what the value must be; ParseOptions adds the flag and what it is.
using Setter = absl::Status (*)(absl::string_view value, Options* options);

template <class T, class U>
absl::Status Set(absl::StatusOr<T> value, U* to) {
  if (value.ok()) *to = *std::move(value);
  return value.status();
}

struct Flag {
  const char* name;
  const char* argument;  // null: none; in brackets: optional
  const char* default_value;
  const char* help;
  Setter set;
};

const Flag kFlags[] = {
    {"listen", "ADDRESS", kDefaultAddress,
     "unix:/path.sock, or host:port on a loopback address. May be given more than once.",
     [](absl::string_view v, Options* o) {
       LOSSD_ASSIGN_OR_RETURN(ListenAddress address, ParseListenAddress(v));
       o->listen.push_back(std::move(address));
       return absl::OkStatus();
     }},
    {"backend", "NAME", "auto",
     "cpu, cuda, or auto: cuda where it was compiled and a GPU answers, else cpu.",
     [](absl::string_view v, Options* o) {
       if (v != "cpu" && v != "cuda" && v != "auto") {
         return absl::InvalidArgumentError("cpu, cuda or auto");
       }
       o->backend = std::string(v);
       return absl::OkStatus();
     }},
    {"workspace", "BYTES", "512M on cpu, 2.2e9 on cuda",
     "Scratch memory of the device, allocated at start.",
     [](absl::string_view v, Options* o) {
       LOSSD_RETURN_IF_ERROR(Set(ParseBytes(v), &o->workspace_bytes));
       if (o->workspace_bytes < (uint64_t{1} << 20))
         return absl::InvalidArgumentError("at least 1M");
       return absl::OkStatus();
     }},
    {"threads", "COUNT", "all cores", "Threads of the cpu backend.",
     [](absl::string_view v, Options* o) { return Set(ParseInt(v, 1, 1024), &o->threads); }},
    {"algorithms", "FILE", "the build's alone",
     "The library's algorithms by a table that lossctl tune has written on this GPU. Of the cuda "
     "backend.",
     [](absl::string_view v, Options* o) {
       if (v.empty()) return absl::InvalidArgumentError("a file");
       o->algorithms = std::string(v);
       return absl::OkStatus();
     }},
    {"tune", "FILE", "off",
     "Do not serve: time the library's algorithms for --tune-shape, and write FILE for "
     "--algorithms. What lossctl tune does.",
     [](absl::string_view v, Options* o) {
       if (v.empty()) return absl::InvalidArgumentError("a file");
       o->tune = std::string(v);
       return absl::OkStatus();
     }},
    {"tune-shape", "ROWSxHIDDENxVOCAB:DTYPE", kDefaultShape,
     "Shape of a head. May be given more than once.",
     [](absl::string_view v, Options* o) {
       LOSSD_ASSIGN_OR_RETURN(const TunedShape shape, ParseTunedShape(v));
       o->tune_shapes.push_back(shape);
       return absl::OkStatus();
     }},
    {"tune-rounds", "COUNT", "7", "How often each algorithm is timed; the median counts.",
     [](absl::string_view v, Options* o) { return Set(ParseInt(v, 1, 1000), &o->tune_rounds); }},
    {"inline-limit", "BYTES", "64M",
     "Largest tensor inside a message, and the sum of those in one direction.",
     [](absl::string_view v, Options* o) {
       LOSSD_RETURN_IF_ERROR(Set(ParseBytes(v), &o->inline_limit_bytes));
       if (o->inline_limit_bytes > (uint64_t{1} << 30))
         return absl::InvalidArgumentError("at most 1G");
       return absl::OkStatus();
     }},
    {"queue-depth", "CALLS", "64", "Calls of one session that may wait or run.",
     [](absl::string_view v, Options* o) { return Set(ParseInt(v, 1, 65536), &o->queue_depth); }},
    {"max-sessions", "COUNT", "1024", "Open sessions.",
     [](absl::string_view v, Options* o) { return Set(ParseInt(v, 1, 65536), &o->max_sessions); }},
    {"max-regions", "COUNT", "256", "Regions of one session.",
     [](absl::string_view v, Options* o) { return Set(ParseInt(v, 1, 1 << 20), &o->max_regions); }},
    {"session-memory", "BYTES", "16G", "Memory that the server allocates for one session.",
     [](absl::string_view v, Options* o) { return Set(ParseBytes(v), &o->session_memory_bytes); }},
    {"session-inline", "BYTES", "256M",
     "Bytes of tensors inside messages of one session that are in flight.",
     [](absl::string_view v, Options* o) { return Set(ParseBytes(v), &o->session_inline_bytes); }},
    {"allow-uid", "UID", "own uid and root",
     "User who may open sessions on the Unix socket. May be given more than once. Where another "
     "user is named the sockets are open to "
     "all, and every call needs a session.",
     [](absl::string_view v, Options* o) {
       uint32_t uid = 0;
       if (!absl::SimpleAtoi(v, &uid)) return absl::InvalidArgumentError("a numeric user id");
       o->allow_uids.push_back(uid);
       return absl::OkStatus();
     }},
    {"lease", "DURATION", "60s", "A TCP session that is not used for so long ends.",
     [](absl::string_view v, Options* o) {
       LOSSD_RETURN_IF_ERROR(Set(ParseDuration(v, absl::Hours(24)), &o->lease));
       if (o->lease < absl::Milliseconds(100)) return absl::InvalidArgumentError("at least 100ms");
       return absl::OkStatus();
     }},
    {"ready-timeout", "DURATION", "30s",
     "How long a call with completion DONE waits for its ready event before it is refused. (With "
     "ENQUEUED the device itself waits, for as long as it takes.)",
     [](absl::string_view v, Options* o) {
       return Set(ParseDuration(v, absl::Hours(1)), &o->ready_timeout);
     }},
    {"stream-timeout", "DURATION", "30s",
     "An upload or download whose client moves nothing for so long is ended.",
     [](absl::string_view v, Options* o) {
       LOSSD_RETURN_IF_ERROR(Set(ParseDuration(v, absl::Hours(1)), &o->stream_timeout));
       if (o->stream_timeout < absl::Milliseconds(100))
         return absl::InvalidArgumentError("at least 100ms");
       return absl::OkStatus();
     }},
    {"drain-timeout", "DURATION", "10s", "How long SIGTERM waits for calls that were accepted.",
     [](absl::string_view v, Options* o) {
       return Set(ParseDuration(v, absl::Hours(1)), &o->drain_timeout);
     }},
    {"spin", "DURATION", "1ms on a GPU, else 0",
     "How long the threads of the call path look for the next call before they sleep; costs two "
     "cores while it lasts.",
     [](absl::string_view v, Options* o) {
       return Set(ParseDuration(v, absl::Seconds(1)), &o->spin.emplace());
     }},
    {"parent-death", "[PID]", "off",
     "Stop when the process that started this one is gone. With its id also if it was gone before "
     "the start.",
     [](absl::string_view v, Options* o) {
       o->parent_death = true;
       if (!v.empty() && (!absl::SimpleAtoi(v, &o->parent_pid) || o->parent_pid <= 0)) {
         return absl::InvalidArgumentError("a process id, or nothing");
       }
       return absl::OkStatus();
     }},
    {"log-level", "LEVEL", "info", "debug, info, warning or error.",
     [](absl::string_view v, Options* o) {
       static constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
       for (int i = 0; i < 4; ++i) {
         if (v == kNames[i]) {
           o->log_level = static_cast<LogLevel>(i);
           return absl::OkStatus();
         }
       }
       return absl::InvalidArgumentError("debug, info, warning or error");
     }},
    {"version", nullptr, "off", "Print the version.",
     [](absl::string_view, Options* o) {
       o->version = true;
       return absl::OkStatus();
     }},
    {"help", nullptr, "off", "Print this text.",
     [](absl::string_view, Options* o) {
       o->help = true;
       return absl::OkStatus();
     }},
};

}  // namespace

std::string ListenAddress::ToString() const {
  if (is_unix) return absl::StrCat("unix:", path);
  if (absl::StrContains(host, ':')) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text) {
  ListenAddress address;
  if (absl::ConsumePrefix(&text, "unix:") || absl::StartsWith(text, "/")) {
    address.is_unix = true;
    address.path = std::string(text);
    const size_t limit = sizeof(sockaddr_un::sun_path) - 1 - (sizeof(kSessionSuffix) - 1);
    if (address.path.empty() || address.path.size() > limit) {
      return absl::InvalidArgumentError(absl::StrCat("a socket path of 1 to ", limit, " bytes"));
    }
    return address;
  }
  constexpr char kMustBe[] =
      "unix:/path.sock, or host:port on a loopback address (there is no TLS yet)";
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return absl::InvalidArgumentError(kMustBe);
  absl::string_view host = text.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) {
    return absl::InvalidArgumentError(kMustBe);
  }
  address.host = host == "localhost" ? "127.0.0.1" : std::string(host);
  const absl::StatusOr<int> port = ParseInt(text.substr(colon + 1), 0, 65535);
  if (!port.ok() || !IsLoopback(address.host)) return absl::InvalidArgumentError(kMustBe);
  address.port = *port;
  return address;
}

absl::StatusOr<TunedShape> ParseTunedShape(absl::string_view text) {
  constexpr int64_t kMaxExtent = int64_t{1} << 24;
  const absl::Status wrong =
      absl::InvalidArgumentError("ROWSxHIDDENxVOCAB:DTYPE of f32, bf16 or f16");
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  const std::vector<absl::string_view> extents = absl::StrSplit(parts[0], 'x');
  if (parts.size() != 2 || extents.size() != 3) return wrong;
  TunedShape shape;
  int64_t* const to[] = {&shape.rows, &shape.hidden, &shape.vocab};
  for (int i = 0; i < 3; ++i) {
    if (!absl::SimpleAtoi(extents[i], to[i]) || *to[i] < 1 || *to[i] > kMaxExtent) return wrong;
  }
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (parts[1] != NameOf(dtype)) continue;
    shape.model = dtype;
    return shape;
  }
  return wrong;
}

absl::StatusOr<uint64_t> ParseBytes(absl::string_view text) {
  absl::string_view digits = text;
  int shift = 0;
  if (!digits.empty()) {
    static constexpr char kSuffixes[] = "KMGT";
    const char last = absl::ascii_toupper(digits.back());
    if (const char* found = std::find(kSuffixes, kSuffixes + 4, last); found != kSuffixes + 4) {
      shift = 10 * static_cast<int>(found - kSuffixes + 1);
      digits.remove_suffix(1);
    }
  }
  double value = 0;
  if (!absl::SimpleAtod(digits, &value) || !(value >= 0) || std::ldexp(value, shift) > 0x1p62) {
    return absl::InvalidArgumentError("a number of bytes such as 512M or 2.2e9");
  }
  return static_cast<uint64_t>(std::ldexp(value, shift));
}

bool Options::AllowsOtherUsers() const {
  return std::any_of(allow_uids.begin(), allow_uids.end(),
                     [](uint32_t uid) { return uid != 0 && uid != geteuid(); });
}

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view argument = arguments[i];
    if (!absl::ConsumePrefix(&argument, "--")) {
      return FieldError(arguments[i], "a flag (see --help)", "not one");
    }
    const size_t equals = argument.find('=');
    const absl::string_view name = argument.substr(0, equals);
    const Flag* flag = std::find_if(std::begin(kFlags), std::end(kFlags),
                                    [&](const Flag& f) { return name == f.name; });
    const std::string shown = absl::StrCat("--", name);
    if (flag == std::end(kFlags))
      return FieldError(shown, "a flag of lossd (see --help)", "unknown");
    absl::string_view value;
    if (equals != absl::string_view::npos) {
      if (flag->argument == nullptr) return FieldError(shown, "without a value", arguments[i]);
      value = argument.substr(equals + 1);
    } else if (flag->argument != nullptr && flag->argument[0] != '[') {
      if (i + 1 == arguments.size())
        return FieldError(shown, "followed by a value", "the last word");
      value = arguments[++i];
    }
    const absl::Status status = flag->set(value, &options);
    if (!status.ok()) return FieldError(shown, status.message(), value);
  }
  if (options.tune.empty() && (!options.tune_shapes.empty() || options.tune_rounds != 0)) {
    return FieldError(options.tune_rounds != 0 ? "--tune-rounds" : "--tune-shape",
                      "absent without --tune", "given");
  }
  if (options.tune_rounds == 0) options.tune_rounds = kTuneRounds;
  if (options.tune_shapes.empty()) {
    LOSSD_ASSIGN_OR_RETURN(const TunedShape shape, ParseTunedShape(kDefaultShape));
    options.tune_shapes.push_back(shape);
  }
  if (options.listen.empty()) {
    LOSSD_ASSIGN_OR_RETURN(ListenAddress address, ParseListenAddress(kDefaultAddress));
    options.listen.push_back(std::move(address));
  }
  const auto sockets = std::count_if(options.listen.begin(), options.listen.end(),
                                     [](const ListenAddress& a) { return a.is_unix; });
  if (sockets > 1) return FieldError("--listen", "at most one Unix socket", absl::StrCat(sockets));
  return options;
}

std::string HelpText() {
  std::string text =
      "lossd: computes losses, log-probabilities and gradients for other processes.\n"
      "Usage: lossd [FLAGS]. Sizes take the suffixes K, M, G, T; durations us, ms, s, m.\n"
      "Exit: 0 stopped, 1 stopped before every call was done, 2 could not start, 3 the GPU was "
      "lost.\n\n";
  for (const Flag& flag : kFlags) {
    std::string head = absl::StrCat("--", flag.name);
    if (flag.argument != nullptr)
      absl::StrAppend(&head, flag.argument[0] == '[' ? "=" : " ", flag.argument);
    absl::StrAppendFormat(&text, "  %-26s %s (default: %s)\n", head, flag.help, flag.default_value);
  }
  return text;
}

}  // namespace lossd
