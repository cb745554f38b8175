// Plans and tables on a GPU: calls go the way that was explained, and a table that was measured is what products are multiplied by.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_planner.h"
#include "kernels/cuda/tune.h"
#include "tests/gpu/cuda_runner.h"
#include "tests/testing/full_spec.h"
#include "tests/testing/request_builder.h"

namespace lossd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kWorkspace = uint64_t{1} << 30;

std::string PlanOf(const Registry& registry, const CudaFacts& facts, const v1::Op& op,
                   const RunOptions& options) {
  DeviceDescription device;
  device.backend = "cuda";
  device.workspace_bytes = kWorkspace;
  device.compute_capability = 10 * facts.major + facts.minor;
  auto planner = CudaPlanner::Create(device);
  if (!planner.ok()) return planner.status().ToString();
  const auto explained = Explain(registry, op, options, **planner);
  if (!explained.ok()) return explained.status().ToString();
  std::vector<std::string> plans;
  for (const PlannedPass& pass : explained->passes) plans.push_back(pass.plan);
  return absl::StrJoin(plans, "; ");
}

// All of whose rows count.
TEST(CudaPlansTest, EveryOperationRunsAsExplained) {
  CudaRunner runner(kWorkspace);
  for (const auto& op : runner.registry().ops()) {
    for (const v1::DType model : {v1::BF16, v1::F16, v1::F32}) {
      for (const int variant : {0, 1, 2, 3}) {
        const bool batch_invariant = variant % 2 == 1;
        SCOPED_TRACE(absl::StrCat(op->name(), " ", v1::DType_Name(model)));
        RequestSpec spec = FullSpec(op->name());
        spec.inputs = absl::StrReplaceAll(absl::StrCat(" ", spec.inputs, " "), {{" mask ", " "}});
        spec.model = model;
        spec.options = absl::StrReplaceAll(spec.options, {{"valid_vocab=11", ""}});
        // Without what the product with exponentials cannot do.
        if (variant >= 2 && absl::StartsWith(op->name(), "Linear")) {
          spec.options = absl::StrReplaceAll(spec.options,
                                             {{"softcap=3", ""},
                                              {"label_smoothing=0.1", ""},
                                              {"entropy_kind=TRUE", "entropy_kind=SAMPLED_PLOGP"}});
        }
        RequestBuilder builder;
        builder.dims["N"] = 300;
        builder.dims["H"] = builder.dims["TeacherH"] = builder.dims["RefH"] = 256;
        builder.dims["V"] = builder.dims["TeacherV"] = builder.dims["VocabTotal"] = 1000;
        const v1::Op request = builder.Build(op->schema(), spec);
        RunOptions options;
        options.batch_invariant = batch_invariant;
        const auto reply = runner.Run(request, options);
        ASSERT_TRUE(reply.ok()) << reply.status();
        const std::string planned =
            PlanOf(runner.registry(), runner.cuda().device().facts(), request, options);
        // A layer has no products to plan.
        if (planned.empty() && !absl::StartsWith(op->name(), "Linear")) continue;
        EXPECT_EQ(planned, reply->plan());
      }
    }
  }
}

// A description of a GPU has the shared memory that the GPU says it has.
TEST(CudaPlansTest, FactsAreTheDevices) {
  CudaRunner runner(uint64_t{64} << 20);
  const CudaFacts real = runner.cuda().device().facts();
  EXPECT_EQ(CudaFacts::Of(real.major, real.minor).shared_bytes_per_block,
            real.shared_bytes_per_block);
}

class CudaTableTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    TuneOptions options;
    options.shapes = {{512, 1024, 8192, DType::kBF16}};
    options.rounds = 3;
    auto table = Tune(options);
    ASSERT_TRUE(table.ok()) << table.status();
    table_ = new AlgorithmTable(*std::move(table));
  }
  static void TearDownTestSuite() { delete table_; }
  ~CudaTableTest() override { std::remove(file_.c_str()); }

  absl::StatusOr<std::unique_ptr<CudaBackend>> Load(const std::string& text) {
    std::ofstream(file_) << text;
    CudaOptions options;
    options.workspace_bytes = uint64_t{256} << 20;
    options.algorithms = file_;
    return CudaBackend::Create(options);
  }

  static AlgorithmTable* table_;
  const std::string file_ = absl::StrCat(::testing::TempDir(), "/cuda_table_test-", getpid());
};

