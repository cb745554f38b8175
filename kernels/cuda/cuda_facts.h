// What plans depend on of a GPU, so that they can be made where there is none. Plain C++.
#ifndef LOSSD_KERNELS_CUDA_CUDA_FACTS_H_
#define LOSSD_KERNELS_CUDA_CUDA_FACTS_H_

#include <cstdint>

#include "kernels/cuda/exp_product.h"

namespace lossd {

// The defaults are an H200's.
struct CudaFacts {
  int major = 9;  // compute capability
  int minor = 0;
  int64_t shared_bytes_per_block = 227 * 1024;

  bool has_clusters() const { return major >= 9; }
  bool has_exp_product() const { return HasExpProduct(major, minor); }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_CUDA_FACTS_H_
