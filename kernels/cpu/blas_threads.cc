#include "kernels/cpu/blas_threads.h"

#include <dlfcn.h>

namespace lossd {
namespace {

// Of the library that Gemm::Load loads too. Stays loaded.
void* Find(const char* name) {
  void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : dlsym(library, name);
}

}  // namespace

int BlasThreads() {
  static const auto get = reinterpret_cast<int (*)()>(Find("openblas_get_num_threads"));
  return get == nullptr ? 0 : get();
}

void SetBlasThreads(int count) {
  static const auto set = reinterpret_cast<void (*)(int)>(Find("openblas_set_num_threads"));
  if (set != nullptr && count > 0) set(count);
}

}  // namespace lossd
