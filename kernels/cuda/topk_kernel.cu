// The largest logits of each row: a radix selection of the k-th, a collection, a sort. One block for a row, which is read 6 times or
// fewer; the reads after the first mostly hit the L2 cache.
#include <climits>

#include "kernels/cuda/ordered_key.cuh"
#include "kernels/cuda/real.cuh"
#include "kernels/cuda/row_kernels.h"
#include "kernels/cuda/row_values.cuh"

namespace lossd {
namespace {

constexpr int kThreads = 512;
constexpr int kMaxTopK = 1024;

// kCallers: of the caller's logits, in their own type.
template <bool kCallers>
class Row {
 public:
  __device__ Row(const RowPass& pass, int64_t r, int64_t row)
      : head_(pass.head),
        logits_(kCallers ? RowAddress(pass.head.logits, row)
                         : pass.logits + r * pass.logits_stride),
        inverse_temperature_(1.0f / pass.head.Temperature(row)) {}
  __device__ int size() const { return static_cast<int>(head_.valid_columns); }
  __device__ uint32_t Key(int j) const {
    float raw =
        kCallers ? LoadReal(logits_, head_.logits.dtype, j) : static_cast<const float*>(logits_)[j];
    if (!kCallers && head_.bias)
      raw += LoadReal(head_.bias.data, head_.bias.dtype, j * head_.bias.lead_strides[0]);
    // As in the row pass, operation by operation.
    float s = __fmul_rn(head_.logit_scale, raw);
    if (head_.softcap > 0) s = __fmul_rn(head_.softcap, tanhf(__fdiv_rn(s, head_.softcap)));
    return OrderedKey(__fmul_rn(s, inverse_temperature_));
  }

 private:
  const HeadProblem& head_;
  const void* logits_;
  float inverse_temperature_;
};

// The k-th largest key, and how many keys are larger.
template <bool kCallers>
__device__ uint32_t SelectKey(const Row<kCallers>& row, int k, int* histogram, int* larger) {
  __shared__ uint32_t prefix;
  __shared__ int above;
  if (threadIdx.x == 0) {
    prefix = 0;
    above = 0;
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += kThreads) histogram[i] = 0;
    __syncthreads();
    const uint32_t mask = shift == 24 ? 0 : ~0u << (shift + 8);
    for (int j = threadIdx.x; j < row.size(); j += kThreads) {
      const uint32_t key = row.Key(j);
      if ((key & mask) == prefix) atomicAdd(&histogram[key >> shift & 255], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = 255;
      while (digit > 0 && above + histogram[digit] < k) above += histogram[digit--];
      prefix |= static_cast<uint32_t>(digit) << shift;
    }
    __syncthreads();
  }
  *larger = above;
  return prefix;
}

// Appends the first `wanted` columns whose key is `key`, by rising column.
template <bool kCallers>
__device__ void CollectEqual(const Row<kCallers>& row, uint32_t key, int first, int wanted,
                             uint64_t* found) {
  __shared__ int warp_counts[kThreads / 32];
  int taken = 0;
  for (int j0 = 0; j0 < row.size() && taken < wanted; j0 += kThreads) {
    const int j = j0 + threadIdx.x;
    const bool is = j < row.size() && row.Key(j) == key;
    const unsigned votes = __ballot_sync(~0u, is);
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) warp_counts[warp] = __popc(votes);
    __syncthreads();
    int before = __popc(votes & ((1u << (threadIdx.x % 32)) - 1));
    int total = 0;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) before += warp_counts[w];
      total += warp_counts[w];
    }
    if (is && taken + before < wanted) {
      found[first + taken + before] =
          static_cast<uint64_t>(key) << 32 | (~0u - static_cast<uint32_t>(j));
    }
    taken += total;
    __syncthreads();
  }
}

// Falling; `size` is a power of two.
__device__ void Sort(uint64_t* values, int size) {
  for (int width = 2; width <= size; width *= 2) {
    for (int step = width / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < size; i += kThreads) {
        const int other = i ^ step;
        if (other <= i) continue;
        const bool falling = (i & width) == 0;
        if ((values[i] < values[other]) == falling) {
          const uint64_t kept = values[i];
          values[i] = values[other];
          values[other] = kept;
        }
      }
    }
  }
  __syncthreads();
}

template <bool kCallers>
__global__ void __launch_bounds__(kThreads) TopKKernel(const __grid_constant__ RowPass pass) {
  __shared__ int histogram[256];
  __shared__ uint64_t found[kMaxTopK];
  __shared__ int place;
  const int64_t r = blockIdx.x;
  const int64_t number = kCallers ? (pass.counted[r] != 0 ? r : -1) : pass.index[r];
  if (number < 0 || pass.record->code != 0) return;
  const Row<kCallers> row(pass, r, number);
  const int k = static_cast<int>(pass.columns.topk_ids ? pass.columns.topk_ids.width
                                                       : pass.columns.topk_logprob.width);
  int size = 1;
  while (size < k) size *= 2;
  for (int i = threadIdx.x; i < size; i += kThreads) found[i] = 0;
  if (threadIdx.x == 0) place = 0;
  int larger = 0;
  const uint32_t key = SelectKey(row, k, histogram, &larger);
  for (int j = threadIdx.x; j < row.size(); j += kThreads) {
    const uint32_t mine = row.Key(j);
    if (mine > key) {
      found[atomicAdd(&place, 1)] =
          static_cast<uint64_t>(mine) << 32 | (~0u - static_cast<uint32_t>(j));
    }
  }
  __syncthreads();
  CollectEqual(row, key, larger, k - larger, found);
  Sort(found, size);
  for (int i = threadIdx.x; i < k; i += kThreads) {
    const auto column = ~0u - static_cast<uint32_t>(found[i]);
    if (pass.columns.topk_ids) {
      pass.columns.topk_ids.Row<int32_t>(number)[i] =
          static_cast<int32_t>(pass.head.vocab_start + column);
    }
    if (pass.columns.topk_logprob) {
      pass.columns.topk_logprob.Row<float>(number)[i] =
          FromKey(static_cast<uint32_t>(found[i] >> 32));
    }
  }
}

}  // namespace

cudaError_t LaunchTopK(const RowPass& pass, cudaStream_t stream) {
  if (pass.rows == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(pass.rows);
  if (pass.head.logits) {
    TopKKernel<true><<<blocks, kThreads, 0, stream>>>(pass);
  } else {
    TopKKernel<false><<<blocks, kThreads, 0, stream>>>(pass);
  }
  return cudaGetLastError();
}

cudaError_t PrepareTopKKernel() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, TopKKernel<true>);
  return error == cudaSuccess ? cudaFuncGetAttributes(&attributes, TopKKernel<false>) : error;
}

}  // namespace lossd
