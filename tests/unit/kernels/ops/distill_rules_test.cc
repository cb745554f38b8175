// The rules between the fields of a distillation: a legal request of each kind, and each way to break it by one field.
#include "kernels/ops/distill_rules.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

const char kLogits[] = "teacher {teacher_logits {}} distill {divergence: DIVERGENCE_FORWARD_KL} ";
const char kHead[] =
    "teacher {teacher_hidden {} teacher_weight {}} distill {divergence: DIVERGENCE_FORWARD_KL} ";
const char kTopk[] =
    "teacher {teacher_topk_ids {} teacher_topk_logprob {} tail: TOPK_TAIL_DROP} "
    "distill {divergence: DIVERGENCE_FORWARD_KL} ";

// K = 8 for the student, teacher_vocab rows for the teacher.
Dims MakeDims(int64_t teacher_vocab) {
  Dims dims;
  dims.Set("N", 3);
  dims.Set("V", 8);
  dims.Set("H", 4);
  dims.Set("TeacherV", teacher_vocab);
  dims.Set("TeacherH", 5);
  dims.Set("K", 3);
  return dims;
}

std::string Check(const std::string& text, int64_t teacher_vocab) {
  v1::LinearDistillLoss request;
  // Merged: a message that is named twice is one.
  if (!google::protobuf::TextFormat::MergeFromString(text, &request)) return "not parsed: " + text;
  return Refusal(CheckDistill(request, MakeDims(teacher_vocab)));
}

struct Case {
  std::string text;
  std::string field;  // empty: legal
};

void Expect(const std::vector<Case>& cases, int64_t teacher_vocab = 8) {
  for (const Case& c : cases) {
    EXPECT_EQ(Check(c.text, teacher_vocab), c.field.empty() ? "OK" : "INVALID_ARGUMENT " + c.field)
        << c.text;
  }
}

TEST(DistillRulesTest, ExactlyOneWholeTeacher) {
  const std::string forward = "distill {divergence: DIVERGENCE_FORWARD_KL}";
  Expect({
      {kLogits, ""},
      {kHead, ""},
      {kTopk, ""},
      {std::string(kHead) + "teacher {teacher_bias {}}", ""},
      {forward, "teacher_hidden"},
      {forward + "teacher {teacher_hidden {}}", "teacher_weight"},
      {forward + "teacher {teacher_weight {}}", "teacher_hidden"},
      {forward + "teacher {teacher_bias {}}", "teacher_hidden"},
      {forward + "teacher {teacher_topk_ids {} tail: TOPK_TAIL_DROP}", "teacher_topk_logprob"},
      {forward + "teacher {teacher_topk_logprob {} tail: TOPK_TAIL_DROP}", "teacher_topk_ids"},
      {std::string(kHead) + "teacher {teacher_logits {}}", "teacher_hidden"},
      {std::string(kTopk) + "teacher {teacher_logits {}}", "teacher_topk_ids"},
      {std::string(kLogits) + "teacher {teacher_bias {}}", "teacher_hidden"},
  });
}

TEST(DistillRulesTest, WhatBelongsToATeacherOfOneForm) {
  const std::string logits = kLogits;
  const std::string topk = kTopk;
  Expect({
      {logits + "teacher {teacher_logit_scale: 2 teacher_softcap: 30 teacher_valid_vocab: 8 "
                "vocab_mismatch: VOCAB_MISMATCH_COMMON}",
       ""},
      {logits + "teacher {teacher_logit_scale: 1e-60}", "teacher_logit_scale"},
      {logits + "teacher {teacher_softcap: 1e-60}", "teacher_softcap"},
      {logits + "teacher {tail: TOPK_TAIL_DROP}", "tail"},
      {logits + "teacher {teacher_topk_tempered: true}", "teacher_topk_tempered"},
      {logits + "teacher {outside_logprob: -5}", "outside_logprob"},
      {logits + "teacher {logprob_floor: -5}", "logprob_floor"},
      {logits + "outputs {student_mass {}}", "student_mass"},
      {logits + "outputs {teacher_mass {}}", "teacher_mass"},
      {logits + "outputs {overlap {}}", "overlap"},
      {topk + "outputs {student_mass {} teacher_mass {} overlap {}}", ""},
      {topk + "teacher {teacher_logit_scale: 2}", "teacher_logit_scale"},
      {topk + "teacher {teacher_softcap: 2}", "teacher_softcap"},
      {topk + "teacher {teacher_valid_vocab: 8}", "teacher_valid_vocab"},
      {topk + "teacher {vocab_mismatch: VOCAB_MISMATCH_REFUSE}", "vocab_mismatch"},
      {"teacher {teacher_topk_ids {} teacher_topk_logprob {}} "
       "distill {divergence: DIVERGENCE_FORWARD_KL}",
       "tail"},
  });
}

