// The conformance runner must catch what is wrong: a fake that computes nothing answers, rightly and wrongly.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/conformance/elements.h"
#include "client/conformance/fields.h"
#include "client/conformance/formula.h"
#include "client/conformance/request.h"
#include "client/conformance/vectors.h"
#include "lossd/v1/error.pb.h"

namespace lossd::conformance {
namespace {

// Row 1 is masked, row 2 has the ignored target.
constexpr char kVector[] = R"({"id": "LinearLogprob/fake", "op": "LinearLogprob", "why": "test",
  "inputs": {"hidden": {"dtype": "f32", "shape": [3, 2], "formula": "i + 0.5*j"},
             "weight": {"dtype": "bf16", "shape": [4, 2], "data": [1, 2, 3, 4, 5, 6, 7, "inf"]},
             "mask": {"dtype": "u8", "shape": [3], "data": [1, 0, 1]},
             "target": {"dtype": "i64", "shape": [3], "data": [2, 1000000000000, -100]}},
  "options": {"temperature": 2},
  "expect": {"logprob": {"dtype": "f32", "shape": [3], "data": [-1.5, 0, 0]},
             "argmax": {"dtype": "i32", "shape": [3], "data": [3, -1, -1]},
             "count": 1},
  "rtol": 0.001, "atol": 0.001})";

v1::Tensor MakeTensor(v1::DType dtype, const std::vector<int64_t>& shape,
                      const std::vector<double>& values) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  for (const int64_t extent : shape) tensor.add_shape(extent);
  for (const double value : values) AppendElement(dtype, value, tensor.mutable_inline_data());
  return tensor;
}

v1::OpReply GoodReply() {
  v1::OpReply reply;
  (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::F32, {3}, {-1.5, 0, 0});
  (*reply.mutable_outputs())["argmax"] = MakeTensor(v1::I32, {3}, {3, -1, -1});
  reply.set_count(1);
  return reply;
}

Outcome RunWith(const std::string& vector, const absl::StatusOr<v1::OpReply>& reply) {
  return RunVector(vector, [&](const v1::Op&) { return reply; });
}

absl::Status Refusal(absl::StatusCode code, const std::string& field) {
  v1::ErrorDetail detail;
  detail.set_field(field);
  absl::Status status(code, "refused");
  status.SetPayload("type.googleapis.com/lossd.v1.ErrorDetail",
                    absl::Cord(detail.SerializeAsString()));
  return status;
}

void ExpectFailure(const Outcome& outcome, const std::string& text) {
  EXPECT_EQ(outcome.kind, Outcome::kFailed) << outcome.text;
  EXPECT_NE(outcome.text.find(text), std::string::npos) << outcome.text;
}

TEST(ConformanceTest, PassesTheRightReply) {
  const Outcome outcome = RunWith(kVector, GoodReply());
  EXPECT_EQ(outcome.kind, Outcome::kPassed) << outcome.text;
  EXPECT_EQ(outcome.id, "LinearLogprob/fake");
  EXPECT_EQ(outcome.op, "LinearLogprob");
}

TEST(ConformanceTest, BuildsTheRequestOfTheVector) {
  v1::Op seen;
  RunVector(kVector, [&](const v1::Op& op) {
    seen = op;
    return GoodReply();
  });
  const v1::LinearLogprob& op = seen.linear_logprob();
  EXPECT_EQ(DecodeElements(v1::F32, op.linear().hidden().inline_data()),
            (std::vector<double>{0, 0.5, 1, 1.5, 2, 2.5}));
  EXPECT_EQ(DecodeElements(v1::BF16, op.linear().weight().inline_data()).back(),
            std::numeric_limits<double>::infinity());
  EXPECT_EQ(DecodeElements(v1::I64, op.head().target().inline_data())[1], 1e12);
  EXPECT_EQ(op.head().temperature(), 2);
  EXPECT_FALSE(op.head().has_softcap());
  EXPECT_EQ(op.argmax().dtype(), v1::I32);
  EXPECT_EQ(op.argmax().shape(0), 3);
  EXPECT_EQ(op.argmax().place_case(), v1::Tensor::PLACE_NOT_SET);
  EXPECT_FALSE(op.has_lse());
}

