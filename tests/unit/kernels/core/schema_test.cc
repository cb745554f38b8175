#include "kernels/core/schema.h"

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lossd/v1/operations.pb.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

v1::Tensor MakeTensor(v1::DType dtype, std::initializer_list<int64_t> shape) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  for (const int64_t extent : shape) tensor.add_shape(extent);
  tensor.mutable_region()->set_region(1);
  return tensor;
}

class SchemaTest : public testing::Test {
 protected:
  SchemaTest() {
    *request_.mutable_linear()->mutable_hidden() = MakeTensor(v1::F32, {6, 4});
    *request_.mutable_linear()->mutable_weight() = MakeTensor(v1::BF16, {17, 4});
    *request_.mutable_head()->mutable_target() = MakeTensor(v1::I64, {6});
  }

  absl::StatusOr<Dims> Check() const { return schema_.Check(request_); }

  OpSchema schema_ = *OpSchema::Create(v1::LinearCrossEntropy::descriptor());
  v1::LinearCrossEntropy request_;
};

TEST_F(SchemaTest, ReadsTheDimensions) {
  const auto dims = Check();
  ASSERT_OK(dims);
  EXPECT_EQ((*dims)["N"], 6);
  EXPECT_EQ((*dims)["H"], 4);
  EXPECT_EQ((*dims)["V"], 17);
  EXPECT_FALSE(dims->Has("B"));
}

TEST_F(SchemaTest, TakesSeveralLeadingExtentsAsRows) {
  *request_.mutable_linear()->mutable_hidden() = MakeTensor(v1::F32, {3, 2, 4});
  const auto dims = Check();
  ASSERT_OK(dims);
  EXPECT_EQ((*dims)["N"], 6);
}

TEST_F(SchemaTest, NamesTheFieldThatIsWrong) {
  *request_.mutable_linear()->mutable_weight() = MakeTensor(v1::BF16, {17, 5});
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT weight");
  *request_.mutable_linear()->mutable_weight() = MakeTensor(v1::I32, {17, 4});
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT weight");
  *request_.mutable_linear()->mutable_weight() = MakeTensor(v1::F32, {17, 1, 4});
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT weight");
}

TEST_F(SchemaTest, SaysWhatTheFieldMustBeAndWhatItIs) {
  *request_.mutable_linear()->mutable_weight() = MakeTensor(v1::F32, {17, 5});
  const auto detail = GetErrorDetail(Check().status());
  ASSERT_TRUE(detail);
  EXPECT_EQ(detail->must_be(), "of extent 4 in dimension H");
  EXPECT_EQ(detail->is(), "[17, 5]");
}

TEST_F(SchemaTest, RefusesAMissingRequiredField) {
  request_.mutable_linear()->clear_hidden();
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT hidden");
}

TEST_F(SchemaTest, RefusesAnInputWithoutAPlace) {
  request_.mutable_head()->mutable_target()->clear_place();
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT target");
}

TEST_F(SchemaTest, RefusesOptionsOutOfBounds) {
  for (const double bad : {-0.1, 1.1, std::nan(""), std::numeric_limits<double>::infinity()}) {
    request_.set_label_smoothing(bad);
    EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT label_smoothing") << bad;
  }
  request_.set_label_smoothing(1);
  EXPECT_OK(Check());
  request_.mutable_head()->set_temperature(0);
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT temperature");
}

TEST_F(SchemaTest, RefusesUnknownEnumValuesByTheFieldsName) {
  const auto* field = v1::LinearCrossEntropy::descriptor()->FindFieldByName("reduction");
  request_.GetReflection()->SetEnumValue(&request_, field, 77);
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT reduction");
}

TEST_F(SchemaTest, RefusesFieldsThatItDoesNotKnow) {
  request_.GetReflection()->MutableUnknownFields(&request_)->AddVarint(999, 1);
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT #999");
}

TEST_F(SchemaTest, RefusesUnknownFieldsInsideFlatMessages) {
  v1::HeadOptions* head = request_.mutable_head();
  head->GetReflection()->MutableUnknownFields(head)->AddVarint(999, 1);
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT #999");
}

TEST_F(SchemaTest, RefusesWhatThisBuildLacksByName) {
  request_.mutable_head()->set_group("tp");
  EXPECT_EQ(Refusal(Check()), "UNIMPLEMENTED group");
}

TEST_F(SchemaTest, RefusesExtentsThatOverflow) {
  const int64_t huge = int64_t{1} << 62;
  *request_.mutable_linear()->mutable_hidden() = MakeTensor(v1::F32, {huge, huge});
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT hidden");
  *request_.mutable_linear()->mutable_hidden() = MakeTensor(v1::F32, {-1, 4});
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT hidden");
}

TEST_F(SchemaTest, RefusesStridesThatOverflowOrRunBackwards) {
  v1::Tensor* hidden = request_.mutable_linear()->mutable_hidden();
  hidden->add_strides(int64_t{1} << 60);
  hidden->add_strides(1);
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT hidden");
  hidden->set_strides(0, -4);
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT hidden");
  hidden->set_strides(0, 8);
  EXPECT_OK(Check());
  hidden->set_strides(1, 2);
  EXPECT_EQ(Refusal(Check()), "UNIMPLEMENTED hidden");
  hidden->mutable_strides()->RemoveLast();
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT hidden");
}

