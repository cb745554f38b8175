#include "client/ctl/cuda_probe.h"

#include <dlfcn.h>

#include <cstddef>

#include "absl/strings/str_cat.h"

namespace lossd::ctl {
namespace {

// The part of the driver's interface that is used here; it is stable, and its header need not be installed.
using CudaError = int;
using CudaDeviceNumber = int;
using CudaContext = void*;
using CudaPointer = unsigned long long;
struct CudaIpcHandle {
  char bytes[64];
};

// A function of the driver; null if it is not there.
template <class Function>
Function Load(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

struct Driver {
  explicit Driver(void* library)
      : Init(Load<CudaError (*)(unsigned)>(library, "cuInit")),
        GetVersion(Load<CudaError (*)(int*)>(library, "cuDriverGetVersion")),
        GetCount(Load<CudaError (*)(int*)>(library, "cuDeviceGetCount")),
        GetDevice(Load<CudaError (*)(CudaDeviceNumber*, int)>(library, "cuDeviceGet")),
        GetName(Load<CudaError (*)(char*, int, CudaDeviceNumber)>(library, "cuDeviceGetName")),
        Retain(Load<CudaError (*)(CudaContext*, CudaDeviceNumber)>(library,
                                                                   "cuDevicePrimaryCtxRetain")),
        Release(Load<CudaError (*)(CudaDeviceNumber)>(library, "cuDevicePrimaryCtxRelease_v2")),
        SetContext(Load<CudaError (*)(CudaContext)>(library, "cuCtxSetCurrent")),
        Allocate(Load<CudaError (*)(CudaPointer*, size_t)>(library, "cuMemAlloc_v2")),
        Free(Load<CudaError (*)(CudaPointer)>(library, "cuMemFree_v2")),
        GetHandle(Load<CudaError (*)(CudaIpcHandle*, CudaPointer)>(library, "cuIpcGetMemHandle")) {}

  bool complete() const {
    return Init && GetVersion && GetCount && GetDevice && GetName && Retain && Release &&
           SetContext && Allocate && Free && GetHandle;
  }

  CudaError (*Init)(unsigned);
  CudaError (*GetVersion)(int*);
  CudaError (*GetCount)(int*);
  CudaError (*GetDevice)(CudaDeviceNumber*, int);
  CudaError (*GetName)(char*, int, CudaDeviceNumber);
  CudaError (*Retain)(CudaContext*, CudaDeviceNumber);
  CudaError (*Release)(CudaDeviceNumber);
  CudaError (*SetContext)(CudaContext);
  CudaError (*Allocate)(CudaPointer*, size_t);
  CudaError (*Free)(CudaPointer);
  CudaError (*GetHandle)(CudaIpcHandle*, CudaPointer);
};

CudaDevice ProbeDevice(const Driver& driver, int index) {
  CudaDevice result;
  CudaDeviceNumber device = 0;
  char name[256] = {};
  if (driver.GetDevice(&device, index) == 0) driver.GetName(name, sizeof name - 1, device);
  result.name = name;
  CudaContext context = nullptr;
  CudaError error = driver.Retain(&context, device);
  if (error != 0) {
    result.ipc_error = absl::StrCat("no context, CUDA error ", error);
    return result;
  }
  CudaPointer memory = 0;
  CudaIpcHandle handle = {};
  error = driver.SetContext(context);
  if (error == 0) error = driver.Allocate(&memory, 2 << 20);
  if (error == 0) error = driver.GetHandle(&handle, memory);
  if (memory != 0) driver.Free(memory);
  driver.SetContext(nullptr);
  driver.Release(device);
  result.ipc = error == 0;
  if (error != 0) result.ipc_error = absl::StrCat("CUDA error ", error);
  return result;
}

}  // namespace

CudaProbe ProbeCuda() {
  CudaProbe probe;
  // Never closed: the driver has threads of its own.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    probe.driver_error = "libcuda.so.1 cannot be loaded";
    return probe;
  }
  const Driver driver(library);
  if (!driver.complete()) {
    probe.driver_error = "libcuda.so.1 is too old";
    return probe;
  }
  const CudaError error = driver.Init(0);
  if (error != 0) {
    probe.driver_error = absl::StrCat("cuInit gives error ", error);
    return probe;
  }
  driver.GetVersion(&probe.driver_version);
  int count = 0;
  driver.GetCount(&count);
  for (int i = 0; i < count; ++i) probe.devices.push_back(ProbeDevice(driver, i));
  return probe;
}

}  // namespace lossd::ctl
