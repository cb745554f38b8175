// Distillation and divergences through the operations, on the CPU: the teacher's forms against each other, chunks, and rows at the edge of
// what is legal.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/local_runner.h"
#include "tests/testing/matchers.h"
#include "tests/testing/request_builder.h"

namespace lossd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class DistillTest : public testing::Test {
 protected:
  v1::Op Build(const std::string& op, const std::string& inputs, const std::string& options,
               const std::string& outputs) {
    RequestSpec spec;
    spec.op = op;
    spec.inputs = inputs;
    spec.options = options;
    spec.outputs = outputs;
    return builder_.Build(runner_.registry().Find(op)->schema(), spec);
  }
  v1::Op Distill(const std::string& inputs, const std::string& options,
                 const std::string& outputs = "loss row_loss grad_hidden grad_weight") {
    return Build("LinearDistillLoss", inputs, options, outputs);
  }
  // The values of one output; empty if the call failed.
  std::vector<double> Get(const v1::Op& op, const std::string& output) {
    const auto reply = runner_.Run(op);
    EXPECT_OK(reply);
    if (!reply.ok()) return {};
    return Elements(reply->outputs().at(output));
  }
  void ExpectSame(const v1::Op& a, const v1::Op& b, double tolerance) {
    const auto first = runner_.Run(a);
    const auto second = runner_.Run(b);
    ASSERT_OK(first);
    ASSERT_OK(second);
    for (const auto& [name, tensor] : first->outputs()) {
      const auto x = Elements(tensor);
      const auto y = Elements(second->outputs().at(name));
      ASSERT_EQ(x.size(), y.size());
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(x[i], y[i], tolerance) << name << " element " << i;
      }
    }
  }

  LocalRunner runner_;
  RequestBuilder builder_;
};

const char* const kDivergences[] = {"divergence=FORWARD_KL", "divergence=REVERSE_KL",
                                    "divergence=JSD beta=0.4", "divergence=MIXED mix_weight=0.3",
                                    "divergence=TVD"};

// hidden W^T + bias of the teacher's tensors.
std::vector<double> Product(const v1::DistillTeacher& teacher, int64_t rows, int64_t columns) {
  const auto x = Elements(teacher.teacher_hidden());
  const auto w = Elements(teacher.teacher_weight());
  const auto bias = Elements(teacher.teacher_bias());
  const int64_t width = static_cast<int64_t>(x.size()) / rows;
  std::vector<double> out(rows * columns);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      double sum = bias[j];
      for (int64_t k = 0; k < width; ++k) sum += x[i * width + k] * w[j * width + k];
      out[i * columns + j] = sum;
    }
  }
  return out;
}

TEST_F(DistillTest, AHeadAndItsLogitsAreOneTeacher) {
  for (const std::string divergence : kDivergences) {
    const std::string options = divergence + " teacher_softcap=4 teacher_logit_scale=0.7";
    const v1::Op head = Distill("mask teacher_hidden teacher_weight teacher_bias", options);
    v1::Op logits = head;
    v1::DistillTeacher* teacher = logits.mutable_linear_distill_loss()->mutable_teacher();
    const std::vector<double> values = Product(*teacher, 7, 11);
    teacher->clear_teacher_hidden();
    teacher->clear_teacher_weight();
    teacher->clear_teacher_bias();
    v1::Tensor* tensor = teacher->mutable_teacher_logits();
    tensor->set_dtype(v1::F32);
    tensor->add_shape(7);
    tensor->add_shape(11);
    SetElements(values, tensor);
    ExpectSame(head, logits, 2e-6);
  }
}

