// What plans depend on of a GPU, so that they can be made where there is none. Plain C++.
#ifndef LOSSD_KERNELS_CUDA_CUDA_FACTS_H_
#define LOSSD_KERNELS_CUDA_CUDA_FACTS_H_

#include <cstdint>

#include "kernels/cuda/exp_product.h"

namespace lossd {

struct CudaFacts {
  int major = 0;  // compute capability
  int minor = 0;
  int64_t shared_bytes_per_block = 0;  // at most, as a kernel may ask for

  // What the toolkit's manual says of a compute capability.
  static CudaFacts Of(int major, int minor) {
    const int kibibytes = major == 9 || major == 10 ? 227 : major == 8 && minor == 0 ? 163 : 99;
    return {major, minor, int64_t{kibibytes} * 1024};
  }

  bool has_clusters() const { return major >= 9; }
  bool has_exp_product() const { return HasExpProduct(major, minor); }
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_CUDA_FACTS_H_
