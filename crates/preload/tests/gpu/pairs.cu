// Times a pair of an allocation and a free, in ns.
#include <chrono>
#include <cstdio>
#include <cuda_runtime.h>

template <class F> static double time_of(int rounds, F pair) {
  for (int i = 0; i < rounds / 10; i++) pair();
  auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < rounds; i++) pair();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / rounds;
}

int main() {
  void *p, *first;
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaMemPool_t pool;
  cudaDeviceGetDefaultMemPool(&pool, 0);
  unsigned long long most = ~0ull;
  cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &most);
  cudaMallocAsync(&first, 1 << 20, stream);
  for (size_t bytes : {4096ul, 1ul << 20, 64ul << 20}) {
    double ordered = time_of(200000, [&] { cudaMallocAsync(&p, bytes, stream); cudaFreeAsync(p, stream); });
    double legacy = time_of(50000, [&] { cudaMallocAsync(&p, bytes, 0); cudaFreeAsync(p, 0); });
    double thread = time_of(50000, [&] { cudaMallocAsync(&p, bytes, cudaStreamPerThread); cudaFreeAsync(p, cudaStreamPerThread); });
    double plain = time_of(2000, [&] { cudaMalloc(&p, bytes); cudaFree(p); });
    printf("pair of %zu bytes, ns: stream %.0f, default stream %.0f, thread's stream %.0f, cudaMalloc %.0f\n", bytes, ordered, legacy, thread, plain);
  }
  printf("%s\n", cudaGetErrorString(cudaGetLastError()));
}
