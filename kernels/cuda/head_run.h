// One RunHead on the GPU: what is decided, the memory it takes, and the sweep over chunks.
#ifndef LOSSD_KERNELS_CUDA_HEAD_RUN_H_
#define LOSSD_KERNELS_CUDA_HEAD_RUN_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/block_lists.h"
#include "kernels/cuda/chunk_plan.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_facts.h"
#include "kernels/cuda/cuda_machine.h"
#include "kernels/cuda/exp_rows.h"
#include "kernels/cuda/head_kernels.h"
#include "kernels/cuda/row_kernels.h"
#include "kernels/linear/head_backend.h"
#include "kernels/linear/planner.h"

namespace lossd {

// Runs the rows of a chunk in place of the row pass of the HeadPass's program, for objectives that read more than these logits.
class RowStep {
 public:
  virtual ~RowStep() = default;
  // Workspace that it wants for each row of the largest slice.
  virtual int64_t RowBytes() const = 0;
  // Takes that workspace. Once, before the first chunk.
  virtual absl::Status Allocate(int64_t largest_slice) = 0;
  // Enqueues what LaunchRowPass would. dz_mode kMeasure is followed by kF16 of the same rows, which must give the same.
  virtual absl::Status Run(const RowPass& pass) = 0;
  // In place of it where nothing is enqueued: once, with the first rows.
  virtual void Plan(const RowPass& pass) = 0;
};

// For each chunk of rows: the logits in fp32, slice by slice; the row pass, which leaves dz over the logits, rounded once to the
// products' type; dX = dz W; dW = dz^T x, by beta = 1 from the second chunk on. Inputs of one 16-bit type are multiplied as they are;
// anything else, and heads so small that speed is no matter, in fp32 (no TF32). fp16's dz is scaled by a power of two that the row
// pass finds in a pass of its own, since 1e-5 times a probability is no fp16 number.
// Where the GPU has it and the objective's gradient is c p - a [j = y], the logits product keeps exponentials in its epilogue instead
// (exp_rows.h): no logits are stored, the row pass is gone, and dz is rounded once as before.
// Rows whose gradient is zero take no part in the products: they may hold NaNs, and 0 times NaN is NaN.
class HeadRun {
 public:
  // `step` is null for the row pass of pass.program.
  HeadRun(const HeadPass& pass, const CudaMachine& machine, RowStep* step = nullptr);

  // Enqueues everything; on a machine that only plans: plans.
  absl::Status Run();
  // Whether with batch_invariant the statistics are to come from the product with exponentials, though the rest of the pass needs the
  // logits: every operation then has the same bits. A pass that Keeps comes first, then this one that Takes what the program answered
  // ([N], device memory).
  bool TakesStatistics() const;
  bool UsesExp() const { return WhyNotExp().what == nullptr; }
  void Keep(StoredRow* stored) { exp_rows_.stored = stored; }
  void Take(StoredRow* stored) { taken_ = stored; }
  static HeadPass StatisticsOnly(const HeadPass& pass);
  // The same after a sweep of `first` over the same logits, which stay in the workspace while `between` enqueues what needs its results.
  // False, and nothing has been enqueued, if the workspace does not hold the logits of all rows.
  absl::StatusOr<bool> RunAfter(const HeadPass& first,
                                const std::function<absl::Status()>& between);
  std::string Describe() const;
  // After Run. Without the memory.
  PlannedPass Explain() const;

 private:
  // Rows of a tile of grad_hidden behind the product with exponentials: as many as the library's product wants to fill the GPU.
  static constexpr int64_t kExpDxRows = 4096;

