// One case of an operation's options, for tests that hold for every operation.
#ifndef LOSSD_TESTS_PARITY_OPTION_CASE_H_
#define LOSSD_TESTS_PARITY_OPTION_CASE_H_

#include <cstdint>
#include <ostream>
#include <string>

namespace lossd {

struct OptionCase {
  std::string op;
  std::string inputs;   // optional inputs that the base call has, too
  std::string options;  // of the base call
  // What this case adds; its loss or one of its gradients must differ from the base call's.
  std::string added_inputs;
  std::string added_options;
  uint64_t seed = 5;  // of the inputs: some options act on some inputs only
  // Factors of the value are constants of its gradient: no finite differences.
  bool has_constants = false;
};

// For failure messages.
inline std::ostream& operator<<(std::ostream& out, const OptionCase& c) {
  return out << c.op << " " << c.inputs << " " << c.options << " + " << c.added_inputs << " "
             << c.added_options;
}

}  // namespace lossd

#endif  // LOSSD_TESTS_PARITY_OPTION_CASE_H_
