// The rules between the fields of losses on sequences: a legal request of each type, and each way to break it by one field.
#include "kernels/ops/preference_rules.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "kernels/ops/unpaired_bind.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

const char kPairs[] = "cu_seqlens {} pairing: PAIRING_HALVES ";
const char kReference[] = "ref_logprob {} ";

std::string Term(const std::string& type, const std::string& more = "") {
  return absl::StrCat("terms { type: PREFERENCE_TYPE_", type, " beta: 0.1 ", more, " } ");
}

struct Case {
  std::string text;
  std::string field;  // empty: legal
};

void Expect(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    v1::PreferenceTerms terms;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kPairs + c.text, &terms)) << c.text;
    EXPECT_EQ(Refusal(CheckPreferenceTerms(terms, nullptr, Dims(), true)),
              c.field.empty() ? "OK" : "INVALID_ARGUMENT " + c.field)
        << c.text;
  }
}

TEST(PreferenceRulesTest, FieldsOfATerm) {
  const std::string r = kReference;
  const std::string e = "label_smoothing: 0.1";
  const std::string margin = "margin: 0.1";
  const std::string tau = "tau: 0.1";
  const std::string delta = "bco_delta: 0.1";
  // Which of the four every type reads.
  const std::vector<std::pair<std::string, std::string>> types = {
      {"SIGMOID", "em"},    {"ROBUST", "e"},  {"HINGE", "m"},    {"IPO", ""},
      {"EXO_PAIR", "e"},    {"NCA_PAIR", ""}, {"BCO_PAIR", "d"}, {"SPPO_HARD", ""},
      {"DISCOPOP", "t"},    {"APO_ZERO", ""}, {"APO_DOWN", ""},  {"AOT", "e"},
      {"AOT_UNPAIRED", "e"}};
  for (const auto& [type, reads] : types) {
    const std::string base = type == "EXO_PAIR" ? e + " " : "";
    const auto expect = [&](char letter, const std::string& option, const std::string& field) {
      const bool legal = reads.find(letter) != std::string::npos;
      const std::string more = letter == 'e' ? option : base + option;
      Expect({{r + Term(type, more), legal ? "" : "terms[0]." + field}});
      Expect({{r + Term("SIGMOID") + Term(type, more), legal ? "" : "terms[1]." + field}});
    };
    Expect({{r + Term(type, base), ""}});
    expect('e', e, "label_smoothing");
    expect('m', margin, "margin");
    expect('t', tau, "tau");
    expect('d', delta, "bco_delta");
  }
  Expect({{r + Term("ROBUST", "label_smoothing: 0.5"), "terms[0].label_smoothing"},
          {r + Term("ROBUST", "label_smoothing: 0.49"), ""},
          {r + Term("EXO_PAIR"), "terms[0].label_smoothing"},
          {r + Term("EXO_PAIR", "label_smoothing: 0"), "terms[0].label_smoothing"},
          {r + Term("IPO", "margin: 0"), "terms[0].margin"}});
}

TEST(PreferenceRulesTest, Reference) {
  const std::string t = Term("SIGMOID");
  Expect({{t, "ref_logprob"},
          {t + "reference_free: true", ""},
          {t + "reference_free: false", "ref_logprob"},
          {t + "ref_sequence_logprob {}", ""},
          {t + "ref_logprob {} ref_sequence_logprob {}", "ref_logprob"},
          {t + "ref_logprob {} reference_free: true", "reference_free"},
          {t + "ref_logprob {} reference_free: false", ""},
          {Term("ORPO", "length_average: true") + "reference_free: true", ""},
          {Term("ORPO", "length_average: true") + kReference, "reference_free"},
          {Term("ORPO") + "reference_free: true", "terms[0].length_average"}});
}

TEST(PreferenceRulesTest, ReferenceHead) {
  v1::PreferenceTerms terms;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kPairs + Term("SIGMOID"), &terms));
  Dims dims;
  dims.Set("RefH", 4);
  const auto check = [&](const std::string& text) {
    v1::ReferenceHead head;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &head));
    return Refusal(CheckPreferenceTerms(terms, &head, dims, true));
  };
  EXPECT_EQ(check(""), "INVALID_ARGUMENT ref_logprob");
  EXPECT_EQ(check("ref_hidden {} ref_weight {}"), "OK");
  EXPECT_EQ(check("ref_hidden {} ref_weight {} ref_bias {}"), "OK");
  EXPECT_EQ(check("ref_hidden {}"), "INVALID_ARGUMENT ref_weight");
  EXPECT_EQ(check("ref_weight {}"), "INVALID_ARGUMENT ref_hidden");
  EXPECT_EQ(check("ref_bias {}"), "INVALID_ARGUMENT ref_hidden");
  dims.Set("RefH", 0);
  EXPECT_EQ(check("ref_hidden {} ref_weight {}"), "INVALID_ARGUMENT ref_hidden");
  dims.Set("RefH", 4);
  terms.mutable_ref_sequence_logprob();
  EXPECT_EQ(check("ref_hidden {} ref_weight {}"), "INVALID_ARGUMENT ref_sequence_logprob");
  terms.clear_ref_sequence_logprob();
  terms.set_reference_free(true);
  EXPECT_EQ(check("ref_hidden {} ref_weight {}"), "INVALID_ARGUMENT reference_free");
}

