#include "client/conformance/formula.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lossd::conformance {
namespace {

// Bounds the parser's recursion, so that a hostile text is an error and not a stack overflow.
constexpr int kMaxNesting = 100;

}  // namespace

// Recursive descent: sum = product {(+|-) product}; product = factor {(*|/|%) factor}; factor = [-|+] factor | atom.
class FormulaParser {
 public:
  explicit FormulaParser(absl::string_view text) : text_(text) {}

  absl::StatusOr<Formula> Parse() {
    Sum();
    Skip();
    if (error_.empty() && at_ < text_.size()) Fail("an operator or the end");
    if (!error_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("formula \"", text_, "\": must have ", error_));
    }
    return std::move(formula_);
  }

 private:
  using Code = Formula::Code;

  void Fail(absl::string_view wanted) {
    if (error_.empty()) error_ = absl::StrCat(wanted, " at character ", at_ + 1);
    at_ = text_.size();
  }

  void Skip() {
    while (at_ < text_.size() && absl::ascii_isspace(text_[at_])) ++at_;
  }

  bool Take(char wanted) {
    Skip();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  void Emit(Code code, int stack_change, double number = 0) {
    formula_.steps_.push_back({code, number});
    stack_ += stack_change;
    formula_.depth_ = std::max(formula_.depth_, stack_);
  }

  void Sum() {
    if (++nesting_ > kMaxNesting) Fail("fewer nested parentheses");
    Product();
    while (error_.empty()) {
      if (Take('+')) {
        Product();
        Emit(Code::kAdd, -1);
      } else if (Take('-')) {
        Product();
        Emit(Code::kSub, -1);
      } else {
        break;
      }
    }
    --nesting_;
  }

  void Product() {
    Factor();
    while (error_.empty()) {
      Code code;
      if (Take('*')) {
        code = Code::kMul;
      } else if (Take('/')) {
        code = Code::kDiv;
      } else if (Take('%')) {
        code = Code::kMod;
      } else {
        return;
      }
      Factor();
      Emit(code, -1);
    }
  }

  void Factor() {
    bool negative = false;
    while (true) {
      if (Take('-')) {
        negative = !negative;
      } else if (!Take('+')) {
        break;
      }
    }
    Atom();
    if (negative) Emit(Code::kNeg, 0);
  }

  void Atom() {
    Skip();
    if (Take('(')) {
      Sum();
      if (!Take(')')) Fail("')'");
    } else if (at_ < text_.size() && (absl::ascii_isdigit(text_[at_]) || text_[at_] == '.')) {
      Number();
    } else {
      Name();
    }
  }

  void Number() {
    size_t end = at_;
    while (end < text_.size() && (absl::ascii_isdigit(text_[end]) || text_[end] == '.')) ++end;
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      size_t digits = end + 1;
      if (digits < text_.size() && (text_[digits] == '-' || text_[digits] == '+')) ++digits;
      if (digits < text_.size() && absl::ascii_isdigit(text_[digits])) {
        for (end = digits; end < text_.size() && absl::ascii_isdigit(text_[end]);) ++end;
      }
    }
    double value = 0;
    if (!absl::SimpleAtod(text_.substr(at_, end - at_), &value)) return Fail("a number");
    at_ = end;
    Emit(Code::kNumber, 1, value);
  }

  void Name() {
    size_t end = at_;
    while (end < text_.size() && absl::ascii_isalpha(text_[end])) ++end;
    const absl::string_view name = text_.substr(at_, end - at_);
    if (name == "i" || name == "j" || name == "k") {
      at_ = end;
      return Emit(name == "i" ? Code::kI : name == "j" ? Code::kJ : Code::kK, 1);
    }
    Code code;
    if (name == "sin") {
      code = Code::kSin;
    } else if (name == "cos") {
      code = Code::kCos;
    } else if (name == "floor") {
      code = Code::kFloor;
    } else if (name == "abs") {
      code = Code::kAbs;
    } else {
      return Fail("a number, i, j, k, sin, cos, floor, abs or '('");
    }
    at_ = end;
    if (!Take('(')) return Fail("'('");
    Sum();
    if (!Take(')')) return Fail("')'");
    Emit(code, 0);
  }

  absl::string_view text_;
  size_t at_ = 0;
  int nesting_ = 0;
  int stack_ = 0;
  Formula formula_;
  std::string error_;
};

absl::StatusOr<Formula> Formula::Parse(absl::string_view text) {
  return FormulaParser(text).Parse();
}

double Formula::At(double i, double j, double k) const {
  double local[16];
  std::vector<double> large;
  double* top = local;  // one past the last operand
  if (depth_ > 16) {
    large.resize(depth_);
    top = large.data();
  }
  for (const Step& step : steps_) {
    switch (step.code) {
      case Code::kNumber:
        *top++ = step.number;
        continue;
      case Code::kI:
        *top++ = i;
        continue;
      case Code::kJ:
        *top++ = j;
        continue;
      case Code::kK:
        *top++ = k;
        continue;
      case Code::kNeg:
        top[-1] = -top[-1];
        continue;
      case Code::kSin:
        top[-1] = std::sin(top[-1]);
        continue;
      case Code::kCos:
        top[-1] = std::cos(top[-1]);
        continue;
      case Code::kFloor:
        top[-1] = std::floor(top[-1]);
        continue;
      case Code::kAbs:
        top[-1] = std::fabs(top[-1]);
        continue;
      default:
        break;
    }
    const double right = *--top;
    double& left = top[-1];
    if (step.code == Code::kAdd) left += right;
    if (step.code == Code::kSub) left -= right;
    if (step.code == Code::kMul) left *= right;
    if (step.code == Code::kDiv) left /= right;
    if (step.code == Code::kMod) left -= right * std::floor(left / right);
  }
  return top[-1];
}

}  // namespace lossd::conformance
