// Stages of the preference losses on small arrays: sums and lengths, sorted terms, the likelihood term's rows, derivatives of the whole
// course against central differences, several threads in a team.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/objectives/preference.h"
#include "kernels/objectives/sequence_stages.h"
#include "kernels/objectives/team.h"
#include "tests/testing/thread_team.h"

namespace lossd {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
RowsView View(std::vector<T>* values, DType dtype) {
  RowsView view;
  view.data = values->data();
  view.dtype = dtype;
  view.rows = static_cast<int64_t>(values->size());
  view.lead_shape[0] = view.rows;
  view.lead_strides[0] = 1;
  view.present = true;
  return view;
}

// A call from given log-probabilities: lengths of the sequences, then random rows of which some do not count.
struct Call {
  std::vector<int64_t> cu_seqlens = {0};
  std::vector<uint8_t> mask;
  std::vector<uint8_t> nll_mask;
  std::vector<uint8_t> read;  // rows that are read
  std::vector<float> lp;
  std::vector<float> reference;
  std::vector<float> log_sum_p2;
  std::vector<float> pair_weight;
  std::vector<float> d_loss = {1};
  std::vector<float> loss = {-77};
  std::vector<float> d_logprob;
  std::vector<float> pair_loss;
  std::vector<SequenceFacts> facts;
  std::vector<GroupFacts> group;
  std::vector<double> wpo_mean;
  std::vector<double> keys;
  std::vector<int32_t> rank;
  std::vector<int32_t> order;
  std::vector<float> values;
  std::vector<uint64_t> population;
  SequenceTotals totals;
  ResultRecord record;
  PreferenceProblem problem;
  int threads = 1;
  bool by_masks = false;  // the masks say which rows count

  explicit Call(const std::vector<int64_t>& lengths, double kept = 0.8, int seed = 1) {
    for (const int64_t length : lengths) cu_seqlens.push_back(cu_seqlens.back() + length);
    const auto rows = static_cast<size_t>(cu_seqlens.back());
    const int64_t pairs = static_cast<int64_t>(lengths.size()) / 2;
    std::mt19937 random(seed);
    // Multiples of 1/64, so that steps of the differences are exact.
    std::uniform_int_distribution<int> any(-200, -4);
    std::uniform_real_distribution<double> unit;
    for (size_t i = 0; i < rows; ++i) {
      mask.push_back(unit(random) < kept ? 1 : 0);
      lp.push_back(static_cast<float>(any(random)) / 64);
      reference.push_back(static_cast<float>(any(random)) / 64);
      log_sum_p2.push_back(static_cast<float>(any(random)) / 64);
    }
    nll_mask = std::vector<uint8_t>(rows, 1);
    read = mask;
    d_logprob = std::vector<float>(rows, 0);
    pair_loss = std::vector<float>(pairs, -77);
    facts.resize(2 * pairs);
    group.resize(pairs);
    wpo_mean.resize(2 * pairs);
    for (int64_t k = 0; k < pairs; ++k) pair_weight.push_back(0.5f + static_cast<float>(k) / 4);
    values.resize(kPreferenceMetrics * pairs);
    population.resize(pairs);
    problem.options.term_count = 1;
    problem.options.terms[0].beta = 0.5;
    SequenceProblem& s = problem.sequences;
    s.rows = static_cast<int64_t>(rows);
    s.sequences = 2 * pairs;
    s.groups = pairs;
  }

