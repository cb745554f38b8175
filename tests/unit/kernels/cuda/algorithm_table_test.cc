// Tables of algorithms: what is written is read, and what is wrong is named with its line.
#include "kernels/cuda/algorithm_table.h"

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

namespace lossd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kHead[] = "lossd algorithms 1\nlibrary cublaslt 130100\ngpu NVIDIA H200\n";
constexpr char kProduct[] =
    "logits rows=512 hidden=4096 vocab=32000 inputs=bf16 output=f32 order=any";
constexpr char kAlgorithm[] =
    "algorithm=66 tile=601 stages=36 cluster=5 split_k=1 reduction=0 swizzle=1 inner=0 custom=7";

AlgorithmLine Line(ProductKind kind, int64_t rows, int64_t vocab) {
  AlgorithmLine line;
  line.product.kind = kind;
  line.product.rows = rows;
  line.product.hidden = 4096;
  line.product.vocab = vocab;
  line.algorithm = {66, 601, 36, 5, 1, 0, 1, 0, 7};
  return line;
}

TEST(AlgorithmTableTest, ReadsWhatItWrites) {
  AlgorithmTable table("NVIDIA H200", 130100);
  AlgorithmLine logits = Line(ProductKind::kLogits, 512, 32000);
  logits.comment = "0.93 of the time";
  ASSERT_TRUE(table.Add(logits));
  AlgorithmLine fixed = Line(ProductKind::kLogits, 256, 32000);
  fixed.product.fixed_order = true;
  ASSERT_TRUE(table.Add(fixed));
  AlgorithmLine hidden = Line(ProductKind::kGradHidden, 512, 32000);
  hidden.product.output = DType::kBF16;
  ASSERT_TRUE(table.Add(hidden));
  AlgorithmLine weight = Line(ProductKind::kGradWeight, 512, 32000);
  weight.product.inputs = weight.product.output = DType::kF16;
  weight.algorithm[0] = 2147483647;
  ASSERT_TRUE(table.Add(weight));
  EXPECT_FALSE(table.Add(weight)) << "one line a product";

  const std::string text = table.ToText();
  EXPECT_THAT(text, StartsWith(kHead));
  EXPECT_THAT(text,
              HasSubstr(absl::StrCat("# 0.93 of the time\n", kProduct, " ", kAlgorithm, "\n")));
  const auto read = AlgorithmTable::Parse(text, "t");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->gpu(), "NVIDIA H200");
  EXPECT_EQ(read->library(), 130100);
  ASSERT_EQ(read->lines().size(), table.lines().size());
  for (size_t i = 0; i < table.lines().size(); ++i) {
    EXPECT_EQ(read->lines()[i].product, table.lines()[i].product) << i;
    EXPECT_EQ(read->lines()[i].algorithm, table.lines()[i].algorithm) << i;
  }
  EXPECT_EQ(read->lines()[0].number, 5) << "behind the comment";
}

TEST(AlgorithmTableTest, TakesEmptyLinesCommentsAndAnyOrderOfFields) {
  const auto table = AlgorithmTable::Parse(
      absl::StrCat(kHead, "\n# words = nothing\r\n  logits vocab=32000  rows=512\thidden=4096 ",
                   kAlgorithm, " order=any output=f32 inputs=bf16\r\n"),
      "t");
  ASSERT_TRUE(table.ok()) << table.status();
  ASSERT_EQ(table->lines().size(), 1u);
  EXPECT_EQ(table->lines()[0].product, Line(ProductKind::kLogits, 512, 32000).product);
  EXPECT_EQ(table->lines()[0].algorithm, Line(ProductKind::kLogits, 512, 32000).algorithm);
}

struct Malformed {
  std::string text;
  const char* error;
};

