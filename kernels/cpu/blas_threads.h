// The thread count that OpenBLAS has in this process, whoever uses it. Both functions load it.
#ifndef LOSSD_KERNELS_CPU_BLAS_THREADS_H_
#define LOSSD_KERNELS_CPU_BLAS_THREADS_H_

namespace lossd {

// 0 where there is no OpenBLAS.
int BlasThreads();
// 0 is ignored.
void SetBlasThreads(int count);

}  // namespace lossd

#endif  // LOSSD_KERNELS_CPU_BLAS_THREADS_H_
