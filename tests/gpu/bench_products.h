// The yardstick: the three cuBLASLt products of a linear loss over all rows at once, with memory for everything.
#ifndef LOSSD_TESTS_GPU_BENCH_PRODUCTS_H_
#define LOSSD_TESTS_GPU_BENCH_PRODUCTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/core/status_macros.h"
#include "kernels/cuda/cublaslt.h"

namespace lossd {

struct BenchProducts {
  int64_t rows = 0;
  int64_t hidden_size = 0;
  int64_t vocab = 0;
  const void* hidden = nullptr;  // bf16
  const void* weight = nullptr;  // bf16
  void* logits = nullptr;        // [rows, vocab] bf16
  void* grad_hidden = nullptr;   // bf16
  void* grad_weight = nullptr;   // bf16

  absl::Status RunLogits(CublasLt& products, cudaStream_t stream) const {
    Product product;
    product.inputs = product.output = DType::kBF16;
    product.m = rows, product.n = vocab, product.k = hidden_size;
    product.a = {hidden, hidden_size, false};
    product.b = {weight, hidden_size, true};
    product.d = logits, product.d_stride = vocab;
    return products.Run(product, stream);
  }

  absl::Status Run(CublasLt& products, cudaStream_t stream) const {
    LOSSD_RETURN_IF_ERROR(RunLogits(products, stream));
    Product product;
    product.inputs = product.output = DType::kBF16;
    product.m = rows, product.n = hidden_size, product.k = vocab;
    product.a = {logits, vocab, false};
    product.b = {weight, hidden_size, false};
    product.d = grad_hidden, product.d_stride = hidden_size;
    LOSSD_RETURN_IF_ERROR(products.Run(product, stream));
    product.m = vocab, product.n = hidden_size, product.k = rows;
    product.a = {logits, vocab, true};
    product.b = {hidden, hidden_size, false};
    product.d = grad_weight, product.d_stride = hidden_size;
    return products.Run(product, stream);
  }
};

}  // namespace lossd

#endif  // LOSSD_TESTS_GPU_BENCH_PRODUCTS_H_