  void Point() {
    SequenceProblem& s = problem.sequences;
    s.cu_seqlens = View(&cu_seqlens, DType::kI64);
    s.mask = View(&mask, DType::kU8);
    s.given_logprob = View(&lp, DType::kF32);
    s.ref_logprob = View(&reference, DType::kF32);
    s.d_loss = View(&d_loss, DType::kF32);
    s.loss = View(&loss, DType::kF32);
    s.d_logprob = View(&d_logprob, DType::kF32);
    s.counted = by_masks ? nullptr : read.data();
    s.facts = facts.data();
    s.group = group.data();
    s.totals = &totals;
    s.group_metrics = {values.data(), population.data(), s.groups, kPreferenceMetrics};
    s.record = &record;
    problem.pair_loss = View(&pair_loss, DType::kF32);
    problem.wpo_mean = wpo_mean.data();
    problem.log_sum_p2 = View(&log_sum_p2, DType::kF32);
    int32_t lists = 0;
    for (int t = 0; t < problem.options.term_count; ++t) {
      lists += IsSorted(problem.options.terms[t].type) ? 2 : 0;
    }
    keys.resize(lists * s.groups);
    rank.resize(lists * s.groups);
    order.resize(lists * s.groups);
    problem.sorted = {lists, keys.data(), rank.data(), order.data()};
  }

  template <class Stage>
  void RunStage(const Stage& stage) {
    if (threads > 1) return RunByThreads(stage, stage.Instances(), threads);
    for (int64_t i = 0; i < stage.Instances(); ++i) {
      SerialTeam team;
      stage.Run(team, i);
    }
  }

  // The course of the operation. Returns the loss before its rounding.
  double Run() {
    Point();
    RunStage(PreferencePairStage{problem});
    if (problem.sorted.lists > 0) {
      PreferenceRankStage ranks;
      ranks.sorted = problem.sorted;
      ranks.pairs = problem.Pairs();
      ranks.record = &record;
      RunStage(ranks);
      RunStage(PreferenceValueStage{problem});
    }
    RunStage(SequenceTotalsStage{problem.sequences});
    RunStage(SequenceRowStage{problem.sequences});
    RunStage(SequenceEndStage{problem.sequences});
    return totals.loss;
  }

