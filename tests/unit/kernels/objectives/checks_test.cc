#include "kernels/objectives/checks.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/objectives/team.h"

namespace lossd {
namespace {

const float kNan = std::nanf("");

template <class T>
RowsView View(std::vector<T>* values, DType dtype, int64_t width = 1) {
  RowsView view;
  view.present = true;
  view.data = values->data();
  view.dtype = dtype;
  view.width = width;
  view.rows = static_cast<int64_t>(values->size()) / width;
  view.lead_shape[0] = view.rows;
  view.lead_strides[0] = width;
  return view;
}

class ChecksTest : public testing::Test {
 protected:
  // The first wrong row, -1 if there is none; what it says of the field is checked here.
  int64_t WrongRow(ElementCheck check) {
    check.field = 7;
    ElementCheckStage stage;
    EXPECT_TRUE(stage.Add(check));
    stage.rows = static_cast<int64_t>(counted_.size());
    stage.counted = counted_.data();
    stage.count = &count_;
    ResultRecord record;
    stage.record = &record;
    SerialTeam team;
    stage.Run(team, 0);
    EXPECT_EQ(record.code, record.row >= 0 ? kInvalidArgumentCode : 0);
    EXPECT_EQ(record.field, record.row >= 0 ? 7 : 0);
    return record.row;
  }