TEST(ConformanceTest, CatchesWrongValues) {
  auto reply = GoodReply();
  (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::F32, {3}, {-1.51, 0, 0});
  ExpectFailure(RunWith(kVector, reply), "logprob[0] is -1.50999999, must be -1.5 within 0.0025");
  reply = GoodReply();
  (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::F32, {3}, {std::nan(""), 0, 0});
  ExpectFailure(RunWith(kVector, reply), "logprob[0] is nan");
  reply = GoodReply();
  (*reply.mutable_outputs())["argmax"] = MakeTensor(v1::I32, {3}, {2, -1, -1});
  ExpectFailure(RunWith(kVector, reply), "argmax[0] is 2, must be 3");
}

TEST(ConformanceTest, ToleranceIsUsedButNotForRowsThatDoNotCount) {
  auto reply = GoodReply();
  (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::F32, {3}, {-1.502, 0, 0});
  EXPECT_EQ(RunWith(kVector, reply).kind, Outcome::kPassed);
  (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::F32, {3}, {-1.5, 1e-30, 0});
  ExpectFailure(RunWith(kVector, reply), "logprob[1]");
  (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::F32, {3}, {-1.5, 0, 1e-30});
  ExpectFailure(RunWith(kVector, reply), "logprob[2]");
}

TEST(ConformanceTest, CatchesMissingAndMisshapenOutputs) {
  auto reply = GoodReply();
  reply.mutable_outputs()->erase("argmax");
  ExpectFailure(RunWith(kVector, reply), "argmax is not in the reply");
  reply = GoodReply();
  (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::F32, {3, 1}, {-1.5, 0, 0});
  ExpectFailure(RunWith(kVector, reply), "must be f32 [3]");
  reply = GoodReply();
  (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::BF16, {3}, {-1.5, 0, 0});
  ExpectFailure(RunWith(kVector, reply), "is bf16 [3]");
  reply = GoodReply();
  (*reply.mutable_outputs())["logprob"].mutable_inline_data()->pop_back();
  ExpectFailure(RunWith(kVector, reply), "must have 12");
}

TEST(ConformanceTest, CatchesWrongAndMissingNumbers) {
  auto reply = GoodReply();
  reply.set_count(2);
  ExpectFailure(RunWith(kVector, reply), "count is 2, must be 1");
  reply.clear_count();
  ExpectFailure(RunWith(kVector, reply), "count is not in the reply");
}

TEST(ConformanceTest, ExactHasNoTolerance) {
  const std::string vector =
      absl::StrReplaceAll(kVector, {{R"("rtol")", R"("exact": ["logprob"], "rtol")"}});
  EXPECT_EQ(RunWith(vector, GoodReply()).kind, Outcome::kPassed);
  auto reply = GoodReply();
  (*reply.mutable_outputs())["logprob"] =
      MakeTensor(v1::F32, {3}, {std::nextafter(-1.5f, 0.0f), 0, 0});
  ExpectFailure(RunWith(vector, reply), "exactly");
}

TEST(ConformanceTest, OwnToleranceOfAnOutputWins) {
  const std::string vector =
      absl::StrReplaceAll(kVector, {{R"("rtol")", R"("tol": {"logprob": [0, 1e-6]}, "rtol")"}});
  auto reply = GoodReply();
  (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::F32, {3}, {-1.5001, 0, 0});
  ExpectFailure(RunWith(vector, reply), "logprob[0]");
}

TEST(ConformanceTest, NanAndInfinityMatchOnlyThemselves) {
  std::string vector = absl::StrReplaceAll(kVector, {{"[-1.5, 0, 0]", R"(["-inf", 0, 0])"}});
  ExpectFailure(RunWith(vector, GoodReply()), "must be -inf");
  auto reply = GoodReply();
  const double infinity = std::numeric_limits<double>::infinity();
  (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::F32, {3}, {infinity, 0, 0});
  ExpectFailure(RunWith(vector, reply), "is inf, must be -inf");
  (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::F32, {3}, {-infinity, 0, 0});
  EXPECT_EQ(RunWith(vector, reply).kind, Outcome::kPassed);
  vector = absl::StrReplaceAll(kVector, {{"[-1.5, 0, 0]", R"(["nan", 0, 0])"}});
  ExpectFailure(RunWith(vector, reply), "must be nan");
  (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::F32, {3}, {std::nan(""), 0, 0});
  EXPECT_EQ(RunWith(vector, reply).kind, Outcome::kPassed);
}

