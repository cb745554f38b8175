#include "kernels/core/binding.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/core/rebind.h"
#include "lossd/v1/logits.pb.h"
#include "tests/testing/matchers.h"

namespace lossd {
namespace {

constexpr uint64_t kBytes = 4096;

// Region 1 is writable, region 2 is not; both are kBytes long.
class TwoRegions final : public RegionResolver {
 public:
  absl::StatusOr<Region> Resolve(uint64_t id) const override {
    if (id != 1 && id != 2) return absl::NotFoundError("no such region");
    Region region;
    region.base = const_cast<std::byte*>(memory_[id - 1].data());
    region.bytes = kBytes;
    region.writable = id == 1;
    region.owner = owner_;
    return region;
  }
  std::vector<std::byte> memory_[2] = {std::vector<std::byte>(kBytes),
                                       std::vector<std::byte>(kBytes)};
  std::shared_ptr<int> owner_ = std::make_shared<int>(0);
};

v1::Tensor At(uint64_t region, uint64_t offset, std::initializer_list<int64_t> shape,
              v1::DType dtype = v1::F32) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  for (const int64_t extent : shape) tensor.add_shape(extent);
  tensor.mutable_region()->set_region(region);
  tensor.mutable_region()->set_byte_offset(offset);
  return tensor;
}

class BindingTest : public testing::Test {
 protected:
  BindingTest() {
    *request_.mutable_linear()->mutable_hidden() = At(2, 0, {6, 4});      // 96 bytes
    *request_.mutable_linear()->mutable_weight() = At(2, 1024, {17, 4});  // 272 bytes
    *request_.mutable_logprob() = At(1, 0, {6});
  }
  absl::StatusOr<Binding> Bind() const { return Binding::Create(schema_, request_, regions_); }

  TwoRegions regions_;
  OpSchema schema_ = *OpSchema::Create(v1::LinearLogprob::descriptor());
  v1::LinearLogprob request_;
};

TEST_F(BindingTest, FindsPointersByTheFieldsAddress) {
  const auto binding = Bind();
  ASSERT_OK(binding);
  EXPECT_EQ(binding->View(request_.linear().weight()).data, regions_.memory_[1].data() + 1024);
  EXPECT_EQ(binding->View(request_.linear().hidden()).strides[0], 4);
  EXPECT_FALSE(binding->View(request_.linear().bias()));
}

TEST_F(BindingTest, PinsTheRegionsWhileItLives) {
  {
    const auto binding = Bind();
    EXPECT_GT(regions_.owner_.use_count(), 1);
  }
  EXPECT_EQ(regions_.owner_.use_count(), 1);
}

TEST_F(BindingTest, RefusesWhatDoesNotLieInTheRegion) {
  for (const uint64_t offset : {kBytes - 92, kBytes, std::numeric_limits<uint64_t>::max() - 3}) {
    request_.mutable_linear()->mutable_hidden()->mutable_region()->set_byte_offset(offset);
    EXPECT_EQ(Refusal(Bind()), "INVALID_ARGUMENT hidden") << offset;
  }
  request_.mutable_linear()->mutable_hidden()->mutable_region()->set_byte_offset(kBytes - 96);
  EXPECT_OK(Bind());
}

TEST_F(BindingTest, CountsStridesInTheExtent) {
  v1::Tensor* hidden = request_.mutable_linear()->mutable_hidden();
  hidden->add_strides(256);  // the last row starts at byte 5120
  hidden->add_strides(1);
  EXPECT_EQ(Refusal(Bind()), "INVALID_ARGUMENT hidden");
}

TEST_F(BindingTest, RefusesMisalignedOffsets) {
  request_.mutable_linear()->mutable_hidden()->mutable_region()->set_byte_offset(2);
  EXPECT_EQ(Refusal(Bind()), "INVALID_ARGUMENT hidden");
}

TEST_F(BindingTest, RefusesAnotherSessionsRegion) {
  request_.mutable_linear()->mutable_hidden()->mutable_region()->set_region(3);
  EXPECT_EQ(Refusal(Bind()), "NOT_FOUND hidden");
}

TEST_F(BindingTest, RefusesOutputsInReadOnlyMemory) {
  *request_.mutable_logprob() = At(2, 2048, {6});
  EXPECT_EQ(Refusal(Bind()), "PERMISSION_DENIED logprob");
}

TEST_F(BindingTest, RefusesOutputsThatOverlapAnything) {
  *request_.mutable_lse() = At(1, 20, {6});
  EXPECT_EQ(Refusal(Bind()), "INVALID_ARGUMENT logprob");
  *request_.mutable_lse() = At(1, 24, {6});
  EXPECT_OK(Bind());
  *request_.mutable_linear()->mutable_hidden() = At(1, 40, {6, 4});
  EXPECT_EQ(Refusal(Bind()), "INVALID_ARGUMENT lse");
}

TEST_F(BindingTest, OnlyAnOutputThatTakesAnInputMayLieOverIt) {
  *request_.mutable_linear()->mutable_bias() = At(1, 0, {6});
  EXPECT_EQ(Refusal(Bind()), "INVALID_ARGUMENT logprob");
  EXPECT_EQ(Refusal(Binding::Create(schema_, request_, regions_, {"bias"})),
            "INVALID_ARGUMENT logprob");
}

class DonationTest : public testing::Test {
 protected:
  DonationTest() {
    *request_.mutable_logits() = At(1, 64, {2, 3, 17}, v1::BF16);
    *request_.mutable_grad_logits() = request_.logits();
    *request_.mutable_row_loss() = At(1, 1024, {2, 3});
  }
  std::string Bind(const std::vector<std::string>& donated = {"mask", "logits"}) const {
    return Refusal(Binding::Create(schema_, request_, regions_, donated));
  }

