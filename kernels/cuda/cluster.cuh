// Thread-block clusters where the GPU has them (compute capability 9); elsewhere a cluster is one block.
#ifndef LOSSD_KERNELS_CUDA_CLUSTER_CUH_
#define LOSSD_KERNELS_CUDA_CLUSTER_CUH_

#include <cooperative_groups.h>

namespace lossd {

// Blocks of a row. Borrowed by the threads of a kernel.
class Cluster {
 public:
  __device__ explicit Cluster(int size) : size_(size), rank_(0) {
#if __CUDA_ARCH__ >= 900
    if (size_ > 1) rank_ = static_cast<int>(cooperative_groups::this_cluster().block_rank());
#endif
  }
  __device__ int size() const { return size_; }
  __device__ int rank() const { return rank_; }

  // Barrier of all threads of all blocks; what was written to shared memory before it is seen after it.
  __device__ void Sync() const {
#if __CUDA_ARCH__ >= 900
    if (size_ > 1) {
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    __syncthreads();
  }

  // The barrier in two parts, for work between them that reads nothing of other blocks. Of one block it is none.
  __device__ void Arrive() const {
#if __CUDA_ARCH__ >= 900
    if (size_ > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
  }
  __device__ void Wait() const {
#if __CUDA_ARCH__ >= 900
    if (size_ > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  }

  // The same object in the shared memory of another block.
  template <class T>
  __device__ T* Of(T* mine, int rank) const {
#if __CUDA_ARCH__ >= 900
    if (size_ > 1) return cooperative_groups::this_cluster().map_shared_rank(mine, rank);
#endif
    return mine;
  }

 private:
  int size_;
  int rank_;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_CLUSTER_CUH_