// Every id in the list: the tails say the same as the whole teacher where its values add up to 1.
TEST_F(DistillTest, AListOfAllIdsIsAWholeTeacher) {
  for (const std::string divergence : kDivergences) {
    const v1::Op whole = Distill("mask teacher_logits bias", divergence);
    const v1::DistillTeacher& teacher = whole.linear_distill_loss().teacher();
    std::vector<double> values = Elements(teacher.teacher_logits());
    std::vector<double> ids;
    for (int64_t i = 0; i < 7; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < 11; ++j) sum += std::exp(values[i * 11 + j]);
      for (int64_t j = 0; j < 11; ++j) {
        values[i * 11 + j] -= std::log(sum);
        ids.push_back(static_cast<double>(j));
      }
    }
    for (const auto tail : {v1::TOPK_TAIL_DROP, v1::TOPK_TAIL_RENORMALISE, v1::TOPK_TAIL_GHOST,
                            v1::TOPK_TAIL_ZERO_OUTSIDE}) {
      v1::Op list = whole;
      v1::DistillTeacher* to = list.mutable_linear_distill_loss()->mutable_teacher();
      *to->mutable_teacher_topk_logprob() = to->teacher_logits();
      *to->mutable_teacher_topk_ids() = to->teacher_logits();
      to->clear_teacher_logits();
      to->mutable_teacher_topk_ids()->set_dtype(v1::I64);
      SetElements(values, to->mutable_teacher_topk_logprob());
      SetElements(ids, to->mutable_teacher_topk_ids());
      to->set_tail(tail);
      // The rest of a distribution that adds up to 1 is the rounding of the sum, in ZERO_OUTSIDE times 100 nats.
      const bool rest = tail == v1::TOPK_TAIL_GHOST || tail == v1::TOPK_TAIL_ZERO_OUTSIDE;
      SCOPED_TRACE(divergence + " " + v1::TopkTail_Name(tail));
      ExpectSame(whole, list, rest ? 4e-5 : 3e-6);
    }
  }
}

TEST_F(DistillTest, TheDivergenceOfTwoTensorsIsThatOfAnIdentityHead) {
  // Hidden states that are the logits themselves.
  builder_.dims["H"] = 11;
  for (const std::string divergence : kDivergences) {
    const bool tvd = divergence == "divergence=TVD";
    const bool jsd = divergence == "divergence=JSD beta=0.4";
    if (divergence == "divergence=MIXED mix_weight=0.3") continue;
    const v1::Op linear = [&] {
      v1::Op op = Distill("teacher_logits",
                          divergence +
                              " temperature=1.4 valid_vocab=9 "
                              "teacher_valid_vocab=9",
                          "loss row_loss grad_hidden");
      v1::Tensor* weight = op.mutable_linear_distill_loss()->mutable_linear()->mutable_weight();
      std::vector<double> identity(121);
      for (int64_t j = 0; j < 11; ++j) identity[j * 12] = 1;
      SetElements(identity, weight);
      return op;
    }();
    v1::Op pair = Build(tvd   ? "TotalVariation"
                        : jsd ? "JensenShannon"
                              : "KlDivergence",
                        "",
                        std::string("student_kind=LOGITS teacher_kind=LOGITS temperature=1.4 "
                                    "valid_vocab=9 ") +
                            (tvd                                     ? ""
                             : jsd                                   ? "beta=0.4"
                             : divergence == "divergence=REVERSE_KL" ? "direction=REVERSE"
                                                                     : "direction=FORWARD"),
                        "loss row_loss grad_student");
    const v1::LinearDistillLoss& from = linear.linear_distill_loss();
    v1::DistributionPair* to = tvd   ? pair.mutable_total_variation()->mutable_pair()
                               : jsd ? pair.mutable_jensen_shannon()->mutable_pair()
                                     : pair.mutable_kl_divergence()->mutable_pair();
    *to->mutable_student() = from.linear().hidden();
    *to->mutable_teacher() = from.teacher().teacher_logits();
    for (const std::string name : {"row_loss", "grad"}) {
      const auto want = Get(linear, name == "grad" ? "grad_hidden" : name);
      const auto got = Get(pair, name == "grad" ? "grad_student" : name);
      ASSERT_EQ(want.size(), got.size());
      for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(want[i], got[i], 1e-6) << divergence;
    }
  }
}

TEST_F(DistillTest, ChunksAndInvariantTilesChangeNothing) {
  builder_.dims = {{"N", 150},       {"H", 24},       {"V", 1100}, {"TeacherV", 1300},
                   {"TeacherH", 40}, {"Upstream", 1}, {"K", 9}};
  // About twenty rows of both models at a time; tensors take 700 kB of it.
  LocalRunner small(1400000);
  for (const std::string options :
       {"divergence=JSD beta=0.4 vocab_mismatch=COMMON hard_weight=0.5 temperature=1.3",
        "divergence=FORWARD_KL vocab_mismatch=TEACHER_TO_STUDENT"}) {
    const v1::Op op =
        Distill("target mask teacher_hidden teacher_weight teacher_bias bias", options,
                "loss row_loss lse entropy grad_hidden grad_weight grad_bias");
    const auto want = runner_.Run(op);
    ASSERT_OK(want);
    for (const bool invariant : {false, true}) {
      RunOptions run;
      run.batch_invariant = invariant;
      const auto got = small.Run(op, run);
      ASSERT_OK(got);
      EXPECT_EQ(got->plan().find("chunks=1x"), std::string::npos) << got->plan();
      for (const auto& [name, tensor] : want->outputs()) {
        const auto x = Elements(tensor);
        const auto y = Elements(got->outputs().at(name));
        for (size_t i = 0; i < x.size(); ++i) {
          ASSERT_NEAR(x[i], y[i], 2e-6 * std::fabs(x[i]) + 2e-6) << name << " element " << i;
        }
      }
      const auto again = small.Run(op, run);
      ASSERT_OK(again);
      for (const auto& [name, tensor] : got->outputs()) {
        EXPECT_TRUE(tensor.inline_data() == again->outputs().at(name).inline_data()) << name;
      }
    }
  }
}