TEST(PreferenceRulesTest, Score) {
  const std::string t = Term("SIGMOID") + kReference;
  const std::string averaged = Term("SIGMOID", "length_average: true") + kReference;
  Expect({{t + "score: PREFERENCE_SCORE_JS", ""},
          {t + "score: PREFERENCE_SCORE_JS score_alpha: 0.3", "score_alpha"},
          {t + "score: PREFERENCE_SCORE_ALPHA", "score_alpha"},
          {t + "score: PREFERENCE_SCORE_ALPHA score_alpha: 0.3", ""},
          {t + "score: PREFERENCE_SCORE_ALPHA score_alpha: 1.0000005", "score_alpha"},
          {t + "score: PREFERENCE_SCORE_ALPHA score_alpha: 0", ""},
          {t + "score: PREFERENCE_SCORE_ALPHA_REWARD score_alpha: -1e-7", "score_alpha"},
          {t + "score: PREFERENCE_SCORE_ALPHA_REWARD score_alpha: 1", ""},
          {t + "score_alpha: 0.3", "score_alpha"},
          {averaged + "score: PREFERENCE_SCORE_FORWARD_KL", "terms[0].length_average"},
          {averaged + "score: PREFERENCE_SCORE_ALPHA_REWARD score_alpha: 1", ""}});
  for (const char* type : {"APO_ZERO", "APO_DOWN", "AOT", "AOT_UNPAIRED"}) {
    Expect({{Term(type) + kReference + "score: PREFERENCE_SCORE_JS", "score"}});
  }
  Expect({{Term("ORPO", "length_average: true") +
               "reference_free: true score: PREFERENCE_SCORE_ALPHA_REWARD score_alpha: 1",
           "score"}});
}

TEST(PreferenceRulesTest, SortedTermsKnowNoPairs) {
  for (const char* type : {"AOT", "AOT_UNPAIRED"}) {
    const std::string t = Term("SIGMOID") + Term(type) + kReference;
    Expect({{t, ""},
            {t + "wpo: true", "wpo"},
            {t + "wpo: false", ""},
            {t + "pair_weight {}", "pair_weight"}});
  }
}

TEST(PreferenceRulesTest, LikelihoodAndScale) {
  const std::string t = Term("SIGMOID") + kReference;
  const std::string count = "nll_denominator_from: COUNT_DENOMINATOR_COUNT ";
  Expect({{t + "nll_coef: 0.5", "nll_denominator"},
          {t + "nll_coef: 0.5 nll_denominator: 3", ""},
          {t + "nll_coef: 0.5 " + count, ""},
          {t + "nll_coef: 0.5 nll_denominator: 3 " + count, "nll_denominator"},
          {t + "nll_coef: 0.5 nll_mask {} " + count, ""},
          {t + "nll_mask {}", "nll_mask"},
          {t + "nll_coef: 0 nll_mask {}", "nll_mask"},
          {t + "nll_denominator: 3", "nll_denominator"},
          {t + count, "nll_denominator_from"},
          {t + "denominator: 3", ""},
          {t + "denominator: 3 denominator_from: COUNT_DENOMINATOR_COUNT", "denominator"},
          {t + "ld_alpha: 0.5", ""},
          {Term("SIGMOID") + "ref_sequence_logprob {} ld_alpha: 0.5", "ld_alpha"},
          {Term("SIGMOID") + "ref_sequence_logprob {} ld_alpha: 1", ""}});
  v1::PreferenceTerms terms;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kPairs + t + "d_loss {}", &terms));
  EXPECT_EQ(Refusal(CheckPreferenceTerms(terms, nullptr, Dims(), true)), "OK");
  EXPECT_EQ(Refusal(CheckPreferenceTerms(terms, nullptr, Dims(), false)),
            "INVALID_ARGUMENT d_loss");
}

TEST(PreferenceRulesTest, AListHasAnEnd) {
  std::string text = kReference;
  for (int i = 0; i < 8; ++i) text += Term("SIGMOID");
  Expect({{text, ""}});
  v1::PreferenceTerms terms;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kPairs + text + Term("IPO"), &terms));
  EXPECT_EQ(Refusal(CheckPreferenceTerms(terms, nullptr, Dims(), true)), "UNIMPLEMENTED terms");
}

TEST(UnpairedRulesTest, FieldsOfATypeAndScale) {
  const std::string base = "cu_seqlens {} desirable {} ref_logprob {} beta: 0.1 ";
  const std::string kto = base + "type: UNPAIRED_TYPE_KTO ";
  const std::string apo = base + "type: UNPAIRED_TYPE_APO_ZERO_UNPAIRED ";
  const std::string bco = base + "type: UNPAIRED_TYPE_BCO ";
  const std::vector<Case> cases = {
      {kto + "kl_baseline {}", ""},
      {kto, "kl_baseline"},
      {kto + "kl_baseline {} bco_delta: 0.1", "bco_delta"},
      {apo, ""},
      {apo + "kl_baseline {}", "kl_baseline"},
      {apo + "bco_delta: 0.1", "bco_delta"},
      {bco + "bco_delta: 0.1", ""},
      {bco + "kl_baseline {}", "kl_baseline"},
      {bco + "reference_free: true", "reference_free"},
      {bco + "ref_sequence_logprob {}", "ref_logprob"},
      {bco + "denominator: 3 denominator_from: COUNT_DENOMINATOR_COUNT", "denominator"},
  };
  for (const Case& c : cases) {
    v1::UnpairedTerms terms;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(c.text, &terms)) << c.text;
    EXPECT_EQ(Refusal(CheckUnpairedTerms(terms, nullptr, Dims(), true)),
              c.field.empty() ? "OK" : "INVALID_ARGUMENT " + c.field)
        << c.text;
    if (!c.field.empty()) continue;
    terms.mutable_d_loss();
    EXPECT_EQ(Refusal(CheckUnpairedTerms(terms, nullptr, Dims(), false)),
              "INVALID_ARGUMENT d_loss");
  }
}

}  // namespace
}  // namespace lossd
