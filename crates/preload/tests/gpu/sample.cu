// A program of the kind of the CUDA samples: products of matrices in rounds, with buffers of each round's own. Arguments: the
// rows, the rounds, whether to allocate in stream order; and MiB that it holds in each round besides, for how many ms, and a file
// to wait for.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

__global__ void product(const float *a, const float *b, float *c, int n) {
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int i = 0; i < n; i++) sum += a[row * n + i] * b[i * n + column];
  c[row * n + column] = sum;
}

#define CHECK(call) do { cudaError_t status = (call); if (status) { printf("round %d: %s: %s\n", round, #call, cudaGetErrorString(status)); exit(1); } } while (0)

int main(int count, char **arguments) {
  int n = count > 1 ? atoi(arguments[1]) : 512, rounds = count > 2 ? atoi(arguments[2]) : 100;
  bool is_ordered = count > 3 && atoi(arguments[3]);
  size_t bytes = (size_t)n * n * 4, more = count > 4 ? (size_t)atoi(arguments[4]) << 20 : 0;
  std::vector<float> a(n * n), b(n * n), c(n * n);
  for (int i = 0; i < n * n; i++) a[i] = i % 7, b[i] = i % 5;
  double sum = 0;
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  int hold = count > 5 ? atoi(arguments[5]) : 0;
  if (count > 6) {
    fclose(fopen((std::string(arguments[6]) + ".sample").c_str(), "w"));
    while (access(arguments[6], F_OK)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < rounds; round++) {
    float *x, *y, *z;
    void *held = 0;
    auto allocate = [&](auto **p, size_t bytes) { return is_ordered ? cudaMallocAsync(p, bytes, stream) : cudaMalloc(p, bytes); };
    auto release = [&](void *p) { return is_ordered ? cudaFreeAsync(p, stream) : cudaFree(p); };
    if (more) CHECK(allocate(&held, more));
    if (more) CHECK(cudaMemsetAsync(held, round, more, stream));
    CHECK(allocate(&x, bytes));
    CHECK(allocate(&y, bytes));
    CHECK(allocate(&z, bytes));
    CHECK(cudaMemcpyAsync(x, a.data(), bytes, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpyAsync(y, b.data(), bytes, cudaMemcpyHostToDevice, stream));
    product<<<dim3(n / 16, n / 16), dim3(16, 16), 0, stream>>>(x, y, z, n);
    CHECK(cudaMemcpyAsync(c.data(), z, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    if (hold) std::this_thread::sleep_for(std::chrono::milliseconds(hold));
    sum += c[round] + c[n * n - 1];
    CHECK(release(x));
    CHECK(release(y));
    CHECK(release(z));
    if (more) CHECK(release(held));
  }
  double time = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  printf("sum %.0f\ntime %.3f s\n", sum, time);
  int round = rounds;
  CHECK(cudaDeviceReset());
}
