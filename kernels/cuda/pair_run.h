// One RunPair on the GPU: the teacher's values beside the student's sweep, and the sweep over two tensors.
#ifndef LOSSD_KERNELS_CUDA_PAIR_RUN_H_
#define LOSSD_KERNELS_CUDA_PAIR_RUN_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/head_run.h"
#include "kernels/cuda/pair_kernels.h"

namespace lossd {

// The rows of a student with a head: makes the teacher's logits of the chunk, if it has a head, in fp32, and launches the pair's row pass
// in place of the student's own.
class PairStep final : public RowStep {
 public:
  PairStep(const PairPass& pass, const CudaMachine& machine);

  // Takes what does not depend on the chunks from the workspace: a tile of the teacher's weight, if it has to be converted.
  absl::Status AllocateFixed();

  int64_t RowBytes() const override;
  absl::Status Allocate(int64_t largest_chunk) override;
  absl::Status Run(const RowPass& pass) override;
  void Plan(const RowPass& pass) override;

  // After Run or Plan.
  std::string Describe() const;

 private:
  bool has_head() const { return pass_.teacher.form == PairForm::kHead; }
  absl::Status MakeTeacher(const RowPass& pass);
  PairLaunch MakeLaunch(const RowPass& pass) const;

  const PairPass& pass_;
  const HeadProblem& teacher_;
  const CudaMachine& machine_;
  Arena& arena_;
  bool lean_ = false;  // whether the last launch was
  // Of the teacher's head.
  DType product_ = DType::kF32;
  bool convert_weight_ = false;
  int64_t stride_ = 0;    // of the tile
  int64_t x_stride_ = 0;  // of hidden rows and converted weight rows
  std::byte* hidden_ = nullptr;
  float* tile_ = nullptr;
  void* weight_ = nullptr;
  int64_t weight_rows_ = 0;
};

// Two tensors of the caller: one launch, no products.
absl::Status RunPairOfValues(const PairPass& pass, const CudaMachine& machine, std::string* plan);

// Any pair, on a GPU or as a plan.
absl::Status RunPairOn(const CudaMachine& machine, const PairPass& pass, std::string* plan);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_PAIR_RUN_H_
