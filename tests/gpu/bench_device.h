// What the benchmarks on a GPU share: device tensors, times, clocks. Errors end the program.
#ifndef LOSSD_TESTS_GPU_BENCH_DEVICE_H_
#define LOSSD_TESTS_GPU_BENCH_DEVICE_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/binding.h"
#include "kernels/cuda/buffer.h"
#include "kernels/cuda/check.h"

namespace lossd {

inline void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << std::endl;
  std::exit(1);
}
inline void Check(cudaError_t error) { Check(CudaStatus(error, "run the benchmark")); }
template <class T>
T OrDie(absl::StatusOr<T> result) {
  Check(result.status());
  return *std::move(result);
}

// Device memory by region id.
class Regions final : public RegionResolver {
 public:
  uint64_t Add(uint64_t bytes) {
    buffers_.push_back(OrDie(DeviceBuffer::Create(bytes, "allocate the benchmark's tensors")));
    return buffers_.size();
  }
  void* data(uint64_t id) const { return buffers_[id - 1].data(); }
  absl::StatusOr<Region> Resolve(uint64_t id) const override {
    Region region;
    region.base = buffers_[id - 1].data();
    region.bytes = buffers_[id - 1].bytes();
    region.writable = true;
    return region;
  }

 private:
  std::vector<DeviceBuffer> buffers_;
};

inline void Describe(v1::Tensor* tensor, v1::DType dtype, std::initializer_list<int64_t> shape,
                     uint64_t id) {
  tensor->set_dtype(dtype);
  for (const int64_t extent : shape) tensor->add_shape(extent);
  tensor->mutable_region()->set_region(id);
  tensor->mutable_region()->set_byte_offset(0);
}

struct Timer {
  cudaEvent_t begin, end;
  Timer() {
    Check(cudaEventCreate(&begin));
    Check(cudaEventCreate(&end));
  }
  template <class F>
  double Milliseconds(cudaStream_t stream, F f) {
    Check(cudaEventRecord(begin, stream));
    f();
    Check(cudaEventRecord(end, stream));
    Check(cudaEventSynchronize(end));
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end));
    return ms;
  }
};

// Median and spread.
inline std::string Summary(std::vector<double> times, double* median) {
  std::sort(times.begin(), times.end());
  *median = times[times.size() / 2];
  char text[96];
  std::snprintf(text, sizeof(text), "%8.3f ms  (10%% %.3f, 90%% %.3f, n %zu)", *median,
                times[times.size() / 10], times[times.size() * 9 / 10], times.size());
  return text;
}

inline void PrintClocks() {
  std::fflush(stdout);
  if (std::system(
          "nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv,noheader") !=
      0) {
    std::printf("nvidia-smi is not there\n");
  }
}

}  // namespace lossd

#endif  // LOSSD_TESTS_GPU_BENCH_DEVICE_H_
