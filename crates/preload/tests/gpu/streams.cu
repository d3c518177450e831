// Threads that allocate, fill, check and free in the order of streams, and in no order at all. Any use of memory that another
// one still uses is an error. Built with and without `--default-stream per-thread`.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

__device__ unsigned long long wrong;

__global__ void fill(unsigned *at, size_t words, unsigned with) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) at[i] = with;
}

__global__ void check(const unsigned *at, size_t words, unsigned with) {
  long long begin = clock64();
  while (clock64() - begin < 20000) {
  }
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x)
    if (at[i] != with) atomicAdd(&wrong, 1);
}

#define CHECK(call) do { cudaError_t status = (call); if (status) { printf("%s: %s\n", #call, cudaGetErrorString(status)); exit(1); } } while (0)

static void work(int number, int rounds) {
  unsigned seed = number, token = number << 20;
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<unsigned *> kept;
  for (int round = 0; round < rounds; round++) {
    size_t words = 256 + rand_r(&seed) % (1 << 18);
    // The default stream is that of the thread, or that of all.
    cudaStream_t on = round % 3 ? stream : 0;
    unsigned *a, *b;
    CHECK(cudaMallocAsync(&a, words * 4, on));
    fill<<<8, 128, 0, on>>>(a, words, ++token);
    check<<<8, 128, 0, on>>>(a, words, token);
    CHECK(cudaFreeAsync(a, on));
    if (round % 16 == number % 16) {
      CHECK(cudaMalloc(&b, words * 4));
      fill<<<8, 128, 0, stream>>>(b, words, ++token);
      check<<<8, 128, 0, stream>>>(b, words, token);
      CHECK(cudaFree(b)); // while its kernels run
    }
    if (round % 100 == 99) {
      // Handles of destroyed streams are used again.
      CHECK(cudaStreamDestroy(stream));
      CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
  }
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaStreamSynchronize(0));
  CHECK(cudaStreamDestroy(stream));
}

int main(int count, char **arguments) {
  int rounds = count > 1 ? atoi(arguments[1]) : 1000;
  std::vector<std::thread> threads;
  for (int number = 1; number <= 8; number++) threads.emplace_back(work, number, rounds);
  for (auto &thread : threads) thread.join();
  unsigned long long found = 0;
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpyFromSymbol(&found, wrong, sizeof found));
  printf("8 threads, %d rounds: %llu wrong words\n", rounds, found);
  return found != 0;
}