  void ExpectDerivatives() {
    Run();
    const std::vector<float> got = d_logprob;
    const std::vector<float> base = lp;
    const double scale = d_loss[0];
    const float step = 1.0f / 1024;
    double norm = 0;
    for (size_t i = 0; i < lp.size(); ++i) {
      double value[2];
      for (const int sign : {0, 1}) {
        lp[i] = base[i] + (sign == 0 ? -step : step);
        value[sign] = Run();
      }
      lp[i] = base[i];
      const double want = scale * (value[1] - value[0]) / (2 * step);
      EXPECT_NEAR(got[i], want, 2e-5 * (1 + std::fabs(want))) << "row " << i;
      norm += want * want;
    }
    EXPECT_GT(norm, 0) << "derivatives of 0 prove nothing";
    Run();
  }
};

const std::vector<int64_t> kLengths = {3, 0, 5, 4, 7, 1, 2, 6};

TEST(PreferenceStagesTest, DerivativesOfTheWholeCourse) {
  const std::vector<std::function<void(Call*)>> changes = {
      [](Call*) {},
      [](Call* c) { c->problem.options.pairing = Pairing::kInterleaved; },
      [](Call* c) { c->problem.sequences.ld_alpha = 0.3; },
      [](Call* c) { c->problem.sequences.ld_alpha = 0; },
      [](Call* c) { c->problem.options.terms[0].length_average = true; },
      [](Call* c) { c->problem.sequences.group_weight = View(&c->pair_weight, DType::kF32); },
      [](Call* c) { c->problem.sequences.nll_coef = 0.7; },
      [](Call* c) {
        c->problem.sequences.nll_coef = 0.7;
        c->problem.sequences.nll_denominator_from = CountDenominator::kCount;
        c->d_loss[0] = 1.5f;
        c->problem.sequences.nll_mask = View(&c->nll_mask, DType::kU8);
        std::fill(c->read.begin(), c->read.end(), 1);
      },
      [](Call* c) { c->problem.sequences.denominator = 3; },
      [](Call* c) { c->problem.sequences.denominator_from = CountDenominator::kCount; },
      [](Call* c) { c->d_loss[0] = -2.5f; },
      [](Call* c) {
        c->problem.options.term_count = 3;
        c->problem.options.terms[1] = {PreferenceType::kIpo, true, 0.3, 0.4};
        c->problem.options.terms[2] = {PreferenceType::kApoZero, false, -1.5, 0.9};
      },
      [](Call* c) { c->problem.options.terms[0].type = PreferenceType::kAot; },
      [](Call* c) { c->problem.options.terms[0].type = PreferenceType::kAotUnpaired; },
      [](Call* c) {
        c->problem.options.term_count = 3;
        c->problem.options.terms[1] = {PreferenceType::kAot, true, 0.3, 0.4};
        c->problem.options.terms[2] = {PreferenceType::kAotUnpaired, true, 1.5, 0.9};
        c->problem.sequences.ld_alpha = 0.5;
      },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE("change " + std::to_string(i));
    Call plain(kLengths);
    const double before = plain.Run();
    Call changed(kLengths);
    changes[i](&changed);
    changed.ExpectDerivatives();
    const bool differs = changed.totals.loss != before || changed.d_logprob != plain.d_logprob;
    EXPECT_EQ(differs, i > 0);
  }
}

// As a GPU does it in one launch, where no array says which rows count.
TEST(PreferenceStagesTest, MasksGiveTheBitsOfAnArray) {
  for (const bool likelihood : {false, true}) {
    Call array(kLengths, 0.5);
    Call masks(kLengths, 0.5);
    for (Call* call : {&array, &masks}) {
      call->problem.sequences.nll_coef = likelihood ? 0.7 : 0;
      for (size_t i = 0; i < call->nll_mask.size(); i += 3) call->nll_mask[i] = 0;
      call->d_logprob.assign(call->lp.size(), -77);
      call->Point();
      if (likelihood) call->problem.sequences.nll_mask = View(&call->nll_mask, DType::kU8);
    }
    if (likelihood) {
      NllMaskStage nll;
      nll.rows = array.problem.sequences.rows;
      nll.pairs = array.problem.Pairs();
      nll.pairing = array.problem.options.pairing;
      nll.cu_seqlens = View(&array.cu_seqlens, DType::kI64);
      nll.mask = View(&array.mask, DType::kU8);
      nll.nll_mask = View(&array.nll_mask, DType::kU8);
      nll.read = array.read.data();
      array.RunStage(nll);
      EXPECT_NE(array.read, array.mask);
    }
    masks.by_masks = true;
    array.Run();
    masks.Run();
    EXPECT_EQ(array.totals.loss, masks.totals.loss);
    EXPECT_EQ(array.totals.nll_count, masks.totals.nll_count);
    EXPECT_EQ(array.d_logprob, masks.d_logprob);
    EXPECT_EQ(array.record.count, masks.record.count);
  }
}

// The course with one thread and with several; sums may differ in their last bits.
TEST(PreferenceStagesTest, ATeamOfThreadsGivesTheSame) {
  std::vector<int64_t> lengths = {40, 3, 0, 17, 90, 1, 33, 8};
  Call one(lengths);
  Call several(lengths);
  for (Call* call : {&one, &several}) {
    call->problem.sequences.ld_alpha = 0.5;
    call->problem.sequences.nll_coef = 0.5;
    call->problem.options.wpo = true;
    call->problem.options.term_count = 2;
    call->problem.options.terms[1] = {PreferenceType::kIpo, true, 0.3, 0.4};
  }
  several.threads = 5;
  EXPECT_NEAR(one.Run(), several.Run(), 1e-12 * std::fabs(one.totals.loss));
  for (size_t b = 0; b < one.facts.size(); ++b) {
    EXPECT_EQ(one.facts[b].length, several.facts[b].length);
    EXPECT_EQ(one.facts[b].cut, several.facts[b].cut) << b;
    EXPECT_EQ(one.facts[b].logp, several.facts[b].logp) << "sums of multiples of 1/64 are exact";
  }
  EXPECT_EQ(one.record.count, several.record.count);
  EXPECT_EQ(one.record.nll_count, several.record.nll_count);
  EXPECT_EQ(one.d_logprob, several.d_logprob);
}

TEST(PreferenceStagesTest, TheLongerSequencesTailCountsLess) {
  for (int seed = 1; seed < 20; ++seed) {
    Call call({9, 4, 5, 8}, 0.6, seed);
    call.problem.sequences.ld_alpha = 0.25;
    call.Run();
    for (int64_t k = 0; k < 2; ++k) {
      std::vector<std::vector<float>> rows(2);
      for (const int side : {0, 1}) {
        const int64_t b = k + 2 * side;
        for (int64_t i = call.cu_seqlens[b]; i < call.cu_seqlens[b + 1]; ++i) {
          if (call.mask[i] != 0) rows[side].push_back(call.lp[i]);
        }
      }
      const size_t shorter = std::min(rows[0].size(), rows[1].size());
      for (const int side : {0, 1}) {
        double want = 0;
        for (size_t t = 0; t < rows[side].size(); ++t) {
          want += (t < shorter ? 1 : 0.25) * rows[side][t];
        }
        EXPECT_EQ(call.facts[k + 2 * side].logp, want) << "seed " << seed;
      }
    }
  }
}

TEST(PreferenceStagesTest, PlacesAreThoseOfAStableSort) {
  constexpr int64_t kPairs = 700;  // three blocks
  std::mt19937 random(3);
  std::vector<double> keys(2 * kPairs);
  for (double& key : keys) key = std::floor(static_cast<double>(random() % 90)) / 8 - 5;
  keys[5] = keys[77] = keys[300] = std::nan("");
  keys[6] = -std::numeric_limits<double>::infinity();
  keys[9] = -0.0;
  std::vector<int32_t> rank(2 * kPairs, -1);
  std::vector<int32_t> order(2 * kPairs, -1);
  ResultRecord record;
  PreferenceRankStage stage;
  stage.sorted = {2, keys.data(), rank.data(), order.data()};
  stage.pairs = kPairs;
  stage.record = &record;
  EXPECT_EQ(stage.Instances(), 6);
  RunByThreads(stage, stage.Instances(), 3);
  for (int64_t list = 0; list < 2; ++list) {
    const double* of = keys.data() + list * kPairs;
    std::vector<int32_t> want(kPairs);
    std::iota(want.begin(), want.end(), 0);
    std::stable_sort(want.begin(), want.end(), [&](int32_t a, int32_t b) {
      return of[a] < of[b] || (!std::isnan(of[a]) && std::isnan(of[b]));
    });
    for (int64_t place = 0; place < kPairs; ++place) {
      EXPECT_EQ(order[list * kPairs + place], want[place]);
      EXPECT_EQ(rank[list * kPairs + want[place]], place);
    }
  }
}

TEST(PreferenceStagesTest, RowsOfTheLikelihoodAloneAreReadInChosenSequences) {
  for (const Pairing pairing : {Pairing::kHalves, Pairing::kInterleaved}) {
    Call call(kLengths, 0.5);
    for (size_t i = 0; i < call.nll_mask.size(); ++i) call.nll_mask[i] = i % 3 != 0;
    NllMaskStage stage;
    stage.rows = static_cast<int64_t>(call.mask.size());
    stage.pairs = 4;
    stage.pairing = pairing;
    stage.cu_seqlens = View(&call.cu_seqlens, DType::kI64);
    stage.mask = View(&call.mask, DType::kU8);
    stage.nll_mask = View(&call.nll_mask, DType::kU8);
    stage.read = call.read.data();
    call.RunStage(stage);
    for (int64_t b = 0; b < 8; ++b) {
      const bool chosen = pairing == Pairing::kHalves ? b < 4 : b % 2 == 0;
      for (int64_t i = call.cu_seqlens[b]; i < call.cu_seqlens[b + 1]; ++i) {
        EXPECT_EQ(call.read[i], call.mask[i] != 0 || (chosen && call.nll_mask[i] != 0)) << i;
      }
    }
  }
}

// The mask is made before cu_seqlens has been checked.
TEST(PreferenceStagesTest, TheMaskOfRowsStandsWildOffsets) {
  for (const std::vector<int64_t>& wild : std::vector<std::vector<int64_t>>{
           {0}, {5, -9, 1 << 30}, {-7, -7, -7}, {99, 99, 99, 0, -1}}) {
    std::vector<int64_t> cu_seqlens = wild;
    std::vector<uint8_t> nll_mask(11, 1);
    std::vector<uint8_t> mask(11, 0);
    std::vector<uint8_t> read(12, 77);
    NllMaskStage stage;
    stage.rows = 11;
    stage.pairs = static_cast<int64_t>(wild.size()) / 2;
    stage.cu_seqlens = View(&cu_seqlens, DType::kI64);
    stage.mask = View(&mask, DType::kU8);
    stage.nll_mask = View(&nll_mask, DType::kU8);
    stage.read = read.data();
    SerialTeam team;
    for (int64_t i = 0; i < stage.Instances(); ++i) stage.Run(team, i);
    for (int64_t i = 0; i < 11; ++i) EXPECT_LE(read[i], 1);
    EXPECT_EQ(read[11], 77);
  }
}

TEST(PreferenceStagesTest, RowsThatDoNotCountAreNotRead) {
  Call clean(kLengths, 0.6);
  Call dirty(kLengths, 0.6);
  for (Call* call : {&clean, &dirty}) {
    call->problem.sequences.nll_coef = 0.5;
    call->problem.sequences.ld_alpha = 0.5;
    call->problem.options.wpo = true;
  }
  for (size_t i = 0; i < dirty.mask.size(); ++i) {
    if (dirty.mask[i] != 0) continue;
    dirty.lp[i] = dirty.reference[i] = dirty.log_sum_p2[i] = kNan;
  }
  EXPECT_EQ(clean.Run(), dirty.Run());
  EXPECT_TRUE(std::isfinite(dirty.totals.loss));
  for (size_t i = 0; i < dirty.mask.size(); ++i) {
    EXPECT_EQ(dirty.d_logprob[i], dirty.mask[i] != 0 ? clean.d_logprob[i] : 0);
  }
}

// A row outside mask has no part in the pair, also where the likelihood reads it; a rejected one none at all.
TEST(PreferenceStagesTest, TheLikelihoodTermHasItsOwnRows) {
  Call call({4, 4});
  call.mask = {0, 0, 1, 1, 0, 0, 1, 1};
  call.nll_mask = {0, 1, 1, 0, 1, 1, 1, 1};
  call.read = {0, 1, 1, 1, 0, 0, 1, 1};
  call.problem.sequences.nll_coef = 2;
  call.problem.sequences.nll_denominator = 4;
  call.problem.sequences.nll_mask = View(&call.nll_mask, DType::kU8);
  call.Run();
  EXPECT_EQ(call.facts[0].logp, static_cast<double>(call.lp[2]) + call.lp[3]);
  EXPECT_EQ(call.totals.nll_sum, -static_cast<double>(call.lp[1]) - call.lp[2]);
  EXPECT_EQ(call.totals.nll_count, 2);
  EXPECT_EQ(call.totals.loss, call.totals.sum + 2 * call.totals.nll_sum / 4);
  EXPECT_EQ(call.d_logprob[0], 0);
  EXPECT_EQ(call.d_logprob[1], -0.5f);
  EXPECT_FLOAT_EQ(call.d_logprob[2], call.d_logprob[3] - 0.5f);
  EXPECT_EQ(call.d_logprob[4], 0);
  EXPECT_EQ(call.d_logprob[5], 0);
}

TEST(PreferenceStagesTest, APairOfWeightZeroIsPadding) {
  Call call({2, 3, 4, 2}, 1);
  call.pair_weight = {0, 1.5f};
  call.problem.sequences.group_weight = View(&call.pair_weight, DType::kF32);
  call.problem.sequences.denominator_from = CountDenominator::kCount;
  call.lp[0] = kNan;  // of pair 0
  call.Run();
  EXPECT_TRUE(std::isfinite(call.totals.loss));
  EXPECT_EQ(call.record.count, 1);
  EXPECT_EQ(call.pair_loss[0], 0);
  EXPECT_EQ(call.record.metrics[kPairLoss].count, 1);
  EXPECT_EQ(call.record.metrics[kPairLoss].sum, call.pair_loss[1]);
  for (const int64_t i : {0, 1, 5, 6, 7, 8}) EXPECT_EQ(call.d_logprob[i], 0) << i;
  EXPECT_NE(call.d_logprob[2], 0);
}

TEST(PreferenceStagesTest, EmptySidesGiveTheConstant) {
  Call call({0, 0, 0, 0});
  EXPECT_NEAR(call.Run(), 2 * std::log(2), 1e-15);
  EXPECT_EQ(call.record.count, 2);
  Call masked({2, 3}, 0);
  masked.problem.options.terms[0].length_average = true;
  EXPECT_NEAR(masked.Run(), std::log(2), 1e-15);
  EXPECT_EQ(masked.d_logprob, std::vector<float>(5, 0));
  // An element of an empty sequence is not used.
  std::vector<float> sums = {kNan, kNan};
  Call given({0, 0});
  given.Point();
  given.problem.sequences.ref_sequence_logprob = View(&sums, DType::kF32);
  given.RunStage(PreferencePairStage{given.problem});
  EXPECT_NEAR(given.group[0].value, std::log(2), 1e-15);
}

TEST(PreferenceStagesTest, TheWpoWeightIsTheProductOfBothMeans) {
  Call plain({2, 3}, 1);
  Call call({2, 3}, 1);
  call.problem.options.wpo = true;
  plain.Run();
  call.Run();
  double chosen = 0;
  double rejected = 0;
  for (int i = 0; i < 2; ++i) chosen += (call.lp[i] - call.log_sum_p2[i]) / 2.0;
  for (int i = 2; i < 5; ++i) rejected += (call.lp[i] - call.log_sum_p2[i]) / 3.0;
  const double rho = std::exp(chosen + rejected);
  EXPECT_NEAR(call.totals.loss, rho * plain.totals.loss, 1e-14);
  EXPECT_NEAR(call.record.metrics[kPairWpoWeight].sum, rho, 1e-6);
  for (int i = 0; i < 5; ++i) {
    EXPECT_NEAR(call.d_logprob[i], rho * plain.d_logprob[i], 1e-6);
  }
}

TEST(PreferenceStagesTest, UnlikelyTokensKeepAFiniteGradient) {
  Call call({2, 2}, 1);
  call.problem.options.terms[0].beta = 1;
  for (int i = 0; i < 2; ++i) call.lp[i] = -1e4f;
  call.Run();
  EXPECT_NEAR(call.totals.loss, 2e4, 10);
  EXPECT_FLOAT_EQ(call.d_logprob[0], -1);
  EXPECT_FLOAT_EQ(call.d_logprob[3], 1);
}

TEST(PreferenceStagesTest, WrongDataStopTheCourse) {
  Call call({2, 3}, 1);
  call.record.code = 3;
  call.cu_seqlens = {1 << 30, -5, 1 << 20};
  call.Run();
  EXPECT_EQ(call.loss[0], -77);
  EXPECT_EQ(call.pair_loss[0], -77);
}

}  // namespace
}  // namespace lossd