TEST_F(SchemaTest, KnowsTheRulesOfEveryField) {
  const FieldRule* loss = schema_.Find("grad_weight");
  ASSERT_NE(loss, nullptr);
  EXPECT_TRUE(loss->is_output());
  EXPECT_EQ(loss->tensor.mode(), "grad_weight_mode");
  EXPECT_EQ(schema_.Find("linear"), nullptr) << "flat sub-messages have no name of their own";
  EXPECT_EQ(schema_.Find("nothing"), nullptr);
}

TEST(SchemaNamesTest, EnumValuesLoseTheirTypesPrefix) {
  const auto* type = v1::PolicyKind_descriptor();
  EXPECT_EQ(ShortEnumName(type->FindValueByName("POLICY_KIND_DPPO_TV")), "DPPO_TV");
  EXPECT_EQ(FindEnumValue(type, "PPO")->number(), v1::POLICY_KIND_PPO);
  EXPECT_EQ(FindEnumValue(type, "POLICY_KIND_PPO")->number(), v1::POLICY_KIND_PPO);
  EXPECT_EQ(FindEnumValue(type, "DAPO"), nullptr);
}

TEST(SchemaPolicyTest, CountsOneMoreOffsetThanSequences) {
  const OpSchema schema = *OpSchema::Create(v1::LinearPolicyLoss::descriptor());
  v1::LinearPolicyLoss request;
  *request.mutable_linear()->mutable_hidden() = MakeTensor(v1::F32, {6, 4});
  *request.mutable_linear()->mutable_weight() = MakeTensor(v1::F32, {17, 4});
  request.mutable_policy()->set_kind(v1::POLICY_KIND_PPO);
  *request.mutable_policy()->mutable_cu_seqlens() = MakeTensor(v1::I32, {4});
  ASSERT_OK(schema.Check(request));
  EXPECT_EQ((*schema.Check(request))["B"], 3);
  *request.mutable_policy()->mutable_sequence_weight() = MakeTensor(v1::F32, {4});
  EXPECT_EQ(Refusal(schema.Check(request)), "INVALID_ARGUMENT sequence_weight");
}

class SchemaListTest : public testing::Test {
 protected:
  SchemaListTest() {
    *request_.mutable_logprob() = MakeTensor(v1::F32, {6});
    *terms()->mutable_cu_seqlens() = MakeTensor(v1::I32, {5});
    terms()->set_pairing(v1::PAIRING_HALVES);
    for (const double beta : {0.1, 0.2}) {
      v1::PreferenceTerm* term = terms()->add_terms();
      term->set_type(v1::PREFERENCE_TYPE_SIGMOID);
      term->set_beta(beta);
    }
  }
  v1::PreferenceTerms* terms() { return request_.mutable_preference(); }
  absl::StatusOr<Dims> Check() const { return schema_.Check(request_); }

  OpSchema schema_ = *OpSchema::Create(v1::PreferenceLoss::descriptor());
  v1::PreferenceLoss request_;
};

TEST_F(SchemaListTest, ReadsADimensionWithAFactor) {
  *terms()->mutable_pair_weight() = MakeTensor(v1::F32, {2});
  *terms()->mutable_ref_sequence_logprob() = MakeTensor(v1::F32, {4});
  ASSERT_OK(Check());
  EXPECT_EQ((*Check())["P"], 2);
  *terms()->mutable_ref_sequence_logprob() = MakeTensor(v1::F32, {2});
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT ref_sequence_logprob");
  *terms()->mutable_ref_sequence_logprob() = MakeTensor(v1::F32, {5});
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT ref_sequence_logprob");
  terms()->clear_ref_sequence_logprob();
  *terms()->mutable_cu_seqlens() = MakeTensor(v1::I32, {6});
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT cu_seqlens");
  *terms()->mutable_cu_seqlens() = MakeTensor(v1::I32, {0});
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT cu_seqlens");
}

TEST_F(SchemaListTest, TakesDimensionsApart) {
  const auto text = [](const char* dim) {
    const DimTerm term = ParseDim(dim);
    return absl::StrCat(term.factor, " ", term.name, " ", term.plus);
  };
  EXPECT_EQ(text("N"), "1 N 0");
  EXPECT_EQ(text("B+1"), "1 B 1");
  EXPECT_EQ(text("2P"), "2 P 0");
  EXPECT_EQ(text("2P+1"), "2 P 1");
  EXPECT_EQ(text("9"), "1  9");
}

TEST_F(SchemaListTest, ChecksTheEntriesOfAListByTheirPlace) {
  EXPECT_OK(Check());
  terms()->mutable_terms(1)->set_beta(0);
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT terms[1].beta");
  terms()->mutable_terms(1)->clear_beta();
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT terms[1].beta");
  terms()->mutable_terms(1)->set_beta(1);
  terms()->mutable_terms(0)->set_label_smoothing(1);
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT terms[0].label_smoothing");
  terms()->mutable_terms(0)->set_label_smoothing(0.5);
  terms()->mutable_terms(0)->clear_type();
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT terms[0].type");
  terms()->clear_terms();
  EXPECT_EQ(Refusal(Check()), "INVALID_ARGUMENT terms");
}

}  // namespace
}  // namespace lossd