TEST(ConformanceTest, PartlyGivenOutputsAreCheckedByElementAndNorm) {
  const std::string vector = absl::StrReplaceAll(
      kVector, {{R"("data": [-1.5, 0, 0])", R"("at": [[0]], "data": [-1.5], "norm": 1.5)"}});
  EXPECT_EQ(RunWith(vector, GoodReply()).kind, Outcome::kPassed);
  auto reply = GoodReply();
  (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::F32, {3}, {-1.5, 0, 3});
  ExpectFailure(RunWith(vector, reply), "norm of logprob");
  (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::F32, {3}, {-1.5, 1e-9, 0});
  ExpectFailure(RunWith(vector, reply), "its row does not count");
  (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::F32, {3}, {-1.6, 0, 0});
  ExpectFailure(RunWith(vector, reply), "logprob[0]");
}

TEST(ConformanceTest, ChecksMetrics) {
  const std::string vector = absl::StrReplaceAll(
      kVector, {{R"("count": 1)",
                 R"("count": 1, "metrics": {"kl": {"sum": 2, "count": 1, "min": 2, "max": 2}})"}});
  auto reply = GoodReply();
  ExpectFailure(RunWith(vector, reply), "metric kl is not in the reply");
  v1::Metric& metric = (*reply.mutable_metrics())["kl"];
  metric.set_sum(2.0001);
  metric.set_count(1);
  metric.set_min(2);
  metric.set_max(2);
  EXPECT_EQ(RunWith(vector, reply).kind, Outcome::kPassed);
  metric.set_max(2.01);
  ExpectFailure(RunWith(vector, reply), "metric kl.max");
  metric.set_max(2);
  metric.set_count(2);
  ExpectFailure(RunWith(vector, reply), "metric kl.count");
}

TEST(ConformanceTest, RefusalsNeedCodeAndField) {
  const std::string vector = R"({"id": "LinearPolicyLoss/e", "op": "LinearPolicyLoss",
    "inputs": {"hidden": {"dtype": "bf16", "shape": [2, 3, 2], "formula": "1"},
               "weight": {"dtype": "f32", "shape": [4, 2], "formula": "1"}},
    "options": {"kind": "PPO", "clip_low": "inf"}, "outputs": ["loss", "grad_hidden", "logprob"],
    "expect_error": {"code": "INVALID_ARGUMENT", "field": "clip_low"}})";
  const auto right = Refusal(absl::StatusCode::kInvalidArgument, "clip_low");
  EXPECT_EQ(RunWith(vector, right).kind, Outcome::kPassed);
  ExpectFailure(RunWith(vector, v1::OpReply()), "was computed");
  ExpectFailure(RunWith(vector, Refusal(absl::StatusCode::kInvalidArgument, "clip_high")),
                "must be INVALID_ARGUMENT for \"clip_low\"");
  ExpectFailure(RunWith(vector, Refusal(absl::StatusCode::kInternal, "clip_low")), "INTERNAL");
  ExpectFailure(RunWith(vector, absl::InvalidArgumentError("clip_low")), "for \"\"");

  v1::Op seen;
  RunVector(vector, [&](const v1::Op& op) {
    seen = op;
    return right;
  });
  const auto& op = seen.linear_policy_loss();
  EXPECT_EQ(op.policy().kind(), v1::POLICY_KIND_PPO);
  EXPECT_EQ(op.gradients().grad_hidden().dtype(), v1::BF16);
  EXPECT_EQ(op.gradients().grad_hidden().shape_size(), 3);
  ASSERT_EQ(op.logprob().shape_size(), 2);
  EXPECT_EQ(op.logprob().shape(1), 3);
  EXPECT_EQ(op.results().loss().shape(0), 1);
}

TEST(ConformanceTest, RefusedVectorThatExpectsAResultFails) {
  ExpectFailure(RunWith(kVector, Refusal(absl::StatusCode::kInvalidArgument, "mask")),
                "was refused: INVALID_ARGUMENT");
}