TEST_F(DistillTest, ColumnsThatOnlyTheHardTermReaches) {
  // COMMON ends before the target's column.
  v1::Op op = Distill("teacher_logits target",
                      "divergence=TVD teacher_valid_vocab=4 vocab_mismatch=COMMON soft_weight=0 "
                      "hard_weight=1");
  v1::Op cross_entropy =
      Build("LinearCrossEntropy", "target", "", "loss row_loss grad_hidden grad_weight");
  const v1::LinearDistillLoss& from = op.linear_distill_loss();
  *cross_entropy.mutable_linear_cross_entropy()->mutable_linear() = from.linear();
  *cross_entropy.mutable_linear_cross_entropy()->mutable_head()->mutable_target() =
      from.head().target();
  ExpectSame(op, cross_entropy, 1e-6);
}

TEST_F(DistillTest, RowsThatDoNotCountAreZeroWhateverTheyHold) {
  for (const std::string teacher : {"teacher_logits", "teacher_hidden teacher_weight",
                                    "teacher_topk_ids teacher_topk_logprob"}) {
    const bool topk = teacher.find("topk") != std::string::npos;
    v1::Op op = Distill("mask " + teacher,
                        std::string("divergence=FORWARD_KL") + (topk ? " tail=GHOST" : ""));
    v1::LinearDistillLoss* request = op.mutable_linear_distill_loss();
    const auto poison = [](v1::Tensor* tensor, double with) {
      std::vector<double> values = Elements(*tensor);
      const size_t width = values.size() / 7;
      for (size_t j = 0; j < width; ++j) values[width + j] = with;  // row 1 is masked
      SetElements(values, tensor);
    };
    const auto want = Get(op, "grad_weight");
    poison(request->mutable_linear()->mutable_hidden(), NAN);
    v1::DistillTeacher* side = request->mutable_teacher();
    if (side->has_teacher_logits()) poison(side->mutable_teacher_logits(), NAN);
    if (side->has_teacher_hidden()) poison(side->mutable_teacher_hidden(), kInfinity);
    if (topk) {
      poison(side->mutable_teacher_topk_ids(), 1e9);
      poison(side->mutable_teacher_topk_logprob(), NAN);
    }
    EXPECT_EQ(Get(op, "grad_weight"), want) << teacher;
    const auto grad = Get(op, "grad_hidden");
    for (size_t j = 5; j < 10; ++j) EXPECT_EQ(grad[j], 0);
    EXPECT_EQ(Get(op, "row_loss")[1], 0);
    // No row at all.
    SetElements(std::vector<double>(7, 0), request->mutable_head()->mutable_mask());
    EXPECT_EQ(Get(op, "loss"), std::vector<double>{0});
    EXPECT_EQ(Get(op, "grad_weight"), std::vector<double>(55, 0)) << teacher;
  }
}

TEST_F(DistillTest, AWeightOfZeroRemovesARowThatIsNan) {
  v1::Op op = Distill("row_weight teacher_logits", "divergence=REVERSE_KL");
  v1::LinearDistillLoss* request = op.mutable_linear_distill_loss();
  std::vector<double> weight(7, 1);
  weight[2] = 0;
  SetElements(weight, request->mutable_distill()->mutable_row_weight());
  std::vector<double> teacher = Elements(request->teacher().teacher_logits());
  for (size_t j = 22; j < 33; ++j) teacher[j] = NAN;
  SetElements(teacher, request->mutable_teacher()->mutable_teacher_logits());
  EXPECT_EQ(Get(op, "row_loss")[2], 0);
  for (const double g : Get(op, "grad_weight")) EXPECT_TRUE(std::isfinite(g));
  const auto reply = runner_.Run(op);
  ASSERT_OK(reply);
  EXPECT_EQ(reply->count(), 7);
  // With another weight it shows.
  weight[2] = 1;
  SetElements(weight, request->mutable_distill()->mutable_row_weight());
  EXPECT_TRUE(std::isnan(Get(op, "loss")[0]));
}