TEST(AlgorithmTableTest, NamesFileAndLineOfWhatIsWrong) {
  const std::string head = kHead;
  const std::string line = absl::StrCat(kProduct, " ", kAlgorithm, "\n");
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = line;
    text.replace(text.find(from), from.size(), to);
    return head + text;
  };
  const std::vector<Malformed> cases = {
      {"", "t:1: first line: must be \"lossd algorithms 1\", is absent"},
      {"\n", "t:1: first line:"},
      {std::string("\x7f"
                   "ELF\0\1",
                   6),
       "t:1: first line:"},
      {"lossd algorithms 2\n",
       "t:1: first line: must be \"lossd algorithms 1\", is lossd algorithms 2"},
      {"lossd algorithms 1\ngpu NVIDIA H200\n", "t:3: library: there is no such line"},
      {"lossd algorithms 1\nlibrary cublaslt 130100\n", "t:3: gpu: there is no such line"},
      {"lossd algorithms 1\nlibrary cudnn 9\n", "t:2: library: must be \"cublaslt VERSION\""},
      {"lossd algorithms 1\nlibrary cublaslt new\n", "t:2: library:"},
      {"lossd algorithms 1\nlibrary cublaslt -1\n", "t:2: library:"},
      {head + "gpu NVIDIA B200\n", "t:4: gpu: given twice"},
      {head + "library cublaslt 130100\n", "t:4: library: given twice"},
      {head + "products\n",
       "t:4: product: must be logits, grad_hidden or grad_weight, is products"},
      {head + "logits\n", "t:4: rows: must be an integer from 1 to 2147483648, is absent"},
      {head + kProduct + "\n",
       "t:4: algorithm: must be an integer from 0 to 2147483647, is absent"},
      {changed("rows=512", "rows"), "t:4: field: must be NAME=VALUE, is rows"},
      {changed("rows=512", "rows=512 rows=512"), "t:4: rows: must be given once, is given twice"},
      {changed("rows=512", "rows=0"), "t:4: rows: must be an integer from 1 "},
      {changed("rows=512", "rows=5e2"), "t:4: rows: must be an integer from 1 "},
      {changed("hidden=4096", "hidden=-1"), "t:4: hidden:"},
      {changed("vocab=32000", "vocab=99999999999999999999"), "t:4: vocab:"},
      {changed("inputs=bf16", "inputs=bf8"), "t:4: inputs: must be f32, bf16 or f16, is bf8"},
      {changed("inputs=bf16", "inputs=i32"), "t:4: inputs:"},
      {changed("output=f32", "output=f16"),
       "t:4: output: must be f32 or the type of the inputs, is f16"},
      {changed("output=f32", "output="), "t:4: output: must be f32, bf16 or f16, is absent"},
      {changed("order=any", "order=some"), "t:4: order: must be any or fixed, is some"},
      {changed("tile=601", "tile=128x128"),
       "t:4: tile: must be an integer from 0 to 2147483647, is 128x128"},
      {changed("stages=36 ", ""),
       "t:4: stages: must be an integer from 0 to 2147483647, is absent"},
      {changed("split_k=1", "split_k=4294967296"), "t:4: split_k:"},
      {changed("custom=7", "custom=7 speed=9"),
       "t:4: field: must be one of a line of this version, is speed"},
      {head + line + "# again\n" + line, "t:6: product: an earlier line is for the same one"},
      {head + "logits " + std::string(1000, 'x') + "\n", "xxx..."},
  };
  for (const Malformed& malformed : cases) {
    const auto table = AlgorithmTable::Parse(malformed.text, "t");
    EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument) << malformed.text;
    EXPECT_THAT(std::string(table.status().message()), HasSubstr(malformed.error));
    EXPECT_THAT(std::string(table.status().message()), StartsWith("t:"));
  }
  EXPECT_TRUE(AlgorithmTable::Parse(head + line, "t").ok());
  EXPECT_TRUE(AlgorithmTable::Parse(head, "t").ok()) << "a table may be empty";
}

TEST(AlgorithmTableTest, RefusesAnotherGpuAndAnotherLibrary) {
  const auto table = AlgorithmTable::Parse(kHead, "t");
  ASSERT_TRUE(table.ok());
  EXPECT_TRUE(table->CheckMadeFor("NVIDIA H200", 130100).ok());
  const absl::Status library = table->CheckMadeFor("NVIDIA H200", 130200);
  EXPECT_EQ(library.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(library.message()),
              StartsWith("t:2: library: must be cublaslt 130200, that of this build, is 130100"));
  const absl::Status gpu = table->CheckMadeFor("NVIDIA B200", 130100);
  EXPECT_EQ(gpu.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(gpu.message()),
              StartsWith("t:3: gpu: must be NVIDIA B200, that of this machine, is NVIDIA H200"));
}

TEST(AlgorithmTableTest, FindsTheLargestLineThatAProductReaches) {
  AlgorithmTable table("NVIDIA H200", 130100);
  for (const int64_t rows : {512, 4096}) {
    for (const int64_t vocab : {8192, 32000}) {
      ASSERT_TRUE(table.Add(Line(ProductKind::kLogits, rows, vocab)));
    }
  }
  const auto found = [&](int64_t rows, int64_t vocab) {
    const AlgorithmLine* line = table.Find(Line(ProductKind::kLogits, rows, vocab).product);
    return line == nullptr ? std::make_pair(int64_t{0}, int64_t{0})
                           : std::make_pair(line->product.rows, line->product.vocab);
  };
  EXPECT_EQ(found(4096, 32000), std::make_pair(int64_t{4096}, int64_t{32000}));
  EXPECT_EQ(found(4095, 31999), std::make_pair(int64_t{512}, int64_t{8192}));
  EXPECT_EQ(found(8192, 16384), std::make_pair(int64_t{4096}, int64_t{8192}));
  EXPECT_EQ(found(1000, 128256), std::make_pair(int64_t{512}, int64_t{32000}));
  EXPECT_EQ(found(511, 128256).first, 0);
  EXPECT_EQ(found(4096, 8191).first, 0);

  ProductShape other = Line(ProductKind::kLogits, 4096, 32000).product;
  other.hidden = 2048;
  EXPECT_EQ(table.Find(other), nullptr) << "the hidden size is exact";
  other = Line(ProductKind::kGradWeight, 4096, 32000).product;
  EXPECT_EQ(table.Find(other), nullptr);
  other = Line(ProductKind::kLogits, 4096, 32000).product;
  other.inputs = DType::kF16;
  EXPECT_EQ(table.Find(other), nullptr);
  other.inputs = DType::kBF16;
  other.fixed_order = true;
  EXPECT_EQ(table.Find(other), nullptr);
}

TEST(AlgorithmTableTest, ReadsFiles) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/algorithm_table_test.txt");
  std::ofstream(path) << kHead << "logits\n";
  const auto malformed = AlgorithmTable::Read(path);
  EXPECT_THAT(std::string(malformed.status().message()),
              StartsWith(absl::StrCat(path, ":4: rows:")));
  std::ofstream(path) << kHead;
  EXPECT_TRUE(AlgorithmTable::Read(path).ok());
  std::remove(path.c_str());
  const auto missing = AlgorithmTable::Read(path);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), StartsWith(path));
  EXPECT_FALSE(AlgorithmTable::Read(::testing::TempDir()).ok()) << "a directory";
}

}  // namespace
}  // namespace lossd