  // How the gradient of the weight reaches its destination.
  enum class WeightPath {
    kNone,
    kDirect,       // the products write or accumulate there
    kTiles,        // one chunk: tiles of rows in fp32, each finished before the next
    kAccumulator,  // several chunks: [V, H] in fp32 in the workspace
    kSlices,  // slices of the vocabulary, each from one product over all rows; the logits product is made twice
  };
  struct Chunk {
    int64_t begin = 0;  // first row, in the order of index_
    int64_t rows = 0;   // with padding
    int64_t real = 0;   // without
    bool first = false;
    PackedRows dz;
    PackedRows x;  // rows for the product with dz
  };
  // Why a faster way is not taken: a field of the request or a fact of the device, and what is wrong with it. Null: it is taken.
  struct Refusal {
    const char* what = nullptr;
    const char* why = nullptr;
  };
  // The rows of a chunk that the products of its gradients take.
  struct ExpOrder {
    int64_t rows = 0;
    const int32_t* order = nullptr;  // as of LaunchOrderRows; null: all, in their order
  };
  // A part of the weight in the products' type.
  struct WeightTile {
    int64_t begin = 0;
    int64_t rows = 0;
    ProductOperand operand;
  };

  // head_plan.cc
  // Decides, and takes the memory from the workspace. Enqueues nothing.
  absl::Status Plan();
  absl::Status PlanChunksOrFail();
  bool PlanLargeChunks();
  bool PlanApart();
  absl::Status AllocateFixed();
  absl::Status AllocateBiasSums();
  // Enqueues the first contents of what Plan has taken.
  absl::Status Prepare();
  // head_exp.cc
  // Whether the copy engine takes rows of 16 bits from there.
  static bool IsAligned(const RowsView& view);
  // Why the pass does not go that way.
  Refusal WhyNotExp() const;
  DType ProductType() const;
  absl::StatusOr<bool> PlanExp();
  bool PlanExpChunks();
  bool PlanExpSlices();
  absl::Status AllocateExp();
  bool StoresExp() const;
  int64_t ExpRoom() const;
  int64_t ExpBytes(int64_t rows) const;
  int64_t ExpLateBytes(int64_t rows) const;
  int64_t ExpSliceBytes(int64_t columns) const;
  ExpRows ExpRowsOf(const Chunk& chunk) const;
  absl::Status RunExpChunk(const Chunk& chunk);
  absl::Status MultiplyExp(const Chunk& chunk, const ExpRows& rows, int64_t begin, int64_t columns,
                           bool known);
  // head_exp_gradients.cc
  // Whether rows without gradient leave before the products of gradients: the host waits for their number.
  bool DropsRows() const;
  absl::StatusOr<ExpOrder> DropRows(const Chunk& chunk, const ExpRows& rows);
  absl::Status ScaleExpRows(const Chunk& chunk, const ExpRows& rows, const ExpOrder& order,
                            PackedRows* scaled);
  absl::Status MakeExpGradients(const Chunk& chunk, const ExpRows& rows);
  absl::Status RunExpSlices();
  bool CanFilter() const;
  absl::Status AllocateFilter(int64_t rows);
  int64_t FilterBytes(int64_t rows) const;
  absl::Status MakeFilteredGradients(const Chunk& chunk, const ExpRows& rows);
  absl::Status AllocateWeightPath();
  bool IsDirect(const RowsView& view) const;
  ChunkRequest MakeRequest() const;

  // head_explain.cc
  ProductCost Cost() const;
  void ExplainTypes(std::vector<std::string>* reasons) const;
  void ExplainWeight(PlannedPass* out) const;
  void ExplainFilter(PlannedPass* out) const;

  absl::Status RunEmpty();
  // The end of a run that only plans.
  void HandOver();
  absl::StatusOr<Chunk> MakeChunk(size_t number, int64_t begin);
  absl::Status RunChunk(size_t number, int64_t begin);
  absl::Status MakeLogits(const Chunk& chunk, int64_t done, int64_t rows, float* logits);
  // The part of a row pass that does not depend on what is made of the logits.
  RowPass DescribeRows(const HeadPass& pass, const Chunk& chunk, int64_t done, int64_t rows,
                       const float* logits) const;
  absl::Status PassFirst(const Chunk& chunk, int64_t rows, const float* logits);
  absl::Status PassRows(const Chunk& chunk, int64_t done, int64_t rows, const float* logits,
                        void* dz, bool in_place);
  absl::Status PassRowsScaled(const RowPass& pass);
  absl::Status LaunchRows(const RowPass& pass);
  absl::StatusOr<PackedRows> MakeCleanRows(const Chunk& chunk, bool in_place);
  absl::Status AddWeightGradient(const Chunk& chunk);
  // Rows begin ... begin + columns - 1 of it, from a dz of these columns alone.
  absl::Status MakeWeightSlice(const Chunk& chunk, int64_t begin, int64_t columns);
  absl::Status MakeHiddenGradient(const Chunk& chunk);
  absl::Status MultiplyByWeight(const Chunk& chunk, int64_t first, int64_t rows,
                                const PackedRows& out);
  absl::Status FinishWeightAndBias();

