// The options of the layers' backward operations, one case each. What they cannot say is in layer_test.cc.
#ifndef LOSSD_TESTS_PARITY_LAYER_CASES_H_
#define LOSSD_TESTS_PARITY_LAYER_CASES_H_

#include <string>
#include <vector>

#include "tests/parity/option_case.h"

namespace lossd {

inline std::vector<OptionCase> LayerCases() {
  const std::string rms = "RmsNormBackward";
  const std::string layer = "LayerNormBackward";
  return {
      {rms, "", "", "weight", ""},
      {rms, "weight", "", "d_residual_out", ""},
      {rms, "weight", "", "", "eps=0.3"},
      {rms, "weight", "", "", "weight_offset=1"},
      {rms, "rstd", "", "weight", "weight_offset=0.5"},
      {layer, "", "", "weight", ""},
      {layer, "weight", "", "", "eps=0.3"},
      {layer, "mean rstd", "", "weight", ""},
      {"SwigluBackward", "gate up", "", "", "gate_scale=0.7"},
      {"SwigluBackward", "gate up", "", "", "down_scale=-0.7"},
      {"SwigluBackward", "gate_up", "", "", "gate_scale=0.7"},
      {"GegluBackward", "gate up", "", "", "approximation=ERF"},
      {"GegluBackward", "gate_up", "", "", "approximation=ERF"},
  };
}

inline bool IsLayerCase(const OptionCase& c) {
  for (const OptionCase& known : LayerCases()) {
    if (known.op == c.op) return true;
  }
  return false;
}

}  // namespace lossd

#endif  // LOSSD_TESTS_PARITY_LAYER_CASES_H_
