// The resource of `cuda::mr` on a GPU: kernels on streams of a library that takes any resource.
#include "weirpool.hpp"

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                        \
    }                                                                      \
  } while (0)
#define CUDA(call) CHECK((call) == cudaSuccess)

__global__ void begin(std::uint64_t* values, std::size_t count, std::uint64_t seed) {
  for (std::size_t n = blockIdx.x * blockDim.x + threadIdx.x; n < count; n += gridDim.x * blockDim.x) values[n] = seed + n;
}

__global__ void scale(std::uint64_t const* from, std::uint64_t* to, std::size_t count) {
  for (std::size_t n = blockIdx.x * blockDim.x + threadIdx.x; n < count; n += gridDim.x * blockDim.x) to[n] = 3 * from[n];
}

__global__ void count_wrong(std::uint64_t const* values, std::size_t count, std::uint64_t seed, unsigned* wrong) {
  for (std::size_t n = blockIdx.x * blockDim.x + threadIdx.x; n < count; n += gridDim.x * blockDim.x)
    if (values[n] != 3 * (seed + n)) atomicAdd(wrong, 1u);
}

// The library: scratch memory for each call, and a result of the caller's resource.
template <class Resource>
std::uint64_t* scaled(Resource& resource, cudaStream_t stream, std::size_t count, std::uint64_t seed) {
  std::size_t const bytes = count * sizeof(std::uint64_t);
  auto* scratch = static_cast<std::uint64_t*>(resource.allocate(cuda::stream_ref{stream}, bytes, 256));
  auto* result = static_cast<std::uint64_t*>(resource.allocate(cuda::stream_ref{stream}, bytes, 256));
  begin<<<256, 256, 0, stream>>>(scratch, count, seed);
  scale<<<256, 256, 0, stream>>>(scratch, result, count);
  resource.deallocate(cuda::stream_ref{stream}, scratch, bytes, 256);
  return result;
}

template <class Resource> void serve(Resource resource, int rounds) {
  std::size_t const count = std::size_t{8} << 20; // 64 MiB
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  auto* wrong = static_cast<unsigned*>(resource.allocate(cuda::stream_ref{stream}, sizeof(unsigned), 256));
  CUDA(cudaMemsetAsync(wrong, 0, sizeof *wrong, stream));
  for (int round = 0; round < rounds; ++round) {
    auto* result = scaled(resource, stream, count, round);
    count_wrong<<<256, 256, 0, stream>>>(result, count, round, wrong);
    resource.deallocate(cuda::stream_ref{stream}, result, count * sizeof *result, 256);
  }
  unsigned total = 1;
  CUDA(cudaMemcpyAsync(&total, wrong, sizeof total, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  CHECK(total == 0);
  resource.deallocate(cuda::stream_ref{stream}, wrong, sizeof(unsigned), 256);
  CUDA(cudaStreamDestroy(stream));
}

int main() {
  weirpool_options options = WEIRPOOL_OPTIONS;
  options.capacity = std::uint64_t{360} << 20; // for two calls of six at once
  weirpool::memory_resource pool{options, std::chrono::seconds(30)};
  serve(pool, 50);
#if CCCL_VERSION >= 3002000
  serve(cuda::mr::any_resource<cuda::mr::device_accessible>{pool}, 50);
#endif
  std::vector<std::thread> threads;
  for (int n = 0; n < 2; ++n) threads.emplace_back([=] { serve(pool, 100); });
  for (auto& thread : threads) thread.join();
  auto const figures = pool.statistics();
  CHECK(figures.live == 0);
  std::printf("CCCL %d: %llu allocations, %llu waited\npassed\n", CCCL_VERSION, (unsigned long long)figures.allocations,
              (unsigned long long)figures.served);
}