AlgorithmTable* CudaTableTest::table_ = nullptr;

TEST_F(CudaTableTest, IsWhatProductsAreMultipliedBy) {
  ASSERT_NE(table_, nullptr);
  EXPECT_EQ(table_->lines().size(), 6u);
  const auto with = Load(table_->ToText());
  ASSERT_TRUE(with.ok()) << with.status();
  CudaOptions options;
  options.workspace_bytes = uint64_t{256} << 20;
  const auto without = CudaBackend::Create(options);
  ASSERT_TRUE(without.ok());
  EXPECT_NE((*with)->device().algorithm_table(), (*without)->device().algorithm_table());
  const auto again = Load(table_->ToText());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*with)->device().algorithm_table(), (*again)->device().algorithm_table());
  for (const AlgorithmLine& line : table_->lines()) {
    const auto chosen = (*with)->head().products().ChosenAlgorithm(ProductOf(line.product));
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    EXPECT_EQ(*chosen, line.algorithm) << Describe(line.product);
    // More rows, and a larger vocabulary.
    ProductShape larger = line.product;
    larger.rows *= 2;
    larger.vocab *= 2;
    if (line.product.fixed_order) larger.rows = line.product.rows;
    const auto of_larger = (*with)->head().products().ChosenAlgorithm(ProductOf(larger));
    ASSERT_TRUE(of_larger.ok()) << of_larger.status();
  }
}

// The line of every product, one after the other: each is an algorithm that the library really has, and none is taken for another.
TEST_F(CudaTableTest, TakesWhateverTheLibraryProposes) {
  ASSERT_NE(table_, nullptr);
  auto lt = CublasLt::Create(uint64_t{16} << 20);
  ASSERT_TRUE(lt.ok());
  for (const AlgorithmLine& line : table_->lines()) {
    const auto proposed = lt->ListAlgorithms(ProductOf(line.product));
    ASSERT_TRUE(proposed.ok());
    for (size_t i = 0; i < std::min<size_t>(proposed->size(), 6); ++i) {
      const Algorithm& algorithm = (*proposed)[i];
      AlgorithmTable one(table_->gpu(), table_->library());
      AlgorithmLine other = line;
      other.algorithm = algorithm;
      ASSERT_TRUE(one.Add(other));
      auto loaded = CublasLt::Create(uint64_t{16} << 20, std::move(one));
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_EQ(*loaded->ChosenAlgorithm(ProductOf(line.product)), algorithm);
    }
  }
}

TEST_F(CudaTableTest, RefusesWhatIsStaleOrNot) {
  ASSERT_NE(table_, nullptr);
  const std::string text = table_->ToText();
  const auto refused = [&](const std::string& wrong) {
    const auto loaded = Load(wrong);
    EXPECT_FALSE(loaded.ok()) << wrong;
    return std::string(loaded.status().message());
  };
  EXPECT_THAT(refused(absl::StrReplaceAll(text, {{"cublaslt ", "cublaslt 9"}})),
              StartsWith(absl::StrCat(file_, ":2: library: must be cublaslt ", table_->library())));
  EXPECT_THAT(refused(absl::StrReplaceAll(text, {{"gpu ", "gpu Another "}})),
              StartsWith(absl::StrCat(file_, ":3: gpu: must be ", table_->gpu())));
  EXPECT_THAT(refused(absl::StrReplaceAll(text, {{"algorithm=", "algorithm=9"}})),
              AllOf(StartsWith(absl::StrCat(file_, ":5: ")), HasSubstr("no such algorithm")));
  EXPECT_THAT(refused(text + "logits\n"), HasSubstr(": rows: must be "));
  EXPECT_THAT(refused(""), StartsWith(absl::StrCat(file_, ":1: first line")));
}

}  // namespace
}  // namespace lossd
