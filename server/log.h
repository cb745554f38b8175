// Structured log lines on stderr: time, level, event, then key=value. Nothing on the path of a call logs.
#ifndef LOSSD_SERVER_LOG_H_
#define LOSSD_SERVER_LOG_H_

#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lossd {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// One value of a log line; quoted and escaped when it must be.
struct LogField {
  LogField(absl::string_view key, const absl::AlphaNum& value) : key(key), value(value.Piece()) {}
  LogField(absl::string_view key, const absl::Status& status)
      : key(key), value(status.ToString(absl::StatusToStringMode::kWithNoExtraData)) {}

  std::string key;
  std::string value;
};

// Thread-safe: a line is one write. Never give it a token, a handle or other bytes of a client but its name.
class Logger {
 public:
  // `fd` is borrowed.
  explicit Logger(LogLevel level, int fd = 2) : level_(level), fd_(fd) {}

  void Debug(absl::string_view event, std::initializer_list<LogField> fields = {}) const {
    Write(LogLevel::kDebug, event, fields);
  }
  void Info(absl::string_view event, std::initializer_list<LogField> fields = {}) const {
    Write(LogLevel::kInfo, event, fields);
  }
  void Warning(absl::string_view event, std::initializer_list<LogField> fields = {}) const {
    Write(LogLevel::kWarning, event, fields);
  }
  void Error(absl::string_view event, std::initializer_list<LogField> fields = {}) const {
    Write(LogLevel::kError, event, fields);
  }

 private:
  void Write(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields) const;

  const LogLevel level_;
  const int fd_;
};

}  // namespace lossd

#endif  // LOSSD_SERVER_LOG_H_
