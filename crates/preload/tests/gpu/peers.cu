// Two devices: each reads and writes memory of the other, by kernels and copies.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

__global__ void add(const float *from, float *to, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] += from[i] + 1;
}

#define CHECK(call) do { cudaError_t status = (call); if (status) { printf("%s: %s\n", #call, cudaGetErrorString(status)); exit(1); } } while (0)

int main() {
  const int n = 1 << 20;
  int count = 0;
  CHECK(cudaGetDeviceCount(&count));
  if (count < 2) return puts("one device"), 0;
  float *at[2], *ordered, host = 0;
  cudaStream_t stream;
  for (int device = 0; device < 2; device++) {
    CHECK(cudaSetDevice(device));
    CHECK(cudaMalloc(&at[device], n * 4));
    CHECK(cudaMemset(at[device], 0, n * 4));
    CHECK(cudaDeviceEnablePeerAccess(1 - device, 0));
  }
  CHECK(cudaSetDevice(0));
  add<<<n / 256, 256>>>(at[1], at[0], n);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaSetDevice(1));
  add<<<n / 256, 256>>>(at[0], at[1], n);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpyPeer(at[0], 0, at[1], 1, n * 4));
  CHECK(cudaMemcpy(&host, at[0] + n - 1, 4, cudaMemcpyDefault));
  printf("by contexts: %g\n", host);
  // A pool's memory, which has its own list.
  cudaMemPool_t pool;
  cudaMemAccessDesc access = {{cudaMemLocationTypeDevice, 1}, cudaMemAccessFlagsProtReadWrite};
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cudaMemPoolSetAccess(pool, &access, 1));
  CHECK(cudaSetDevice(0));
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaMallocAsync(&ordered, n * 4, stream));
  CHECK(cudaMemsetAsync(ordered, 0, n * 4, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaSetDevice(1));
  add<<<n / 256, 256>>>(at[1], ordered, n);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy(&host, ordered, 4, cudaMemcpyDefault));
  printf("by pools: %g\n", host);
}
