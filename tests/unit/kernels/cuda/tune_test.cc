// Which products are tuned. The measuring needs a GPU.
#include "kernels/cuda/tune.h"

#include <set>

#include "gmock/gmock.h"
#include "kernels/cuda/cublaslt.h"

namespace lossd {
namespace {

TEST(TuneTest, TunesEveryProductOfAHeadOnce) {
  const TuneShape shape = {4096, 2048, 32000, DType::kBF16};
  const std::vector<ProductShape> products = TunedProducts({shape, shape});
  std::set<std::string> names;
  for (const ProductShape& product : products) names.insert(Describe(product));
  EXPECT_EQ(names.size(), products.size());
  EXPECT_THAT(
      names,
      ::testing::UnorderedElementsAre(
          "logits rows=4096 hidden=2048 vocab=32000 inputs=bf16 output=f32 order=any",
          "logits rows=256 hidden=2048 vocab=32000 inputs=bf16 output=f32 order=fixed",
          "grad_hidden rows=4096 hidden=2048 vocab=32000 inputs=bf16 output=f32 order=any",
          "grad_hidden rows=4096 hidden=2048 vocab=32000 inputs=bf16 output=bf16 order=any",
          "grad_weight rows=4096 hidden=2048 vocab=32000 inputs=bf16 output=f32 order=any",
          "grad_weight rows=4096 hidden=2048 vocab=32000 inputs=bf16 output=bf16 order=any"));
  EXPECT_EQ(TunedProducts({{4096, 2048, 32000, DType::kF32}}).size(), 4u) << "one type alone";
  EXPECT_EQ(TunedProducts({shape, {512, 2048, 32000, DType::kBF16}}).size(), 11u)
      << "the products of batch_invariant do not depend on the rows";
}

TEST(TuneTest, AProductHasTheShapeOfItsLine) {
  for (const ProductShape& shape : TunedProducts({{4096, 2048, 32001, DType::kF16}})) {
    const Product product = ProductOf(shape);
    EXPECT_EQ(ShapeOf(product), shape) << Describe(shape);
    EXPECT_EQ(product.a.stride % 8, 0);
    EXPECT_EQ(product.d_stride % 8, 0);
  }
}

}  // namespace
}  // namespace lossd