TEST(ConformanceTest, SkipsWithAReason) {
  const auto unimplemented = Refusal(absl::StatusCode::kUnimplemented, "kind");
  Outcome outcome = RunWith(kVector, unimplemented);
  EXPECT_EQ(outcome.kind, Outcome::kSkipped);
  EXPECT_EQ(outcome.text, "unimplemented: refused");
  // A server that has no such method says UNIMPLEMENTED too; that is no reason to skip.
  ExpectFailure(RunWith(kVector, absl::UnimplementedError("unknown method")), "without a field");

  outcome = RunWith(absl::StrReplaceAll(kVector, {{R"("rtol")", R"("shards": [2, 2], "rtol")"}}),
                    GoodReply());
  EXPECT_EQ(outcome.kind, Outcome::kSkipped);
  outcome = RunWith(
      absl::StrReplaceAll(kVector, {{R"("op": "LinearLogprob")", R"("op": "Convolution")"}}),
      GoodReply());
  EXPECT_EQ(outcome.kind, Outcome::kSkipped);
  EXPECT_EQ(outcome.text, "no operation Convolution in this build");
}

TEST(ConformanceTest, RepeatsMustHaveTheSameBits) {
  const std::string vector =
      absl::StrReplaceAll(kVector, {{R"("rtol")", R"("repeat": 3, "rtol")"}});
  int calls = 0;
  auto run = [&](float last) {
    calls = 0;
    return RunVector(vector, [&, last](const v1::Op&) {
      auto reply = GoodReply();
      if (++calls == 3) {
        (*reply.mutable_outputs())["logprob"] = MakeTensor(v1::F32, {3}, {last, 0, 0});
      }
      return absl::StatusOr<v1::OpReply>(reply);
    });
  };
  EXPECT_EQ(run(-1.5f).kind, Outcome::kPassed);
  EXPECT_EQ(calls, 3);
  ExpectFailure(run(std::nextafter(-1.5f, 0.0f)), "call 3 gives other bits");
}

TEST(ConformanceTest, CatchesAWrittenInput) {
  const Outcome outcome = RunVector(kVector, [](const v1::Op& op) {
    auto& writable = const_cast<v1::Op&>(op);
    (*writable.mutable_linear_logprob()
          ->mutable_linear()
          ->mutable_hidden()
          ->mutable_inline_data())[0] ^= 1;
    return absl::StatusOr<v1::OpReply>(GoodReply());
  });
  ExpectFailure(outcome, "an input was changed");
}

TEST(ConformanceTest, AccumulatedDestinationBringsItsOldValue) {
  const std::string vector = R"({"id": "LinearCrossEntropy/a", "op": "LinearCrossEntropy",
    "inputs": {"grad_weight": {"dtype": "f32", "shape": [1, 2], "data": [7, 8]}},
    "options": {"grad_weight_mode": "ACCUMULATE"},
    "expect": {"grad_weight": {"dtype": "f32", "shape": [1, 2], "data": [9, 10]}, "loss": 1},
    "rtol": 0, "atol": 0})";
  v1::Op seen;
  RunVector(vector, [&](const v1::Op& op) {
    seen = op;
    return absl::StatusOr<v1::OpReply>(v1::OpReply());
  });
  const auto& gradients = seen.linear_cross_entropy().gradients();
  EXPECT_EQ(gradients.grad_weight_mode(), v1::GRAD_MODE_ACCUMULATE);
  EXPECT_EQ(DecodeElements(v1::F32, gradients.grad_weight().inline_data()),
            (std::vector<double>{7, 8}));
  EXPECT_EQ(seen.linear_cross_entropy().loss().dtype(), v1::F32);
}

TEST(ConformanceTest, UnknownEnumNamesTravelAsUnknownNumbers) {
  v1::LinearPolicyLoss op;
  ASSERT_TRUE(SetOption("NO_SUCH_KIND", "kind", &op).ok());
  EXPECT_FALSE(op.policy().has_kind());
  v1::LinearPolicyLoss parsed;
  ASSERT_TRUE(parsed.ParseFromString(op.SerializeAsString()));
  const auto& unknown = parsed.policy().GetReflection()->GetUnknownFields(parsed.policy());
  ASSERT_EQ(unknown.field_count(), 1);
  EXPECT_EQ(unknown.field(0).number(), 1);
  EXPECT_EQ(v1::PolicyKind_IsValid(static_cast<int>(unknown.field(0).varint())), false);
}

