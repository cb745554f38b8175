// How the rows of a call are cut so that their logits fit in the workspace. Plain arithmetic: no CUDA.
#ifndef LOSSD_KERNELS_CUDA_CHUNK_PLAN_H_
#define LOSSD_KERNELS_CUDA_CHUNK_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

namespace lossd {

// A chunk is the rows of one dX and one dW product. Its logits are made in slices: each slice's fp32 logits lie behind the dz rows that
// earlier slices left, and its own dz, half as large, moves down to them. So a chunk of R rows needs little more than 2 R V bytes.
struct ChunkPlan {
  // The dz rows of a sliced chunk must not run into logits that are still to be read: a slice's logits start this many fp32 rows late,
  // and its row pass is launched for 2 kGapRows rows first, then for as many more as have become safe.
  static constexpr int64_t kGapRows = 32;
  std::vector<int64_t> chunks;
  // By chunk: the rows of its slices. One slice: dz is written over the logits in place.
  std::vector<std::vector<int64_t>> slices;

  int64_t LargestChunk() const;
  // "chunks=2x4096"
  std::string Describe() const;
};

struct ChunkRequest {
  int64_t rows = 0;          // to compute
  int64_t logits_bytes = 0;  // of one row in fp32, with its padding
  int64_t row_bytes = 0;     // of everything else that grows with the chunk
  int64_t budget = 0;        // bytes
  bool sliced = false;       // dz is 16 bits wide and may be moved
  bool one_slice = false;    // though it may, it is not: several chunks cost less than small slices
  int64_t row_multiple = 128;  // of the rows of a chunk and of a slice, but for the last
  // Bytes of a row that are wanted once the chunk's slices are done; the logits of the last slice make place for them.
  int64_t late_row_bytes = 0;
};

// True if all rows make one chunk; then *plan is it.
bool PlanOneChunk(const ChunkRequest& request, ChunkPlan* plan);

// As few chunks as fit, about equal. False if not even `min_rows` rows (or all, if there are fewer) fit.
bool PlanChunks(const ChunkRequest& request, int64_t min_rows, ChunkPlan* plan);

// Bytes of memory for the logits, the dz and the late rows of a chunk with these slices.
int64_t RegionBytes(const ChunkRequest& request, const std::vector<int64_t>& slices);

// How many of a slice's rows a launch of the row pass may take that starts at row `begin`: end of that range.
int64_t SafeEnd(int64_t begin, int64_t slice_rows);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_CHUNK_PLAN_H_
