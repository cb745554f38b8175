#include "server/log.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace lossd {
namespace {

const char* NameOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kError:
      return "ERROR";
  }
  return "?";
}

bool IsPlain(absl::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return c > ' ' && c < 127 && c != '"' && c != '=' && c != '\\';
  });
}

}  // namespace

void Logger::Write(LogLevel level, absl::string_view event,
                   std::initializer_list<LogField> fields) const {
  if (level < level_) return;
  std::string line =
      absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()), " ",
                   NameOf(level), " ", event);
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", field.key, "=");
    if (IsPlain(field.value)) {
      absl::StrAppend(&line, field.value);
    } else {
      absl::StrAppend(&line, "\"", absl::CEscape(field.value), "\"");
    }
  }
  line.push_back('\n');
  // A log that cannot be written has nowhere to say so.
  [[maybe_unused]] const ssize_t written = ::write(fd_, line.data(), line.size());
}

}  // namespace lossd