TEST_F(DistillTest, AClampStopsTheGradientAndKeepsNan) {
  const std::string base = "divergence=REVERSE_KL temperature=2 temperature_squared=true";
  const auto plain = Get(Distill("teacher_logits", base), "row_loss");
  const v1::Op clamped = Distill("teacher_logits", base + " token_loss_min=0.4 token_loss_max=0.7");
  const auto loss = Get(clamped, "row_loss");
  const auto grad = Get(clamped, "grad_hidden");
  int outside = 0;
  for (size_t i = 0; i < 7; ++i) {
    // The clamps come before the square of the temperature.
    const double want = 4 * std::min(std::max(plain[i] / 4, 0.4), 0.7);
    EXPECT_NEAR(loss[i], want, 1e-5);
    const bool out = plain[i] / 4 < 0.4 || plain[i] / 4 > 0.7;
    outside += out ? 1 : 0;
    double norm = 0;
    for (size_t j = 0; j < 5; ++j) norm += std::fabs(grad[i * 5 + j]);
    EXPECT_EQ(norm == 0, out) << "row " << i;
  }
  EXPECT_GT(outside, 0);
  EXPECT_LT(outside, 7);
  v1::Op nan = clamped;
  std::vector<double> teacher(77, NAN);
  SetElements(teacher,
              nan.mutable_linear_distill_loss()->mutable_teacher()->mutable_teacher_logits());
  EXPECT_TRUE(std::isnan(Get(nan, "loss")[0]));
}

TEST_F(DistillTest, OneIdInTheWholeVocabulary) {
  builder_.dims["V"] = 1;
  builder_.dims["TeacherV"] = 1;
  for (const std::string divergence : kDivergences) {
    const v1::Op op = Distill("teacher_logits target", divergence + " hard_weight=1");
    EXPECT_EQ(Get(op, "loss"), std::vector<double>{0}) << divergence;
    EXPECT_EQ(Get(op, "grad_hidden"), std::vector<double>(35, 0)) << divergence;
  }
}

TEST_F(DistillTest, SumsAreNanForADegenerateStudentAndTheRowIsCounted) {
  v1::Op op = Distill("teacher_logits bias", "divergence=JSD beta=0.5", "loss");
  std::vector<double> bias(11, -kInfinity);
  SetElements(bias, op.mutable_linear_distill_loss()->mutable_linear()->mutable_bias());
  const auto reply = runner_.Run(op);
  ASSERT_OK(reply);
  EXPECT_EQ(reply->degenerate_rows(), 7);
  EXPECT_TRUE(std::isnan(Elements(reply->outputs().at("loss"))[0]));
}

TEST_F(DistillTest, ANegativeProbabilityNamesItsRow) {
  v1::Op op = Build("KlDivergence", "mask", "student_kind=LOGPROBS teacher_kind=PROBS", "loss");
  v1::DistributionPair* pair = op.mutable_kl_divergence()->mutable_pair();
  std::vector<double> teacher = Elements(pair->teacher());
  teacher[11 + 4] = -0.1;  // a masked row
  SetElements(teacher, pair->mutable_teacher());
  EXPECT_OK(runner_.Run(op));
  teacher[5 * 11 + 10] = -0.1;
  SetElements(teacher, pair->mutable_teacher());
  const auto reply = runner_.Run(op);
  EXPECT_EQ(Refusal(reply), "INVALID_ARGUMENT teacher");
  EXPECT_EQ(GetErrorDetail(reply.status())->row(), 5);
  // Beyond the valid columns it is nothing.
  pair->set_valid_vocab(10);
  EXPECT_OK(runner_.Run(op));
}

TEST_F(DistillTest, GradientsOfHalfTypesAreRoundedOnce) {
  for (const v1::DType dtype : {v1::BF16, v1::F16}) {
    v1::Op op = Build("JensenShannon", "", "student_kind=LOGITS teacher_kind=LOGITS beta=0.3",
                      "grad_student");
    const auto exact = Get(op, "grad_student");
    op.mutable_jensen_shannon()->mutable_outputs()->mutable_grad_student()->set_dtype(dtype);
    const auto rounded = Get(op, "grad_student");
    const double step = dtype == v1::BF16 ? 1.0 / 256 : 1.0 / 2048;
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_NEAR(rounded[i], exact[i], step * std::fabs(exact[i]) + 6e-8);
    }
  }
}

}  // namespace
}  // namespace lossd
