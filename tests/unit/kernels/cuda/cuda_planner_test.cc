// Plans of the CUDA backend for GPUs that are only described.
#include "kernels/cuda/cuda_planner.h"

#include "gmock/gmock.h"
#include "tests/testing/full_spec.h"
#include "tests/testing/request_builder.h"
#include "tests/testing/shapes.h"

namespace lossd {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

DeviceDescription Gpu(uint64_t workspace_bytes = 2200000000, int compute_capability = 90) {
  DeviceDescription device;
  device.backend = "cuda";
  device.workspace_bytes = workspace_bytes;
  device.compute_capability = compute_capability;
  return device;
}

// Aborts on an error: the tests of refusals do without it.
Explanation ExplainOn(const DeviceDescription& device, const v1::Op& op,
                      bool batch_invariant = false) {
  RunOptions options;
  options.batch_invariant = batch_invariant;
  auto planner = CudaPlanner::Create(device);
  EXPECT_TRUE(planner.ok()) << planner.status();
  auto explained = ExplainOn(**planner, op, options);
  EXPECT_TRUE(explained.ok()) << explained.status();
  return explained.ok() ? *std::move(explained) : Explanation();
}

constexpr double kNhv = 8192.0 * 4096.0 * 128256.0;
constexpr uint64_t kEnough = uint64_t{16} << 30;

TEST(CudaPlannerTest, TakesTheEpilogueOnHopper) {
  const Explanation explained = ExplainOn(Gpu(kEnough), CrossEntropyOf({}));
  ASSERT_EQ(explained.passes.size(), 1u);
  const PlannedPass& pass = explained.passes[0];
  EXPECT_EQ(pass.plan, "chunks=1x8192 products=bf16 epilogue=exp grad_weight=direct");
  EXPECT_EQ(pass.cost.logits, 2 * kNhv);
  EXPECT_EQ(pass.cost.grad_hidden, 2 * kNhv);
  EXPECT_EQ(pass.cost.grad_weight, 2 * kNhv);
  EXPECT_THAT(pass.reasons, IsEmpty());
  EXPECT_THAT(pass.ways, Contains(StartsWith("logits: a product with exponentials")));
  EXPECT_GE(BytesOf(pass.workspace, "exponentials and their sums"), 8192u * 128256 * 2);
}

TEST(CudaPlannerTest, SaysWhyNotByTheFieldThatNeedsTheLogits) {
  v1::Op op = CrossEntropyOf({});
  op.mutable_linear_cross_entropy()->set_label_smoothing(0.1);
  const Explanation explained = ExplainOn(Gpu(kEnough), op);
  ASSERT_EQ(explained.passes.size(), 1u);
  const PlannedPass& pass = explained.passes[0];
  EXPECT_EQ(pass.plan, "chunks=1x8192 products=bf16 grad_weight=direct");
  EXPECT_THAT(pass.reasons, Contains("label_smoothing: needs the logits again"));
  EXPECT_THAT(pass.ways, Contains(StartsWith("logits: in fp32")));
  EXPECT_GE(BytesOf(pass.workspace, "logits"), 8192u * 128256 * 4);
}

struct Refused {
  const char* reason;
  void (*change)(v1::LinearCrossEntropy* request);
};

TEST(CudaPlannerTest, EveryReasonAgainstTheEpilogueHasItsName) {
  const Refused cases[] = {
      {"softcap: bends the logits before the exponential",
       [](v1::LinearCrossEntropy* r) { r->mutable_head()->set_softcap(30); }},
      {"weight: has rows that do not start at 16 bytes",
       [](v1::LinearCrossEntropy* r) {
         r->mutable_linear()->mutable_weight()->add_strides(4097);
         r->mutable_linear()->mutable_weight()->add_strides(1);
       }},
      {"hidden, weight: are not multiplied in bf16",
       [](v1::LinearCrossEntropy* r) {
         r->mutable_linear()->mutable_hidden()->set_dtype(v1::F16);
         r->mutable_linear()->mutable_weight()->set_dtype(v1::F16);
       }},
      {"hidden, weight: are of two types, so that they are multiplied in fp32",
       [](v1::LinearCrossEntropy* r) {
         r->mutable_linear()->mutable_hidden()->set_dtype(v1::F32);
       }},
  };
  for (const Refused& refused : cases) {
    v1::Op op = CrossEntropyOf({});
    refused.change(op.mutable_linear_cross_entropy());
    const Explanation explained = ExplainOn(Gpu(kEnough), op);
    ASSERT_EQ(explained.passes.size(), 1u) << refused.reason;
    EXPECT_THAT(explained.passes[0].plan, Not(HasSubstr("epilogue")));
    EXPECT_THAT(explained.passes[0].reasons, Contains(refused.reason));
  }
}

TEST(CudaPlannerTest, OtherGpusStoreLogits) {
  for (const int compute_capability : {80, 89, 100}) {
    const Explanation explained = ExplainOn(Gpu(kEnough, compute_capability), CrossEntropyOf({}));
    ASSERT_EQ(explained.passes.size(), 1u);
    EXPECT_THAT(explained.passes[0].reasons, Contains("compute capability: is not 9.0"));
    EXPECT_THAT(explained.passes[0].plan, Not(HasSubstr("epilogue")));
  }
}

// fp32 adds up over chunks by itself, bf16 does not.
TEST(CudaPlannerTest, GradWeightWhereMemoryIsShort) {
  const Explanation whole = ExplainOn(Gpu(), CrossEntropyOf({}, v1::BF16));
  ASSERT_EQ(whole.passes.size(), 1u);
  EXPECT_THAT(whole.passes[0].plan, HasSubstr("chunks=1x8192"));
  EXPECT_EQ(whole.passes[0].cost.sum(), 6 * kNhv);
  EXPECT_THAT(whole.passes[0].reasons, IsEmpty());

  const Explanation fp32 = ExplainOn(Gpu(1200000000), CrossEntropyOf({}));
  ASSERT_EQ(fp32.passes.size(), 1u);
  EXPECT_THAT(fp32.passes[0].plan, HasSubstr("chunks=2x4096"));
  EXPECT_THAT(fp32.passes[0].plan, HasSubstr("epilogue=exp grad_weight=direct"));
  EXPECT_EQ(fp32.passes[0].cost.sum(), 6 * kNhv);
  EXPECT_THAT(fp32.passes[0].reasons,
              ElementsAre(StartsWith("workspace: holds 4096 of 8192 rows")));

  const Explanation slices = ExplainOn(Gpu(1200000000), CrossEntropyOf({}, v1::BF16));
  ASSERT_EQ(slices.passes.size(), 1u);
  const PlannedPass& pass = slices.passes[0];
  EXPECT_THAT(pass.plan, HasSubstr("grad_weight=slices of "));
  EXPECT_EQ(pass.cost.logits, 4 * kNhv);
  EXPECT_EQ(pass.cost.grad_weight, 2 * kNhv);
  EXPECT_THAT(pass.reasons, Contains(HasSubstr("the logits are multiplied twice")));
  EXPECT_LE(slices.peak_bytes, 1200000000u);

  Shape shape;
  shape.rows = 16384;
  const Explanation sums = ExplainOn(Gpu(uint64_t{4} << 30), CrossEntropyOf(shape, v1::BF16));
  EXPECT_THAT(sums.passes[0].plan, HasSubstr("grad_weight=accumulator"));
  EXPECT_THAT(sums.passes[0].reasons, Contains("grad_weight: bf16 does not add up over chunks"));
  EXPECT_EQ(BytesOf(sums.passes[0].workspace, "grad_weight in fp32"), uint64_t{128256} * 4096 * 4);
}

TEST(CudaPlannerTest, BatchInvariantTakesTheStatisticsOfOneProduct) {
  v1::Op op = CrossEntropyOf({});
  op.mutable_linear_cross_entropy()->set_label_smoothing(0.1);
  const Explanation explained = ExplainOn(Gpu(kEnough), op, /*batch_invariant=*/true);
  ASSERT_EQ(explained.passes.size(), 2u);
  EXPECT_THAT(explained.passes[0].plan, HasSubstr("epilogue=exp"));
  EXPECT_EQ(explained.passes[0].cost.sum(), 2 * kNhv);
  EXPECT_THAT(explained.passes[1].reasons,
              Contains(StartsWith("batch_invariant: every operation")));
  EXPECT_THAT(explained.passes[1].reasons, Contains(HasSubstr("its rows are copied")));

  // Without the epilogue: fixed tiles, and rows are filled up.
  Shape shape;
  shape.rows = 1000;
  const Explanation ampere = ExplainOn(Gpu(kEnough, 80), CrossEntropyOf(shape), true);
  ASSERT_EQ(ampere.passes.size(), 1u);
  EXPECT_EQ(ampere.passes[0].cost.logits, 2.0 * 1024 * 4096 * 128256);
  EXPECT_EQ(ampere.passes[0].cost.grad_hidden, 2.0 * 1000 * 4096 * 128256);
  EXPECT_THAT(ampere.passes[0].reasons, Contains(HasSubstr("batch_invariant fills the last tile")));
}

// Preference losses: the gradient of a row needs sequences.
v1::Op PreferenceOf(const Shape& shape) {
  v1::Op op;
  v1::LinearPreferenceLoss& request = *op.mutable_linear_preference_loss();
  SetLinear(shape, request.mutable_linear());
  *request.mutable_head()->mutable_target() = TensorOf(v1::I64, {shape.rows});
  auto* preference = request.mutable_preference();
  *preference->mutable_cu_seqlens() = TensorOf(v1::I32, {9});
  preference->set_pairing(v1::PAIRING_HALVES);
  preference->set_reference_free(true);
  preference->add_terms()->set_type(v1::PREFERENCE_TYPE_SIGMOID);
  preference->mutable_terms(0)->set_beta(2);
  *request.mutable_gradients()->mutable_grad_hidden() =
      TensorOf(shape.model, {shape.rows, shape.hidden});
  *request.mutable_gradients()->mutable_grad_weight() =
      TensorOf(v1::F32, {shape.vocab, shape.hidden});
  return op;
}

TEST(CudaPlannerTest, SequencesKeepTheirLogitsWhereTheyFit) {
  Shape shape;
  shape.rows = 4096;
  const Explanation kept = ExplainOn(Gpu(), PreferenceOf(shape));
  ASSERT_EQ(kept.passes.size(), 1u);
  EXPECT_THAT(kept.passes[0].plan, HasSubstr("logits=kept"));
  EXPECT_EQ(kept.passes[0].cost.sum(), 3 * kNhv);

  shape.rows = 16384;
  const Explanation again = ExplainOn(Gpu(), PreferenceOf(shape));
  ASSERT_EQ(again.passes.size(), 2u);
  EXPECT_EQ(again.passes[0].cost.sum() + again.passes[1].cost.sum(), 16 * kNhv);
  EXPECT_THAT(again.passes[1].reasons,
              Contains(StartsWith("workspace: does not hold the logits of all rows")));
}

TEST(CudaPlannerTest, RefusesWhatNoGpuIsAndWhatHasNoRoom) {
  EXPECT_EQ(CudaPlanner::Create(Gpu(kEnough, 75)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CudaPlanner::Create(Gpu(1 << 20)).status().code(), absl::StatusCode::kInvalidArgument);
  auto planner = CudaPlanner::Create(Gpu(uint64_t{8} << 20));
  ASSERT_TRUE(planner.ok());
  v1::Op op = CrossEntropyOf({});
  op.mutable_linear_cross_entropy()->set_label_smoothing(0.1);
  EXPECT_EQ(ExplainOn(**planner, op).status().code(), absl::StatusCode::kResourceExhausted);
}

// Every operation can be planned, with all that is legal in it, on old and new GPUs.
TEST(CudaPlannerTest, EveryOperationHasAPlan) {
  const auto registry = Registry::Create();
  ASSERT_TRUE(registry.ok());
  for (const auto& op : registry->ops()) {
    for (const int compute_capability : {80, 90}) {
      for (const v1::DType model : {v1::F32, v1::BF16, v1::F16}) {
        SCOPED_TRACE(op->name());
        RequestSpec spec = FullSpec(op->name());
        spec.model = model;
        const v1::Op request = RequestBuilder().Build(op->schema(), spec);
        const Explanation explained = ExplainOn(Gpu(kEnough, compute_capability), request);
        EXPECT_GT(explained.peak_bytes, 0u);
        for (const PlannedPass& pass : explained.passes) EXPECT_NE(pass.plan, "");
      }
    }
  }
}

}  // namespace
}  // namespace lossd
