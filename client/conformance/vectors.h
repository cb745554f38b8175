// Conformance vectors: inputs, options and expected results of operations, one JSON object a line, run against anything that answers
// lossd.v1.Op: a server through the client, or the kernels in process.
//
//   const auto lines = lossd::conformance::ReadLines("LinearLogprob.jsonl");  // StatusOr: check it, keep it while iterating
//   for (const std::string& line : *lines) {
//     const auto outcome = lossd::conformance::RunVector(line, run);
//     if (outcome.kind == lossd::conformance::Outcome::kFailed) std::cerr << outcome.id << ": " << outcome.text << "\n";
//   }
#ifndef LOSSD_CLIENT_CONFORMANCE_VECTORS_H_
#define LOSSD_CLIENT_CONFORMANCE_VECTORS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lossd/v1/service.pb.h"

namespace lossd::conformance {

// Runs one operation. All tensors of `op` are inline, and the outputs must come back in the reply. A refusal carries
// lossd.v1.ErrorDetail as the payload type.googleapis.com/lossd.v1.ErrorDetail.
using RunFunction = std::function<absl::StatusOr<v1::OpReply>(const v1::Op& op)>;

struct Outcome {
  enum Kind {
    kPassed,
    kFailed,
    kSkipped,
  };
  Kind kind = kFailed;
  std::string id;
  std::string op;
  // What differed, or why it was skipped; several differences are separated by "; ".
  std::string text;
};

// Runs the vector in `line`. Skipped are: vectors with `shards`, operations that lossd.v1.Op does not have, and calls that were
// answered with UNIMPLEMENTED and the name of a field. A line that is no vector fails. Never throws.
Outcome RunVector(absl::string_view line, const RunFunction& run);

// Id and operation of a line without running it; empty if it has none.
void Identify(absl::string_view line, std::string* id, std::string* op);

// The lines of a file that are not blank. Errors: NOT_FOUND.
absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& path);

// Paths of the *.jsonl files in a directory, sorted. Errors: NOT_FOUND if there is no such directory.
absl::StatusOr<std::vector<std::string>> FindFiles(const std::string& directory);

}  // namespace lossd::conformance

#endif  // LOSSD_CLIENT_CONFORMANCE_VECTORS_H_
