// The options of the losses on sequences, one case each, for the operations with a head and for those that take log-probabilities.
#ifndef LOSSD_TESTS_PARITY_SEQUENCE_CASES_H_
#define LOSSD_TESTS_PARITY_SEQUENCE_CASES_H_

#include <string>
#include <vector>

#include "tests/parity/option_case.h"

namespace lossd {

// The term beside the pairs.
inline constexpr char kLikelihoodTerm[] = " nll_coef=0.7 nll_denominator=5";

// Added to "pairing=HALVES terms[0].type=SIGMOID terms[0].beta=0.5" and a reference by token.
inline std::vector<OptionCase> PreferenceCasesOf(const std::string& op, const std::string& inputs) {
  const std::string pairs = "pairing=HALVES terms[0].type=SIGMOID terms[0].beta=0.5";
  const std::string reference = inputs + " ref_logprob";
  std::vector<OptionCase> cases;
  for (const std::string added : {
           "terms[0].type=ROBUST terms[0].label_smoothing=0.1",
           "terms[0].type=HINGE",
           "terms[0].type=IPO",
           "terms[0].type=EXO_PAIR terms[0].label_smoothing=0.1",
           "terms[0].type=NCA_PAIR",
           "terms[0].type=BCO_PAIR",
           "terms[0].type=BCO_PAIR terms[0].bco_delta=0.4",
           "terms[0].type=SPPO_HARD",
           "terms[0].type=DISCOPOP terms[0].tau=0.7",
           "terms[0].type=APO_ZERO",
           "terms[0].type=APO_DOWN",
           "terms[0].type=AOT terms[0].length_average=true",
           "terms[0].type=AOT_UNPAIRED terms[0].label_smoothing=0.2",
           "terms[0].label_smoothing=0.2",
           "terms[0].margin=0.6",
           "terms[0].weight=1.5",
           "terms[0].beta=0.3",
           "terms[0].length_average=true",
           "terms[1].type=IPO terms[1].beta=0.4 terms[1].length_average=true terms[1].weight=0.3",
           "terms[1].type=AOT terms[1].beta=0.4 terms[2].type=AOT_UNPAIRED terms[2].beta=0.7",
           "pairing=INTERLEAVED",
           "score=FORWARD_KL",
           "score=JS",
           "score=ALPHA score_alpha=0.3",
           "score=ALPHA_REWARD score_alpha=0.25",
           "score=ALPHA_REWARD score_alpha=0.25 terms[0].length_average=true",
           "ld_alpha=0.3",
           "nll_coef=0.7 nll_denominator=5",
           "nll_coef=0.7 nll_denominator_from=COUNT",
           "denominator=3",
           "denominator_from=COUNT",
       }) {
    cases.push_back({op, reference, pairs, "", added});
  }
  // Options of one type or score, against the same with another value.
  cases.push_back({op, reference, pairs + " terms[0].type=DISCOPOP", "", "terms[0].tau=0.9"});
  cases.push_back({op, reference, pairs + " terms[0].type=BCO_PAIR", "", "terms[0].bco_delta=0.4"});
  cases.push_back({op, reference, pairs + " score=ALPHA score_alpha=0.3", "", "score_alpha=0.6"});
  cases.push_back({op, reference, pairs + " terms[1].type=SIGMOID terms[1].beta=1", "",
                   "terms[1].type=NCA_PAIR terms[1].weight=0.4"});
  cases.push_back({op, reference, pairs + kLikelihoodTerm, "d_loss", ""});
  cases.push_back(
      {op, inputs, pairs + " reference_free=true", "ref_logprob", "reference_free=false"});
  cases.push_back(
      {op, inputs, pairs + " reference_free=true", "ref_sequence_logprob", "reference_free=false"});
  cases.push_back({op, inputs, pairs + " reference_free=true terms[0].length_average=true", "",
                   "terms[0].type=ORPO"});
  // Inputs whose sorted lists pair otherwise.
  cases.push_back({op, reference, pairs, "", "terms[0].type=AOT", 14});
  cases.push_back({op, reference, pairs, "", "terms[0].type=AOT_UNPAIRED", 2});
  cases.push_back({op, reference, pairs, "mask", ""});
  cases.push_back({op, reference, pairs, "pair_weight", ""});
  cases.push_back({op, reference, pairs, "d_loss", ""});
  cases.push_back({op, reference, pairs + kLikelihoodTerm, "nll_mask", ""});
  cases.push_back({op, reference + " mask", pairs + kLikelihoodTerm, "nll_mask", "ld_alpha=0.2"});
  return cases;
}

inline std::vector<OptionCase> UnpairedCasesOf(const std::string& op, const std::string& inputs) {
  const std::string kto = "type=KTO beta=0.5";
  const std::string all = inputs + " ref_logprob kl_baseline";
  const std::string bco = "type=BCO beta=0.5";
  const std::string plain = inputs + " ref_logprob";
  return {
      {op, plain, bco, "", "type=APO_ZERO_UNPAIRED"},
      {op, plain, bco, "", "bco_delta=0.4"},
      {op, plain, bco, "", "length_average=true"},
      {op, plain, bco, "", "beta=0.2"},
      {op, all, kto, "", "desirable_weight=1.5"},
      {op, all, kto, "", "undesirable_weight=0.4"},
      {op, all, kto, "", "length_average=true"},
      {op, all, kto, "sequence_weight", ""},
      {op, all, kto, "mask", ""},
      {op, all, kto, "d_loss", ""},
      {op, all, kto, "", "denominator=3"},
      {op, all, kto, "", "denominator_from=COUNT"},
      {op, inputs, bco + " reference_free=true", "ref_logprob", "reference_free=false"},
      {op, inputs, bco + " reference_free=true", "ref_sequence_logprob", "reference_free=false"},
      {op, inputs, "type=APO_ZERO_UNPAIRED beta=0.5 reference_free=true", "kl_baseline",
       "type=KTO"},
  };
}

inline std::vector<OptionCase> SequenceCases() {
  std::vector<OptionCase> cases;
  const auto add = [&](const std::vector<OptionCase>& more) {
    cases.insert(cases.end(), more.begin(), more.end());
  };
  add(PreferenceCasesOf("LinearPreferenceLoss", "target"));
  add(PreferenceCasesOf("PreferenceLoss", ""));
  add(UnpairedCasesOf("LinearUnpairedLoss", "target"));
  add(UnpairedCasesOf("UnpairedLoss", ""));
  // A reference head, of another hidden size.
  const std::string pairs =
      "pairing=HALVES terms[0].type=SIGMOID terms[0].beta=0.5 reference_free=true";
  const std::string bco = "type=BCO beta=0.5 reference_free=true";
  const std::string head = "ref_hidden ref_weight";
  add({{"LinearPreferenceLoss", "target", pairs, head, "reference_free=false"},
       {"LinearPreferenceLoss", "target", pairs, head + " ref_bias",
        "reference_free=false temperature=0.7 softcap=3"},
       {"LinearUnpairedLoss", "target", bco, head, "reference_free=false"},
       {"LinearUnpairedLoss", "target", bco, head + " ref_bias", "reference_free=false"}});
  return cases;
}

}  // namespace lossd

#endif  // LOSSD_TESTS_PARITY_SEQUENCE_CASES_H_
