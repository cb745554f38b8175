// The formula language of the vectors' tensors: "sin(0.37*i + 0.11*j) * 1.5".
#ifndef LOSSD_CLIENT_CONFORMANCE_FORMULA_H_
#define LOSSD_CLIENT_CONFORMANCE_FORMULA_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lossd::conformance {

// Numbers, i j k, + - * / %, parentheses, sin cos floor abs, in double. The remainder % is >= 0 for positive divisors. Immutable.
class Formula {
 public:
  // Errors: INVALID_ARGUMENT with the place in the text.
  static absl::StatusOr<Formula> Parse(absl::string_view text);

  // Value at the index (i, j, k).
  double At(double i, double j, double k) const;

 private:
  friend class FormulaParser;
  enum class Code {
    kNumber,
    kI,
    kJ,
    kK,
    kAdd,
    kSub,
    kMul,
    kDiv,
    kMod,
    kNeg,
    kSin,
    kCos,
    kFloor,
    kAbs
  };
  struct Step {
    Code code;
    double number;
  };
  // Reverse Polish: operands before their operator.
  std::vector<Step> steps_;
  int depth_ = 0;  // of the stack that the steps need
};

}  // namespace lossd::conformance

#endif  // LOSSD_CLIENT_CONFORMANCE_FORMULA_H_