  std::vector<uint8_t> counted_ = {1, 0, 1, 1};
  int64_t count_ = 3;
};

TEST_F(ChecksTest, Index) {
  std::vector<int64_t> target = {0, 1000000000, 4, 2};
  ElementCheck check;
  check.rule = ElementRule::kIndex;
  check.high = 5;
  check.view = View(&target, DType::kI64);
  EXPECT_EQ(WrongRow(check), -1);
  target[2] = 5;
  EXPECT_EQ(WrongRow(check), 2);
  target[2] = -1;
  EXPECT_EQ(WrongRow(check), 2);
  check.padding = true;
  EXPECT_EQ(WrongRow(check), -1);
  target[3] = -2;
  EXPECT_EQ(WrongRow(check), 3);
  target[0] = -100;
  EXPECT_EQ(WrongRow(check), 0) << "the first wrong row is named";
}

TEST_F(ChecksTest, EveryColumn) {
  std::vector<int32_t> ids = {0, 1, 99, 99, 2, 3, 4, 9};
  ElementCheck check;
  check.rule = ElementRule::kIndex;
  check.high = 5;
  check.view = View(&ids, DType::kI32, 2);
  EXPECT_EQ(WrongRow(check), 3);
}

TEST_F(ChecksTest, Reals) {
  std::vector<float> values = {1, kNan, 0, -1};
  ElementCheck check;
  check.view = View(&values, DType::kF32);
  check.rule = ElementRule::kFinite;
  EXPECT_EQ(WrongRow(check), -1);
  check.rule = ElementRule::kAtLeast;
  EXPECT_EQ(WrongRow(check), 3);
  check.rule = ElementRule::kAbove;
  EXPECT_EQ(WrongRow(check), 2);
  values[0] = std::numeric_limits<float>::infinity();
  for (const ElementRule rule :
       {ElementRule::kFinite, ElementRule::kAtLeast, ElementRule::kAbove}) {
    check.rule = rule;
    EXPECT_EQ(WrongRow(check), 0);
  }
}

TEST_F(ChecksTest, SharedElementsCountAsSoonAsARowDoes) {
  std::vector<float> weights = {1, 1, 1, 1, 1, kNan};
  ElementCheck check;
  check.view = View(&weights, DType::kF32);
  check.shared = true;
  EXPECT_EQ(WrongRow(check), 5);
  count_ = 0;
  EXPECT_EQ(WrongRow(check), -1);
}

// Whoever looks at which rows: the least number is the first check that fails, and its first row.
TEST_F(ChecksTest, PartsFindTheFirstError) {
  std::vector<float> first = {1, kNan, 1, kNan};  // row 1 does not count
  std::vector<float> second = {kNan, 1, 1, 1};
  std::vector<float> shared = {kNan};
  ElementCheckStage stage;
  stage.rows = 4;
  ElementCheck check;
  for (std::vector<float>* values : {&first, &second}) {
    check.view = View(values, DType::kF32);
    EXPECT_TRUE(stage.Add(check));
  }
  check.view = View(&shared, DType::kF32);
  check.shared = true;
  EXPECT_TRUE(stage.Add(check));
  const auto is_counted = [this](int64_t i) { return counted_[i] != 0; };
  FoundErrors all;
  for (const int64_t part : {2, 0, 1}) {
    FoundErrors found;
    stage.Find(part, 3, is_counted, &found);
    EXPECT_EQ(found.if_any_counts, part == 0 ? ErrorKey(2, 0) : kNoError) << "a [1] input";
    KeepLeast(found.certain, &all.certain);
    KeepLeast(found.if_any_counts, &all.if_any_counts);
  }
  EXPECT_EQ(CheckOf(all.First(3)), 0);
  EXPECT_EQ(RowOf(all.First(3)), 3);
  first[3] = 1;
  FoundErrors found;
  stage.Find(0, 1, is_counted, &found);
  EXPECT_EQ(found.First(3), ErrorKey(1, 0));
  second[0] = 1;
  found = FoundErrors();
  stage.Find(0, 1, is_counted, &found);
  EXPECT_EQ(found.First(3), ErrorKey(2, 0));
  EXPECT_EQ(found.First(0), kNoError) << "nobody uses it";
}

TEST_F(ChecksTest, TheFirstErrorStays) {
  ResultRecord record;
  RecordError(&record, 1, 10);
  RecordError(&record, 2, 3);
  EXPECT_EQ(record.field, 1);
  EXPECT_EQ(record.row, 10);
}

ResultRecord RunSequences(std::vector<int64_t> cu_seqlens, std::vector<float> weights = {}) {
  std::vector<uint8_t> counted = {1, 1, 0, 0, 1};
  SequenceCheckStage stage;
  stage.cu_seqlens = View(&cu_seqlens, DType::kI64);
  stage.field = 4;
  stage.sequences = static_cast<int64_t>(cu_seqlens.size()) - 1;
  stage.rows = 5;
  stage.counted = counted.data();
  ElementCheck check;
  check.view = View(&weights, DType::kF32);
  check.field = 9;
  check.view.present = !weights.empty();
  EXPECT_TRUE(stage.Add(check));
  ResultRecord record;
  stage.record = &record;
  SerialTeam team;
  stage.Run(team, 0);
  return record;
}

TEST(SequenceCheckTest, CuSeqlens) {
  EXPECT_EQ(RunSequences({0, 2, 2, 5}).code, 0);
  EXPECT_EQ(RunSequences({0, 5}).code, 0);
  EXPECT_EQ(RunSequences({1, 2, 5}).row, 0);
  EXPECT_EQ(RunSequences({0, 3, 2, 5}).row, 2);
  EXPECT_EQ(RunSequences({0, 2, 4}).row, 2);
  EXPECT_EQ(RunSequences({0, 9, 5}).row, 1) << "beyond the rows";
  EXPECT_EQ(RunSequences({0}).row, 0) << "no sequence holds the rows";
  EXPECT_EQ(RunSequences({0, 2, 4}).field, 4);
}

TEST(SequenceCheckTest, BoundsComeFirstAndAreNoAddresses) {
  const ResultRecord record = RunSequences({-7, int64_t{1} << 40, 5}, {kNan, kNan});
  EXPECT_EQ(record.field, 4);
  EXPECT_EQ(record.row, 0);
}

TEST(SequenceCheckTest, OnlySequencesWithRowsThatCount) {
  EXPECT_EQ(RunSequences({0, 2, 4, 5}, {1, kNan, 1}).code, 0);
  EXPECT_EQ(RunSequences({0, 2, 4, 5}, {1, 1, kNan}).row, 2);
  EXPECT_EQ(RunSequences({0, 2, 4, 5}, {1, 1, kNan}).field, 9);
}

TEST(FillTest, OnlyRowsThatDoNotCount) {
  std::vector<uint8_t> counted = {1, 0, 1};
  std::vector<float> reals = {9, 9, 9};
  std::vector<int32_t> ids = {9, 9, 9, 9, 9, 9};
  std::vector<uint16_t> halves = {9, 9, 9};
  std::vector<uint8_t> marks = {9, 9, 9};
  std::vector<float> stats(27, 9);
  const ResultRecord record;
  FillStage fill;
  fill.record = &record;
  fill.rows = 3;
  fill.counted = counted.data();
  EXPECT_TRUE(fill.Add(View(&reals, DType::kF32), Fill::kZero));
  EXPECT_TRUE(fill.Add(View(&ids, DType::kI32, 2), Fill::kMinusOne));
  EXPECT_TRUE(fill.Add(View(&halves, DType::kBF16), Fill::kZero));
  EXPECT_TRUE(fill.Add(View(&marks, DType::kU8), Fill::kZero));
  EXPECT_TRUE(fill.Add(View(&stats, DType::kF32, 9), Fill::kVocabStats));
  EXPECT_TRUE(fill.Add(RowsView(), Fill::kZero));
  ASSERT_EQ(fill.Instances(), 1);
  SerialTeam team;
  fill.Run(team, 0);
  EXPECT_EQ(reals, (std::vector<float>{9, 0, 9}));
  EXPECT_EQ(ids, (std::vector<int32_t>{9, 9, -1, -1, 9, 9}));
  EXPECT_EQ(halves, (std::vector<uint16_t>{9, 0, 9}));
  EXPECT_EQ(marks, (std::vector<uint8_t>{9, 0, 9}));
  for (int j = 0; j < 27; ++j) EXPECT_EQ(stats[j], j < 9 || j > 17 ? 9 : j == 17 ? -1 : 0) << j;
}

TEST(FillTest, OneRow) {
  std::vector<float> reals = {9, 9, 9};
  std::vector<int32_t> ids = {9, 9, 9, 9, 9, 9};
  FillStage fill;
  EXPECT_TRUE(fill.Add(View(&reals, DType::kF32), Fill::kZero));
  EXPECT_TRUE(fill.Add(View(&ids, DType::kI32, 2), Fill::kMinusOne));
  fill.FillRow(1);
  EXPECT_EQ(reals, (std::vector<float>{9, 0, 9}));
  EXPECT_EQ(ids, (std::vector<int32_t>{9, 9, -1, -1, 9, 9}));
}

TEST(FillTest, WideRowsAndSeveralInstances) {
  const int64_t rows = FillStage::kRows + 3;
  std::vector<uint8_t> counted(rows, 1);
  counted[1] = counted[rows - 1] = 0;
  std::vector<float> wide(rows * FillStage::kWide, 9);
  const ResultRecord record;
  FillStage fill;
  fill.record = &record;
  fill.rows = rows;
  fill.counted = counted.data();
  EXPECT_TRUE(fill.Add(View(&wide, DType::kF32, FillStage::kWide), Fill::kZero));
  ASSERT_EQ(fill.Instances(), 2);
  SerialTeam team;
  fill.Run(team, 0);
  fill.Run(team, 1);
  for (int64_t i = 0; i < rows * FillStage::kWide; ++i) {
    ASSERT_EQ(wide[i], counted[i / FillStage::kWide] != 0 ? 9 : 0) << i;
  }
}

}  // namespace
}  // namespace lossd
