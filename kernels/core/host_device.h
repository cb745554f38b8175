// LOSSD_HD marks functions that run on the host and on a GPU; without nvcc it only says inline. LOSSD_HD_CALLED: the same for code that is
// large and seldom run. Kernels that run through their code once, so that fetching it is what takes the time, define LOSSD_SHORT_CODE and
// have one copy of it; others inline it, for a call costs registers.
#ifndef LOSSD_KERNELS_CORE_HOST_DEVICE_H_
#define LOSSD_KERNELS_CORE_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define LOSSD_HD __host__ __device__ __forceinline__
#else
#define LOSSD_HD inline __attribute__((always_inline))
#endif

#if defined(__CUDACC__) && defined(LOSSD_SHORT_CODE)
#define LOSSD_HD_CALLED __host__ __device__ __noinline__ inline
#else
#define LOSSD_HD_CALLED LOSSD_HD
#endif

#endif  // LOSSD_KERNELS_CORE_HOST_DEVICE_H_
