// lossctl conformance: the vectors of a directory against a server.
#include <iostream>
#include <map>

#include "absl/strings/str_cat.h"
#include "client/conformance/vectors.h"
#include "client/ctl/commands.h"
#include "client/ctl/in_memory.h"
#include "client/ctl/target.h"

namespace lossd::ctl {
namespace {

using conformance::Outcome;

struct Counts {
  int passed = 0;
  int failed = 0;
  int skipped = 0;
  std::map<std::string, int> reasons;  // why vectors were skipped

  int total() const { return passed + failed + skipped; }
};

void Count(const Outcome& outcome, bool verbose, Counts* counts) {
  switch (outcome.kind) {
    case Outcome::kPassed:
      ++counts->passed;
      if (verbose) std::cout << "passed  " << outcome.id << "\n";
      return;
    case Outcome::kFailed:
      ++counts->failed;
      std::cout << "FAILED  " << outcome.id << ": " << outcome.text << "\n";
      return;
    case Outcome::kSkipped:
      ++counts->skipped;
      ++counts->reasons[outcome.text];
      if (verbose) std::cout << "skipped " << outcome.id << ": " << outcome.text << "\n";
      return;
  }
}

absl::StatusOr<std::vector<std::string>> ReadVectors(const std::string& directory,
                                                     const std::string& op) {
  const auto files = conformance::FindFiles(directory);
  if (!files.ok()) return files.status();
  std::vector<std::string> vectors;
  for (const std::string& file : *files) {
    auto lines = conformance::ReadLines(file);
    if (!lines.ok()) return lines.status();
    for (std::string& line : *lines) {
      std::string id;
      std::string its_op;
      if (!op.empty()) conformance::Identify(line, &id, &its_op);
      if (op.empty() || its_op == op) vectors.push_back(std::move(line));
    }
  }
  return vectors;
}

int RunConformance(const Arguments& arguments) {
  const std::string memory = arguments.Has("memory") ? arguments.Get("memory") : "inline";
  if (memory != "inline" && memory != "shared") {
    std::cerr << "lossctl conformance: --memory: must be inline or shared, is " << memory << "\n";
    return 2;
  }
  const auto vectors = ReadVectors(arguments.words[0], arguments.Get("op"));
  if (!vectors.ok()) return Report("conformance", vectors.status());
  Counts counts;
  if (!vectors->empty()) {
    auto target = OpenTarget(arguments);
    if (!target.ok()) return Report("conformance", target.status());
    Client& client = *target->client;
    const conformance::RunFunction run = [&](const v1::Op& op) {
      return memory == "shared" ? RunInMemory(client, op) : client.Run(op);
    };
    for (const std::string& vector : *vectors) {
      Count(conformance::RunVector(vector, run), arguments.Has("verbose"), &counts);
    }
  } else {
    std::cerr << "lossctl conformance: no vectors in " << arguments.words[0]
              << (arguments.Has("op") ? absl::StrCat(" for ", arguments.Get("op")) : "") << "\n";
  }
  for (const auto& [reason, count] : counts.reasons) {
    if (!arguments.Has("verbose")) std::cout << "skipped " << count << ": " << reason << "\n";
  }
  std::cout << counts.passed << " passed, " << counts.failed << " failed, " << counts.skipped
            << " skipped" << std::endl;
  return counts.failed == 0 && counts.total() > 0 ? 0 : 1;
}

}  // namespace

Command ConformanceCommand() {
  return {{"conformance",
           "DIR",
           1,
           1,
           "Runs the conformance vectors of the *.jsonl files in DIR and names each that fails. "
           "The last line is the count;\n"
           "  the exit code is 1 if a vector failed, or if there was none.",
           {{"op", "NAME", "only the vectors of this operation"},
            kTargetFlag,
            {"memory", "WHERE",
             "where tensors lie: inline (in the messages, default) or shared (in a buffer)"},
            {"verbose", nullptr, "names every vector, with the reason where one was skipped"}}},
          RunConformance};
}

}  // namespace lossd::ctl