TEST(ConformanceTest, MalformedLinesFail) {
  EXPECT_EQ(RunWith("{", GoodReply()).kind, Outcome::kFailed);
  EXPECT_EQ(RunWith("[]", GoodReply()).kind, Outcome::kFailed);
  EXPECT_EQ(RunWith(R"({"id": "a", "op": "LinearLogprob"})", GoodReply()).kind, Outcome::kFailed);
  ExpectFailure(RunWith(absl::StrReplaceAll(kVector, {{"temperature", "temprature"}}), GoodReply()),
                "no option temprature");
  ExpectFailure(RunWith(absl::StrReplaceAll(kVector, {{R"("data": [1, 0, 1])", R"("data": [1])"}}),
                        GoodReply()),
                "mask.data: must be 3 numbers, is 1");
}

TEST(FormulaTest, FollowsTheGrammar) {
  const auto value = [](const char* text, double i = 0, double j = 0, double k = 0) {
    const auto formula = Formula::Parse(text);
    return formula.ok() ? formula->At(i, j, k) : std::nan("");
  };
  EXPECT_EQ(value("1 + 2*3 - 4/2"), 5);
  EXPECT_EQ(value("(1+2)*3"), 9);
  EXPECT_EQ(value("-i + j*10 + k*100", 1, 2, 3), 319);
  EXPECT_EQ(value("-7 % 5"), 3);  // the sign belongs to the number, and a remainder is >= 0
  EXPECT_EQ(value("(0-7) % 5"), 3);
  EXPECT_EQ(value("10-4-3"), 3);
  EXPECT_EQ(value("(i*27+999)%1000", 3), 80);
  EXPECT_DOUBLE_EQ(value("sin(0.37*i+0.11*j+0.2)*1.5", 2, 3), std::sin(0.74 + 0.33 + 0.2) * 1.5);
  EXPECT_EQ(value("abs(floor(-1.5))"), 2);
  for (const char* wrong : {"", "1+", "(1", "sin 1", "x", "1 2", "2^3", "tan(1)", "1..2"}) {
    EXPECT_FALSE(Formula::Parse(wrong).ok()) << wrong;
  }
  EXPECT_FALSE(Formula::Parse(std::string(100000, '(')).ok());
}

TEST(ElementsTest, RoundsOnceToNearestEven) {
  EXPECT_EQ(RoundTo(v1::BF16, 1 + 1.0 / 256), 1);              // tie to even
  EXPECT_EQ(RoundTo(v1::BF16, 1 + 3.0 / 256), 1 + 4.0 / 256);  // tie to even, upwards
  EXPECT_EQ(RoundTo(v1::BF16, 1 + 1.0 / 256 + 1e-12),
            1 + 2.0 / 256);  // by way of float it would be 1
  EXPECT_EQ(RoundTo(v1::F16, 65519), 65504);
  EXPECT_EQ(RoundTo(v1::F16, 65520), std::numeric_limits<double>::infinity());
  EXPECT_EQ(RoundTo(v1::F16, std::ldexp(1, -25)), 0);
  EXPECT_EQ(RoundTo(v1::I32, -2.7), -2);
}

TEST(ElementsTest, BytesAndBack) {
  for (const v1::DType dtype : {v1::F32, v1::BF16, v1::F16}) {
    for (const double value : {0.0, 1.0, -2.5, std::ldexp(1, -14), std::ldexp(3, -24), 384.0,
                               std::numeric_limits<double>::infinity()}) {
      std::string bytes;
      AppendElement(dtype, value, &bytes);
      EXPECT_EQ(DecodeElements(dtype, bytes)[0], value) << DTypeName(dtype);
    }
  }
  std::string bytes;
  AppendElement(v1::F16, 1.5, &bytes);
  EXPECT_EQ(bytes, std::string("\x00\x3e", 2));
  AppendInteger(v1::I64, std::numeric_limits<int64_t>::max(), &bytes);
  EXPECT_EQ(bytes.size(), 10u);
  EXPECT_EQ(static_cast<unsigned char>(bytes[9]), 0x7f);
}

}  // namespace
}  // namespace lossd::conformance
