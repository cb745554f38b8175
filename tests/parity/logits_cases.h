// Cases of the operations on logits: those of the linear ones, without what is the weight's.
#ifndef LOSSD_TESTS_PARITY_LOGITS_CASES_H_
#define LOSSD_TESTS_PARITY_LOGITS_CASES_H_

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "tests/parity/option_case.h"

namespace lossd {

inline std::vector<OptionCase> OnLogits(const std::vector<OptionCase>& cases) {
  std::vector<OptionCase> out;
  for (OptionCase c : cases) {
    if (c.op != "LinearCrossEntropy" && c.op != "LinearLogprobBackward") continue;
    if (c.added_inputs == "bias") continue;
    c.op = std::string(absl::StripPrefix(c.op, "Linear"));
    c.inputs = absl::StrReplaceAll(c.inputs, {{" bias", ""}});
    c.seed += 1;  // inputs that show every option
    out.push_back(c);
  }
  return out;
}

}  // namespace lossd

#endif  // LOSSD_TESTS_PARITY_LOGITS_CASES_H_