  absl::StatusOr<WeightTile> LoadWeight(int64_t begin);
  void SetScalars(Product* product, bool accumulate) const;
  absl::Status Launched(cudaError_t error, const char* what) const;

  const HeadPass& pass_;
  const HeadProblem& head_;
  const CudaFacts facts_;
  Arena& arena_;
  // Null where it only plans.
  CudaDevice* const device_;
  CublasLt* const products_;
  PlanSink* const plans_;
  const cudaStream_t stream_;
  const double worth_waiting_;
  RowStep* step_;
  RowShape shape_;
  // Of RunAfter.
  const HeadPass* first_ = nullptr;
  const std::function<absl::Status()>* between_ = nullptr;

  // Decided by Plan.
  DType product_ = DType::kF32;
  DzMode dz_mode_ = DzMode::kNone;
  bool gather_ = false;  // hidden rows are copied before the logits
  bool convert_weight_ = false;
  bool identity_ = false;  // row i of a chunk is row begin + i of the call
  int64_t real_rows_ = 0;
  int64_t rows_ = 0;      // real_rows_, or more for the fixed tiles of batch_invariant
  int64_t columns_ = 0;   // valid ones
  int64_t stride_ = 0;    // of logits, elements
  int64_t x_stride_ = 0;  // of packed hidden rows
  WeightPath weight_path_ = WeightPath::kNone;
  DType dx_dtype_ = DType::kF32;
  bool dx_direct_ = false;
  bool exp_allowed_ = true;
  bool exp_ = false;
  Refusal why_not_exp_;
  ChunkPlan plan_;
  // Rows of a slice whose logits lie behind the dz rows of the whole chunk; 0: dz is written over the logits.
  int64_t apart_rows_ = 0;

  // Workspace.
  const int32_t* index_ = nullptr;   // [rows_]
  int32_t* padded_index_ = nullptr;  // the same, if it is not that of the call
  uint8_t* live_ = nullptr;          // [largest chunk]
  StoredRow* stored_ = nullptr;
  const StoredRow* taken_ = nullptr;
  DzScalars* scalars_ = nullptr;
  float* bias_sums_ = nullptr;
  float* bias_partials_ = nullptr;
  void* weight_tile_ = nullptr;
  int64_t weight_tile_rows_ = 0;
  int64_t weight_tile_begin_ = -1;  // what the tile holds
  float* dw_ = nullptr;             // tile or accumulator
  int64_t dw_rows_ = 0;
  void* dx_tile_ = nullptr;
  int64_t dx_tile_rows_ = 0;
  std::byte* x_ = nullptr;       // gathered rows of a chunk
  std::byte* region_ = nullptr;  // logits, dz
  // Of exp_: arrays for the largest chunk. late_ holds the sums, then the scaled rows, then a tile of grad_hidden.
  ExpRows exp_rows_;
  float* exp_bias_ = nullptr;  // [tiles of columns]
  std::byte* late_ = nullptr;
  int64_t slice_columns_ = 0;
  int32_t* order_ = nullptr;  // of DropsRows
  int32_t* live_count_ = nullptr;
  int64_t gradient_rows_ = 0;  // that the products of gradients have taken
  bool filters_ = false;
  BlockLists lists_;
  uint8_t* mass_ = nullptr;
};

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_HEAD_RUN_H_
