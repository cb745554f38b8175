// What the CUDA driver of this machine can do, asked without linking it.
#ifndef LOSSD_CLIENT_CTL_CUDA_PROBE_H_
#define LOSSD_CLIENT_CTL_CUDA_PROBE_H_

#include <string>
#include <vector>

namespace lossd::ctl {

struct CudaDevice {
  std::string name;
  bool ipc = false;  // an allocation's IPC handle could be made
  std::string ipc_error;
};

struct CudaProbe {
  std::string driver_error;  // why there is no driver; empty if there is one
  int driver_version = 0;    // 13000 = 13.0
  std::vector<CudaDevice> devices;
};

// Loads libcuda.so.1, and makes one small allocation on each device. Leaves nothing behind.
CudaProbe ProbeCuda();

}  // namespace lossd::ctl

#endif  // LOSSD_CLIENT_CTL_CUDA_PROBE_H_
