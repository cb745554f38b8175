// How rows are spread over a GPU by the layers' kernels, and how a kernel of theirs is launched. Plain C++ and CUDA types.
#ifndef LOSSD_KERNELS_CUDA_LAYER_LAUNCH_H_
#define LOSSD_KERNELS_CUDA_LAYER_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <tuple>

#include "kernels/core/result_record.h"
#include "kernels/core/tensor_view.h"

namespace lossd {

// What every kernel of a call clears: its first block, at its start.
struct RecordTarget {
  ResultRecord* record = nullptr;
  ResultRecord* copy = nullptr;  // may be null
};

// A row in registers: `cluster` blocks of `threads` threads, each of which holds up to `packs` times 16 bytes of every tensor.
// threads is 0 where a row is too long, or does not consist of 16-byte packs.
struct LayerShape {
  int threads = 0;
  int cluster = 1;
  int packs = 0;
};

// The smallest cluster in which `small` packs are enough for a thread; where there is none, `large` of them.
LayerShape ChooseLayerShape(int64_t width, DType type, int small, int large, int largest_cluster);

// Whether every row of the view consists of aligned 16-byte packs of elements of `type`. True for an absent view.
bool IsPacked(const RowsView& view, DType type);
// Whether a [H] view can be read in packs beside rows of `type`: of that type or fp32, without gaps. True for an absent view.
bool IsPackedColumns(const RowsView& view, DType type);

// A grid of teams, each a block or a cluster of blocks.
struct TeamGrid {
  int threads = 0;
  int cluster = 1;
  int64_t teams = 0;
  // The kernel waits itself for the one before it (cudaGridDependencySynchronize), and may be started early.
  bool overlaps = false;
};

TeamGrid GridOf(const LayerShape& shape, int64_t teams);

// Facts of a device and of kernels on it. Of the dispatcher's thread.
class LayerLimits {
 public:
  LayerLimits() = default;
  LayerLimits(int multiprocessors, bool has_clusters)
      : multiprocessors_(multiprocessors), has_clusters_(has_clusters) {}

  int multiprocessors() const { return multiprocessors_; }
  bool has_clusters() const { return has_clusters_; }
  // Blocks of a cluster that there can be; more than 8 are not promised by every GPU.
  int largest_cluster() const { return has_clusters_ ? 16 : 1; }

  // Teams of the kernel that run at once; 0 where the GPU cannot hold one. Asked once for each kernel and shape.
  cudaError_t Resident(const void* kernel, int threads, int cluster, int* teams);

 private:
  int multiprocessors_ = 1;
  bool has_clusters_ = false;
  std::map<std::tuple<const void*, int, int>, int> resident_;
};

// Teams of the kernels for any layout.
int64_t AnyLayoutTeams(const LayerLimits& limits);

// Enqueues kernel(launch), a __grid_constant__ argument of any type.
cudaError_t LaunchTeams(const void* kernel, const void* launch, const TeamGrid& grid,
                        cudaStream_t stream);
// Loads a kernel and allows it the largest clusters that the GPU has.
cudaError_t PrepareLayerKernel(const void* kernel);
// Enqueues a kernel that clears the record and nothing else.
cudaError_t LaunchClearRecord(const RecordTarget& record, cudaStream_t stream);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_LAYER_LAUNCH_H_