  TwoRegions regions_;
  OpSchema schema_ = *OpSchema::Create(v1::CrossEntropy::descriptor());
  v1::CrossEntropy request_;
};

TEST_F(DonationTest, TheGradientTakesTheLogitsThatWereDonated) {
  EXPECT_EQ(Bind(), "OK");
  EXPECT_EQ(Bind({}), "INVALID_ARGUMENT grad_logits");
  EXPECT_EQ(Bind({"mask"}), "INVALID_ARGUMENT grad_logits");
  EXPECT_EQ(Bind({"grad_logits"}), "INVALID_ARGUMENT grad_logits");
  request_.mutable_grad_logits()->mutable_region()->set_byte_offset(512);
  EXPECT_EQ(Bind(), "OK");
  EXPECT_EQ(Bind({}), "OK");
}

TEST_F(DonationTest, ElementByElementOrNotAtAll) {
  const v1::Tensor whole = request_.grad_logits();
  request_.mutable_grad_logits()->mutable_region()->set_byte_offset(66);
  EXPECT_EQ(Bind(), "INVALID_ARGUMENT grad_logits");
  *request_.mutable_grad_logits() = whole;
  request_.mutable_grad_logits()->set_dtype(v1::F16);
  EXPECT_EQ(Bind(), "INVALID_ARGUMENT grad_logits");
  *request_.mutable_grad_logits() = At(1, 64, {6, 17}, v1::BF16);
  EXPECT_EQ(Bind(), "INVALID_ARGUMENT grad_logits");
  // The same bytes, rows in another order.
  *request_.mutable_grad_logits() = whole;
  for (const int64_t stride : {17, 34, 1}) request_.mutable_grad_logits()->add_strides(stride);
  EXPECT_EQ(Bind(), "INVALID_ARGUMENT grad_logits");
  request_.mutable_grad_logits()->clear_strides();
  for (const int64_t stride : {51, 17, 1}) request_.mutable_grad_logits()->add_strides(stride);
  EXPECT_EQ(Bind(), "OK");
}

TEST_F(DonationTest, NothingElseMayLieThere) {
  *request_.mutable_head()->mutable_target() = At(1, 64, {2, 3}, v1::I32);
  EXPECT_EQ(Bind(), "INVALID_ARGUMENT grad_logits");
  request_.clear_head();
  *request_.mutable_row_loss() = At(1, 64, {2, 3});
  EXPECT_EQ(Bind(), "INVALID_ARGUMENT row_loss");
  *request_.mutable_row_loss() = At(1, 1024, {2, 3});
  // Donated, but another output lies over it.
  request_.clear_grad_logits();
  *request_.mutable_lse() = At(1, 64, {2, 3});
  EXPECT_EQ(Bind(), "INVALID_ARGUMENT lse");
}

TEST_F(DonationTest, MemoryMustBeWritable) {
  *request_.mutable_logits() = At(2, 64, {2, 3, 17}, v1::BF16);
  *request_.mutable_grad_logits() = request_.logits();
  EXPECT_EQ(Bind(), "PERMISSION_DENIED grad_logits");
}

TEST_F(BindingTest, RefusesOutputsWhoseElementsMeet) {
  v1::Tensor logprob = At(1, 0, {2, 3});
  logprob.add_strides(2);
  logprob.add_strides(1);
  *request_.mutable_logprob() = logprob;
  EXPECT_EQ(Refusal(Bind()), "INVALID_ARGUMENT logprob");
}

TEST_F(BindingTest, WantsInlineBytesOfTheExactSize) {
  v1::Tensor* hidden = request_.mutable_linear()->mutable_hidden();
  hidden->set_inline_data(std::string(95, 'x'));
  EXPECT_EQ(Refusal(Bind()), "INVALID_ARGUMENT hidden");
  hidden->set_inline_data(std::string(96, 'x'));
  EXPECT_OK(Bind());
  request_.mutable_logprob()->set_inline_data("1234");
  EXPECT_EQ(Refusal(Bind()), "INVALID_ARGUMENT logprob");
  request_.mutable_logprob()->clear_place();
  EXPECT_OK(Bind());
}

TEST_F(BindingTest, EmptyTensorsTouchNothing) {
  request_.Clear();
  *request_.mutable_linear()->mutable_hidden() = At(2, kBytes, {0, 4});
  *request_.mutable_linear()->mutable_weight() = At(2, 0, {17, 4});
  *request_.mutable_logprob() = At(1, kBytes, {0});
  EXPECT_OK(Bind());
}

TEST_F(BindingTest, MovesToOtherAddressesWithTheSameChecks) {
  auto binding = Bind();
  ASSERT_OK(binding);
  std::vector<float> memory(256);
  const auto at = [&](int element) { return reinterpret_cast<uint64_t>(memory.data() + element); };
  ASSERT_OK(MoveTensors({at(0), at(64), at(200)}, {}, &*binding));
  EXPECT_EQ(binding->View(request_.linear().weight()).data, memory.data() + 64);
  EXPECT_EQ(binding->View(request_.logprob()).data, memory.data() + 200);
  EXPECT_EQ(binding->View(request_.linear().weight()).shape[0], 17);
  EXPECT_EQ(Refusal(MoveTensors({at(0), at(64)}, {}, &*binding)), "INVALID_ARGUMENT addresses");
  EXPECT_EQ(Refusal(MoveTensors({at(0), at(64), at(200) + 1}, {}, &*binding)),
            "INVALID_ARGUMENT logprob");
  EXPECT_EQ(Refusal(MoveTensors({at(0), 0, at(200)}, {}, &*binding)), "INVALID_ARGUMENT weight");
  EXPECT_EQ(Refusal(MoveTensors({at(0), at(64), at(20)}, {}, &*binding)),
            "INVALID_ARGUMENT logprob");
  EXPECT_EQ(Refusal(MoveTensors({at(0), at(64), at(130)}, {}, &*binding)),
            "INVALID_ARGUMENT logprob");
}

}  // namespace
}  // namespace lossd
