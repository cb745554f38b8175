// lossctl tune: the library's algorithms, timed on this machine's GPU. lossd does it; this makes its command line.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "client/conformance/elements.h"
#include "client/cpp/client.h"
#include "client/ctl/commands.h"
#include "client/ctl/target.h"
#include "nlohmann/json.hpp"

namespace lossd::ctl {
namespace {

using nlohmann::json;

constexpr int64_t kMaxExtent = int64_t{1} << 24;

struct Shape {
  int64_t rows = 8192;
  int64_t hidden = 4096;
  int64_t vocab = 128256;
  std::string dtype = "bf16";
};

absl::Status CheckDType(const std::string& dtype, absl::string_view what) {
  if (conformance::IsReal(conformance::DTypeFromName(dtype))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ": must be f32, bf16 or f16, is ", dtype));
}

absl::StatusOr<Shape> ParseFlags(const Arguments& arguments) {
  Shape shape;
  const std::pair<const char*, int64_t*> extents[] = {
      {"rows", &shape.rows}, {"hidden", &shape.hidden}, {"vocab", &shape.vocab}};
  for (const auto& [flag, extent] : extents) {
    const auto given = arguments.Integer(flag, *extent, 1, kMaxExtent);
    if (!given.ok()) return given.status();
    *extent = *given;
  }
  if (arguments.Has("model-dtype")) shape.dtype = arguments.Get("model-dtype");
  const absl::Status status = CheckDType(shape.dtype, "--model-dtype");
  if (!status.ok()) return status;
  return shape;
}

// What an object of the list does not name is as the flags have it.
absl::StatusOr<Shape> ParseShape(const json& value, const Shape& absent, const std::string& what) {
  Shape shape = absent;
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": must be an object with rows, hidden, vocab, dtype"));
  }
  for (const auto& [key, given] : value.items()) {
    if (key == "dtype" && given.is_string()) {
      shape.dtype = given.get<std::string>();
      continue;
    }
    int64_t* const extent = key == "rows"     ? &shape.rows
                            : key == "hidden" ? &shape.hidden
                            : key == "vocab"  ? &shape.vocab
                                              : nullptr;
    if (extent == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ".", key, ": must be rows, hidden, vocab, or dtype as a name"));
    }
    if (!given.is_number_integer() || given.get<int64_t>() < 1 ||
        given.get<int64_t>() > kMaxExtent) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ".", key, ": must be an integer from 1 to ", kMaxExtent));
    }
    *extent = given.get<int64_t>();
  }
  const absl::Status status = CheckDType(shape.dtype, absl::StrCat(what, ".dtype"));
  if (!status.ok()) return status;
  return shape;
}

absl::StatusOr<std::vector<Shape>> ReadShapes(const std::string& file, const Shape& absent) {
  std::ifstream stream(file);
  if (!stream) return absl::NotFoundError(absl::StrCat(file, ": cannot be read"));
  const json list = json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array() || list.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": must be a JSON list of shapes"));
  }
  std::vector<Shape> shapes;
  for (size_t i = 0; i < list.size(); ++i) {
    auto shape = ParseShape(list[i], absent, absl::StrCat(file, "[", i, "]"));
    if (!shape.ok()) return shape.status();
    shapes.push_back(*std::move(shape));
  }
  return shapes;
}

// Runs the program with this process's own input and output. Its exit code; above 0 also if a signal ended it.
absl::StatusOr<int> RunProgram(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, arguments[0], nullptr, nullptr, arguments.data(), environ);
  if (error != 0) return absl::InternalError(absl::StrCat(words[0], ": ", strerror(error)));
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return absl::InternalError(absl::StrCat("waitpid: ", strerror(errno)));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int RunTune(const Arguments& arguments) {
  const auto wrong = [](const absl::Status& status) {
    std::cerr << "lossctl tune: " << status.message() << "\n";
    return 2;
  };
  const auto shape = ParseFlags(arguments);
  if (!shape.ok()) return wrong(shape.status());
  absl::StatusOr<std::vector<Shape>> shapes = std::vector<Shape>{*shape};
  if (arguments.Has("shapes")) shapes = ReadShapes(arguments.Get("shapes"), *shape);
  if (!shapes.ok()) return wrong(shapes.status());
  const auto rounds = arguments.Integer("rounds", 7, 1, 1000);
  if (!rounds.ok()) return wrong(rounds.status());
  const auto binary = PrivateServer::FindBinary(arguments.Get("binary"));
  if (!binary.ok()) return Report("tune", binary.status());
  std::vector<std::string> words = {*binary, "--tune", arguments.words[0], "--tune-rounds",
                                    absl::StrCat(*rounds)};
  for (const Shape& each : *shapes) {
    words.push_back("--tune-shape");
    words.push_back(absl::StrCat(each.rows, "x", each.hidden, "x", each.vocab, ":", each.dtype));
  }
  const auto code = RunProgram(std::move(words));
  if (!code.ok()) return Report("tune", code.status());
  if (*code != 0) return 1;
  std::cout << arguments.words[0] << " is written: lossd --algorithms " << arguments.words[0]
            << "\n";
  return 0;
}

}  // namespace

Command TuneCommand() {
  return {{"tune",
           "FILE",
           1,
           1,
           "Times the library's algorithms for the products of a head on this machine's GPU, hot, "
           "several rounds, and writes those\n"
           "  with the best median to FILE, for lossd --algorithms on the same GPU with the same "
           "library. A server never times\n"
           "  anything. Takes a minute or two a shape; the GPU must be idle.",
           {{"rows", "COUNT", "rows of one product: a chunk's (default: 8192)"},
            {"hidden", "COUNT", "H (default: 4096)"},
            {"vocab", "COUNT", "V (default: 128256)"},
            {"model-dtype", "DTYPE", "bf16 (default), f16 or f32"},
            {"shapes", "FILE",
             "a JSON list in place of one shape: [{\"rows\": 4096, \"hidden\": 2048, \"vocab\": "
             "32000, \"dtype\": \"bf16\"}, ...]"},
            {"rounds", "COUNT", "how often each algorithm is timed (default: 7)"},
            {"binary", "PATH", "the lossd that measures (default: beside lossctl, then on PATH)"}}},
          RunTune};
}

}  // namespace lossd::ctl
