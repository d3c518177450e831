// The driver's stream-ordered pool, with a release threshold of 0 and without one.
//
//   nvcc -O2 -std=c++20 -arch=sm_90 driver.cu -o driver
#include "workloads.hpp"
int main() {
  check(cudaSetDevice(0));
  check(cudaFree(0));
  for (int thr = 0; thr < 2; ++thr) {
    cudaMemPool_t pool;
    check(cudaDeviceGetDefaultMemPool(&pool, 0));
    unsigned long long t = thr ? ~0ull : 0;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &t));
    Peer p{thr ? "cudaMallocAsync(max)" : "cudaMallocAsync(0)",
           [](size_t n, cudaStream_t s) {
             void* q;
             check(cudaMallocAsync(&q, n, s));
             return q;
           },
           [](void* q, size_t, cudaStream_t s) { check(cudaFreeAsync(q, s)); },
           [pool] {
             unsigned long long v;
             check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &v));
             return (size_t)v;
           }};
    run_all(p);
  }
  return 0;
}
