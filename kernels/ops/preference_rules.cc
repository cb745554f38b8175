#include "kernels/ops/preference_rules.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/core/error.h"
#include "kernels/core/status_macros.h"
#include "kernels/objectives/preference_options.h"
#include "kernels/ops/presence_rules.h"
#include "kernels/ops/sequence_run.h"

namespace lossd {
namespace {

using v1::PreferenceTerm;
using v1::PreferenceTerms;

// What a type reads.
struct TypeRules {
  bool smoothing = false;
  bool margin = false;
  bool tau = false;
  bool delta = false;
  bool x = false;       // written with x: no other score than REVERSE_KL
  bool sorted = false;  // a pair has no loss of its own: no pair_weight, no wpo
};

TypeRules RulesOf(v1::PreferenceType type) {
  TypeRules rules;
  switch (type) {
    case v1::PREFERENCE_TYPE_SIGMOID:
      rules.smoothing = rules.margin = true;
      break;
    case v1::PREFERENCE_TYPE_ROBUST:
    case v1::PREFERENCE_TYPE_EXO_PAIR:
      rules.smoothing = true;
      break;
    case v1::PREFERENCE_TYPE_HINGE:
      rules.margin = true;
      break;
    case v1::PREFERENCE_TYPE_BCO_PAIR:
      rules.delta = true;
      break;
    case v1::PREFERENCE_TYPE_DISCOPOP:
      rules.tau = true;
      break;
    case v1::PREFERENCE_TYPE_APO_ZERO:
    case v1::PREFERENCE_TYPE_APO_DOWN:
    case v1::PREFERENCE_TYPE_ORPO:
      rules.x = true;
      break;
    case v1::PREFERENCE_TYPE_AOT:
    case v1::PREFERENCE_TYPE_AOT_UNPAIRED:
      rules.smoothing = rules.x = rules.sorted = true;
      break;
    case v1::PREFERENCE_TYPE_IPO:
    case v1::PREFERENCE_TYPE_NCA_PAIR:
    case v1::PREFERENCE_TYPE_SPPO_HARD:
    case v1::PREFERENCE_TYPE_UNSPECIFIED:
      break;
  }
  return rules;
}

template <class E>
std::string NameOf(const google::protobuf::EnumDescriptor* type, E value) {
  return ShortEnumName(type->FindValueByNumber(value));
}

absl::Status CheckSmoothing(const PreferenceTerm& term, const std::string& field) {
  if (term.type() == v1::PREFERENCE_TYPE_ROBUST && term.label_smoothing() >= 0.5) {
    return FieldError(field, "below 0.5 with type ROBUST", absl::StrCat(term.label_smoothing()));
  }
  if (term.type() == v1::PREFERENCE_TYPE_EXO_PAIR && term.label_smoothing() <= 0) {
    return FieldError(field, "above 0 with type EXO_PAIR", absl::StrCat(term.label_smoothing()));
  }
  return absl::OkStatus();
}

absl::Status CheckTerm(const PreferenceTerms& p, int index) {
  const PreferenceTerm& term = p.terms(index);
  const TypeRules rules = RulesOf(term.type());
  const std::string prefix = absl::StrCat("terms[", index, "].");
  const std::string type = NameOf(v1::PreferenceType_descriptor(), term.type());
  const std::string with = absl::StrCat("with type ", type);
  const std::string smoothing = prefix + "label_smoothing";
  LOSSD_RETURN_IF_ERROR(AbsentUnless(rules.smoothing, term.has_label_smoothing(), smoothing, with));
  LOSSD_RETURN_IF_ERROR(AbsentUnless(rules.margin, term.has_margin(), prefix + "margin", with));
  LOSSD_RETURN_IF_ERROR(AbsentUnless(rules.tau, term.has_tau(), prefix + "tau", with));
  LOSSD_RETURN_IF_ERROR(
      AbsentUnless(rules.delta, term.has_bco_delta(), prefix + "bco_delta", with));
  LOSSD_RETURN_IF_ERROR(CheckSmoothing(term, smoothing));
  if (term.type() == v1::PREFERENCE_TYPE_ORPO) {
    LOSSD_RETURN_IF_ERROR(
        GivenIf(true, term.length_average(), prefix + "length_average", "as true with type ORPO"));
    LOSSD_RETURN_IF_ERROR(
        GivenIf(true, p.reference_free(), "reference_free", "as true with type ORPO"));
  }
  if (rules.sorted && p.has_pair_weight()) {
    return FieldError("pair_weight", absl::StrCat("absent ", with), "present");
  }
  if (rules.sorted && p.wpo()) return FieldError("wpo", absl::StrCat("false ", with), "true");
  if (p.score() == v1::PREFERENCE_SCORE_REVERSE_KL) return absl::OkStatus();
  const std::string score = NameOf(v1::PreferenceScore_descriptor(), p.score());
  if (rules.x) return FieldError("score", absl::StrCat("REVERSE_KL ", with), score);
  if (term.length_average() && p.score() != v1::PREFERENCE_SCORE_ALPHA_REWARD) {
    return FieldError(prefix + "length_average", absl::StrCat("false with score ", score), "true");
  }
  return absl::OkStatus();
}

absl::Status CheckScore(const PreferenceTerms& p) {
  const bool alpha = p.score() == v1::PREFERENCE_SCORE_ALPHA;
  const bool reward = p.score() == v1::PREFERENCE_SCORE_ALPHA_REWARD;
  LOSSD_RETURN_IF_ERROR(AbsentUnless(alpha || reward, p.has_score_alpha(), "score_alpha",
                                     "without score ALPHA or ALPHA_REWARD"));
  LOSSD_RETURN_IF_ERROR(
      GivenIf(alpha || reward, p.has_score_alpha(), "score_alpha", "with this score"));
  // There the score is REVERSE_KL, and its formula is 0 / 0.
  if (alpha && std::fabs(p.score_alpha() - 1) <= 1e-6) {
    return FieldError("score_alpha", "other than 1 with score ALPHA",
                      absl::StrCat(p.score_alpha()));
  }
  if (reward && std::fabs(p.score_alpha()) <= 1e-6) {
    return FieldError("score_alpha", "other than 0 with score ALPHA_REWARD",
                      absl::StrCat(p.score_alpha()));
  }
  return absl::OkStatus();
}

absl::Status CheckLikelihood(const PreferenceTerms& p) {
  const bool on = p.nll_coef() > 0;
  const absl::string_view without = "without nll_coef";
  LOSSD_RETURN_IF_ERROR(AbsentUnless(on, p.has_nll_mask(), "nll_mask", without));
  LOSSD_RETURN_IF_ERROR(AbsentUnless(on, p.has_nll_denominator(), "nll_denominator", without));
  LOSSD_RETURN_IF_ERROR(
      AbsentUnless(on, p.has_nll_denominator_from(), "nll_denominator_from", without));
  const bool given = p.nll_denominator_from() == v1::COUNT_DENOMINATOR_GIVEN;
  LOSSD_RETURN_IF_ERROR(GivenIf(on && given, p.has_nll_denominator(), "nll_denominator",
                                "with nll_coef, or nll_denominator_from COUNT"));
  return AbsentUnless(given, p.has_nll_denominator(), "nll_denominator",
                      "with nll_denominator_from COUNT");
}

}  // namespace

absl::Status CheckPreferenceTerms(const PreferenceTerms& preference, const v1::ReferenceHead* head,
                                  const Dims& dims, bool wants_gradient) {
  LOSSD_RETURN_IF_ERROR(CheckReference(UseOf(preference), head, dims));
  if (preference.terms_size() > kMaxPreferenceTerms) {
    return UnimplementedError("terms", absl::StrCat("a list of at most ", kMaxPreferenceTerms),
                              absl::StrCat("of ", preference.terms_size()));
  }
  for (int i = 0; i < preference.terms_size(); ++i) {
    LOSSD_RETURN_IF_ERROR(CheckTerm(preference, i));
  }
  LOSSD_RETURN_IF_ERROR(CheckScore(preference));
  if (preference.ld_alpha() != 1 && preference.has_ref_sequence_logprob()) {
    return FieldError("ld_alpha", "1 with ref_sequence_logprob",
                      absl::StrCat(preference.ld_alpha()));
  }
  LOSSD_RETURN_IF_ERROR(CheckLikelihood(preference));
  return CheckScale(preference, wants_gradient);
}

}  // namespace lossd
