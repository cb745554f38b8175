// LOSSD_HD marks functions that run on the host and on a GPU; without nvcc it is nothing.
#ifndef LOSSD_KERNELS_CORE_HOST_DEVICE_H_
#define LOSSD_KERNELS_CORE_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define LOSSD_HD __host__ __device__ __forceinline__
#else
#define LOSSD_HD inline __attribute__((always_inline))
#endif

#endif  // LOSSD_KERNELS_CORE_HOST_DEVICE_H_
