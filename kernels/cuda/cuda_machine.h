// What the head's calls run on: a GPU, or the description of one.
#ifndef LOSSD_KERNELS_CUDA_CUDA_MACHINE_H_
#define LOSSD_KERNELS_CUDA_CUDA_MACHINE_H_

#include "kernels/core/arena.h"
#include "kernels/cuda/cuda_facts.h"

namespace lossd {

class CublasLt;
class CudaDevice;
class HeadRun;

// Is told of every plan, while the plan's memory is still taken from the workspace.
class PlanSink {
 public:
  virtual ~PlanSink() = default;
  virtual void Add(const HeadRun& run) = 0;
  // Why the sweeps to come multiply the same logits one after the other.
  virtual void AddRepeat(const char* reason) = 0;
};

// All pointers are borrowed.
struct CudaMachine {
  CudaFacts facts;
  Arena* workspace = nullptr;
  int largest_pair_cluster = 1;  // LargestPairCluster of the GPU
  // Null: nothing is enqueued, and the workspace is neither read nor written.
  CudaDevice* device = nullptr;
  CublasLt* products = nullptr;
  PlanSink* plans = nullptr;  // without a device
  // From so many multiplications on, the products of gradients are worth a wait of the host for the number of rows that have one: 2 ms of an
  // H200.
  double worth_waiting = 7e11;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_CUDA_MACHINE_H_
