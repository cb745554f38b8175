// Plans of the CPU backend: what they say, and that calls go the way that they say.
#include "kernels/cpu/cpu_planner.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/full_spec.h"
#include "tests/testing/local_runner.h"
#include "tests/testing/request_builder.h"
#include "tests/testing/shapes.h"

namespace lossd {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

DeviceDescription Cpu(uint64_t workspace_bytes, int threads = 2) {
  DeviceDescription device;
  device.backend = "cpu";
  device.workspace_bytes = workspace_bytes;
  device.threads = threads;
  return device;
}

constexpr Shape kSmall = {512, 64, 1000, v1::F32};
constexpr double kProduct = 2.0 * 512 * 64 * 1000;

TEST(CpuPlannerTest, OneChunkMultipliesThreeTimes) {
  CpuPlanner planner(Cpu(uint64_t{64} << 20));
  const auto explained = ExplainOn(planner, CrossEntropyOf(kSmall));
  ASSERT_TRUE(explained.ok()) << explained.status();
  ASSERT_EQ(explained->passes.size(), 1u);
  const PlannedPass& pass = explained->passes[0];
  EXPECT_THAT(pass.plan, StartsWith("rows=512/512 chunks=1x512 "));
  EXPECT_EQ(pass.cost.logits, kProduct);
  EXPECT_EQ(pass.cost.grad_hidden, kProduct);
  EXPECT_EQ(pass.cost.grad_weight, kProduct);
  EXPECT_THAT(pass.ways, Contains("grad_weight: the products add to the destination"));
  EXPECT_THAT(pass.reasons, Not(Contains(StartsWith("workspace:"))));
  EXPECT_EQ(BytesOf(pass.workspace, "logits"), 512u * 1008 * 4);
  EXPECT_EQ(BytesOf(explained->workspace, "row losses"), 512u * 4);
  uint64_t sum = 0;
  for (const WorkspacePart& part : pass.workspace) sum += part.bytes;
  for (const WorkspacePart& part : explained->workspace) sum += part.bytes;
  EXPECT_EQ(explained->peak_bytes, sum);
}

TEST(CpuPlannerTest, SaysWhatAHalfTypeAndASmallWorkspaceCost) {
  Shape shape = kSmall;
  shape.model = v1::BF16;
  CpuPlanner planner(Cpu(uint64_t{2} << 20));
  const auto explained = ExplainOn(planner, CrossEntropyOf(shape, v1::BF16));
  ASSERT_TRUE(explained.ok()) << explained.status();
  const PlannedPass& pass = explained->passes[0];
  EXPECT_THAT(pass.plan, HasSubstr("fp32-accumulator"));
  EXPECT_THAT(pass.reasons, Contains(StartsWith("workspace: holds the logits of ")));
  EXPECT_THAT(pass.reasons, Contains(StartsWith("weight: is not fp32")));
  EXPECT_THAT(pass.reasons, Contains(StartsWith("grad_weight: bf16 does not add up over chunks")));
  EXPECT_EQ(BytesOf(pass.workspace, "grad_weight in fp32"), 1000u * 64 * 4);
}

TEST(CpuPlannerTest, CountsThePaddingOfBatchInvariantTiles) {
  Shape shape = kSmall;
  shape.rows = 500;
  CpuPlanner planner(Cpu(uint64_t{64} << 20));
  RunOptions options;
  options.batch_invariant = true;
  const auto explained = ExplainOn(planner, CrossEntropyOf(shape), options);
  ASSERT_TRUE(explained.ok()) << explained.status();
  const PlannedPass& pass = explained->passes[0];
  EXPECT_EQ(pass.cost.logits, kProduct);
  EXPECT_EQ(pass.cost.grad_hidden, kProduct / 512 * 500);
  EXPECT_THAT(pass.reasons, Contains("batch_invariant: products of 32 rows, 512 in all"));
}

TEST(CpuPlannerTest, NamesTheSecondSweepOfAnObjectiveOfSequences) {
  const auto registry = Registry::Create();
  ASSERT_TRUE(registry.ok());
  const OpSchema& schema = registry->Find("LinearPreferenceLoss")->schema();
  const v1::Op op = RequestBuilder().Build(schema, FullSpec("LinearPreferenceLoss"));
  CpuPlanner planner(Cpu(uint64_t{64} << 20));
  const auto explained = ExplainOn(planner, op);
  ASSERT_TRUE(explained.ok()) << explained.status();
  ASSERT_GE(explained->passes.size(), 2u);
  const PlannedPass& last = explained->passes.back();
  EXPECT_THAT(last.reasons, Contains(kLogitsAgain));
  EXPECT_GT(last.cost.grad_weight, 0);
}

TEST(CpuPlannerTest, RefusesAsACallWould) {
  CpuPlanner planner(Cpu(1 << 13));
  const auto explained = ExplainOn(planner, CrossEntropyOf(kSmall));
  EXPECT_EQ(explained.status().code(), absl::StatusCode::kResourceExhausted) << explained.status();

  CpuPlanner other(Cpu(uint64_t{64} << 20));
  v1::Op op = CrossEntropyOf(kSmall);
  op.mutable_linear_cross_entropy()->mutable_head()->clear_target();
  EXPECT_EQ(ExplainOn(other, op).status().code(), absl::StatusCode::kInvalidArgument);
}

// Every operation, all of whose rows count.
TEST(CpuPlannerTest, EveryOperationRunsAsExplained) {
  constexpr uint64_t kWorkspace = uint64_t{4} << 20;
  LocalRunner runner(kWorkspace);
  const int threads = static_cast<CpuDevice*>(runner.backend().device)->pool().threads();
  for (const auto& op : runner.registry().ops()) {
    for (const bool batch_invariant : {false, true}) {
      SCOPED_TRACE(op->name());
      RequestSpec spec = FullSpec(op->name());
      spec.inputs = absl::StrReplaceAll(absl::StrCat(" ", spec.inputs, " "), {{" mask ", " "}});
      RequestBuilder builder;
      const v1::Op request = builder.Build(op->schema(), spec);
      RunOptions options;
      options.batch_invariant = batch_invariant;
      const auto reply = runner.Run(request, options);
      ASSERT_TRUE(reply.ok()) << reply.status();
      CpuPlanner planner(Cpu(kWorkspace, threads));
      const auto explained = ExplainOn(planner, request, options);
      ASSERT_TRUE(explained.ok()) << explained.status();
      std::vector<std::string> plans;
      for (const PlannedPass& pass : explained->passes) plans.push_back(pass.plan);
      EXPECT_EQ(absl::StrJoin(plans, "; "), reply->plan());
    }
  }
}

}  // namespace
}  // namespace lossd
