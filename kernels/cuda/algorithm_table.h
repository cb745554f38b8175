// The library's algorithms that were measured to be the fastest on one GPU: a text file that `lossctl tune` writes and `lossd --algorithms`
// reads. Plain C++: no CUDA.
//
//   lossd algorithms 1
//   library cublaslt 130100
//   gpu NVIDIA H200
//   logits rows=4096 hidden=4096 vocab=128256 inputs=bf16 output=f32 order=any algorithm=66 tile=... (every attribute)
//
// Empty lines and lines that begin with # say nothing.
#ifndef LOSSD_KERNELS_CUDA_ALGORITHM_TABLE_H_
#define LOSSD_KERNELS_CUDA_ALGORITHM_TABLE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/core/dtype.h"

namespace lossd {

enum class ProductKind {
  kLogits,      // [rows, hidden] [vocab, hidden]^T
  kGradHidden,  // [rows, vocab] [vocab, hidden]
  kGradWeight,  // [rows, vocab]^T [rows, hidden]
};

struct ProductShape {
  ProductKind kind = ProductKind::kLogits;
  int64_t rows = 0;
  int64_t hidden = 0;
  int64_t vocab = 0;
  DType inputs = DType::kBF16;
  DType output = DType::kF32;
  bool fixed_order = false;  // Product::fixed_order

  friend bool operator==(const ProductShape& a, const ProductShape& b) {
    return a.kind == b.kind && a.rows == b.rows && a.hidden == b.hidden && a.vocab == b.vocab &&
           a.inputs == b.inputs && a.output == b.output && a.fixed_order == b.fixed_order;
  }
};

// What tells the library's algorithms apart: its configuration attributes, in the order of kAlgorithmAttributes.
inline constexpr const char* kAlgorithmAttributes[] = {
    "algorithm", "tile", "stages", "cluster", "split_k", "reduction", "swizzle", "inner", "custom"};
inline constexpr size_t kAlgorithmAttributeCount = 9;
using Algorithm = std::array<int64_t, kAlgorithmAttributeCount>;

struct AlgorithmLine {
  ProductShape product;
  Algorithm algorithm = {};
  int number = 0;       // of the line in its file
  std::string comment;  // written in front of it
};

class AlgorithmTable {
 public:
  AlgorithmTable() = default;
  AlgorithmTable(std::string gpu, int64_t library) : gpu_(std::move(gpu)), library_(library) {}

  // Errors: INVALID_ARGUMENT "FILE:LINE: what: must be ..., is ..."
  static absl::StatusOr<AlgorithmTable> Parse(absl::string_view text, absl::string_view file);
  // Also NOT_FOUND, if it cannot be read.
  static absl::StatusOr<AlgorithmTable> Read(const std::string& file);
  std::string ToText() const;

  // FAILED_PRECONDITION, naming the line, if it was written for another GPU or another version of the library.
  absl::Status CheckMadeFor(absl::string_view gpu, int64_t library) const;
  // An error about one of its lines.
  absl::Status LineError(int number, absl::string_view text) const;

  // A line holds for products of its types, order and hidden size that have at least its rows and its vocabulary; of several the one with
  // the largest vocabulary, then with the most rows. Null if there is none.
  const AlgorithmLine* Find(const ProductShape& product) const;

  // False if there is a line for this product.
  bool Add(AlgorithmLine line);
  bool empty() const { return lines_.empty(); }
  const std::vector<AlgorithmLine>& lines() const { return lines_; }
  const std::string& gpu() const { return gpu_; }
  int64_t library() const { return library_; }

 private:
  std::string file_ = "the table";
  std::string gpu_;
  int64_t library_ = 0;
  int gpu_line_ = 0;
  int library_line_ = 0;
  std::vector<AlgorithmLine> lines_;
};

// "logits rows=4096 hidden=4096 vocab=128256 inputs=bf16 output=f32 order=any"
std::string Describe(const ProductShape& product);
// "algorithm=66 tile=..."
std::string Describe(const Algorithm& algorithm);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CUDA_ALGORITHM_TABLE_H_