TEST(DistillRulesTest, Tails) {
  const std::string ids = "teacher {teacher_topk_ids {} teacher_topk_logprob {} ";
  const std::string forward = "} distill {divergence: DIVERGENCE_FORWARD_KL}";
  const std::string reverse = "} distill {divergence: DIVERGENCE_REVERSE_KL}";
  const std::string mixed = "} distill {divergence: DIVERGENCE_MIXED mix_weight: 0.5}";
  Expect({
      {ids + "tail: TOPK_TAIL_DROP logprob_floor: -10" + forward, ""},
      {ids + "tail: TOPK_TAIL_GHOST logprob_floor: -10" + forward, "logprob_floor"},
      {ids + "tail: TOPK_TAIL_RENORMALISE teacher_topk_tempered: false" + forward, ""},
      {ids + "tail: TOPK_TAIL_ZERO_OUTSIDE teacher_topk_tempered: false" + forward, ""},
      {ids + "tail: TOPK_TAIL_DROP teacher_topk_tempered: false" + forward,
       "teacher_topk_tempered"},
      {ids + "tail: TOPK_TAIL_GHOST teacher_topk_tempered: false" + forward,
       "teacher_topk_tempered"},
      {ids + "tail: TOPK_TAIL_ZERO_OUTSIDE outside_logprob: -50" + reverse, ""},
      {ids + "tail: TOPK_TAIL_ZERO_OUTSIDE outside_logprob: -50" + mixed, ""},
      {ids + "tail: TOPK_TAIL_ZERO_OUTSIDE outside_logprob: -50" + forward, "outside_logprob"},
      {ids + "tail: TOPK_TAIL_DROP outside_logprob: -50" + reverse, "outside_logprob"},
      {ids + "tail: TOPK_TAIL_ZERO_OUTSIDE} distill {divergence: DIVERGENCE_JSD beta: 1}", "beta"},
      {ids + "tail: TOPK_TAIL_ZERO_OUTSIDE} distill {divergence: DIVERGENCE_JSD beta: 0.9}", ""},
      {ids + "tail: TOPK_TAIL_DROP} distill {divergence: DIVERGENCE_COSINE}", "divergence"},
  });
}

TEST(DistillRulesTest, WeightsOfTheDivergenceAndOfTheTerms) {
  const std::string logits = "teacher {teacher_logits {}} ";
  Expect({
      {logits + "distill {divergence: DIVERGENCE_JSD beta: 0}", ""},
      {logits + "distill {divergence: DIVERGENCE_JSD}", "beta"},
      {logits + "distill {divergence: DIVERGENCE_REVERSE_KL beta: 0.5}", "beta"},
      {logits + "distill {divergence: DIVERGENCE_MIXED mix_weight: 1}", ""},
      {logits + "distill {divergence: DIVERGENCE_MIXED}", "mix_weight"},
      {logits + "distill {divergence: DIVERGENCE_TVD mix_weight: 0.5}", "mix_weight"},
      {std::string(kLogits) + "distill {hard_weight: 0.5}", "target"},
      {std::string(kLogits) + "distill {hard_weight: 0.5} head {target {}}", ""},
      {std::string(kLogits) + "distill {hard_weight: 0}", ""},
      {std::string(kLogits) + "outputs {logprob {}}", "target"},
      {std::string(kLogits) + "distill {token_loss_min: 2 token_loss_max: 1}", "token_loss_min"},
      {std::string(kLogits) + "distill {token_loss_min: 1 token_loss_max: 1}", ""},
  });
}

TEST(DistillRulesTest, VocabulariesThatDiffer) {
  const std::string common = "teacher {teacher_logits {} vocab_mismatch: VOCAB_MISMATCH_COMMON} ";
  const std::string to_student =
      "teacher {teacher_logits {} vocab_mismatch: VOCAB_MISMATCH_TEACHER_TO_STUDENT} ";
  const std::string forward = "distill {divergence: DIVERGENCE_FORWARD_KL}";
  for (const int64_t teacher : {6, 10}) {
    const bool fewer = teacher < 8;
    const std::string infinite = fewer ? "vocab_mismatch" : "";
    Expect({{kLogits, "teacher_valid_vocab"},
            {common + forward, ""},
            {common + "distill {divergence: DIVERGENCE_REVERSE_KL}", ""},
            {common + "distill {divergence: DIVERGENCE_COSINE}", ""},
            {to_student + forward, ""},
            {to_student + "distill {divergence: DIVERGENCE_TVD}", ""},
            {to_student + "distill {divergence: DIVERGENCE_REVERSE_KL}", infinite},
            {to_student + "distill {divergence: DIVERGENCE_MIXED mix_weight: 0.9}", infinite},
            {to_student + "distill {divergence: DIVERGENCE_MIXED mix_weight: 1}", ""},
            {to_student + "distill {divergence: DIVERGENCE_JSD beta: 0.9}", ""},
            {to_student + "distill {divergence: DIVERGENCE_JSD beta: 1}", infinite},
            {to_student + "distill {divergence: DIVERGENCE_COSINE}", "vocab_mismatch"}},
           teacher);
  }
  const std::string valid = "teacher {teacher_logits {} teacher_valid_vocab: ";
  Expect({{valid + "8} " + forward, ""},
          {valid + "11} " + forward, "teacher_valid_vocab"},
          {valid + "7} " + forward, "teacher_valid_vocab"},
          {valid + "7} head {valid_vocab: 7} " + forward, ""}},
         10);
  Expect({{kLogits, "teacher_logits"}, {kHead, "teacher_weight"}}, 0);
}

TEST(DistillRulesTest, IdsThatCountOnEachSide) {
  v1::LinearDistillLoss request;
  request.mutable_teacher()->mutable_teacher_logits();
  const auto expect = [&](int64_t rows, int64_t student, int64_t teacher, int64_t common) {
    const DistillVocabulary got = VocabularyOf(request, MakeDims(rows));
    EXPECT_EQ(got.student, student);
    EXPECT_EQ(got.teacher, teacher);
    EXPECT_EQ(got.common, common);
  };
  request.mutable_teacher()->set_vocab_mismatch(v1::VOCAB_MISMATCH_TEACHER_TO_STUDENT);
  expect(6, 8, 6, 8);
  expect(12, 8, 8, 8);
  request.mutable_teacher()->set_vocab_mismatch(v1::VOCAB_MISMATCH_COMMON);
  expect(6, 8, 6, 6);
  request.mutable_teacher()->set_teacher_valid_vocab(5);
  expect(6, 8, 5, 5);
}

}  // namespace
}  // namespace lossd
