// The workloads of `cargo bench --bench table`, for other allocators. Each program adapts one allocator and
// prints lines for `--peers FILE`.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;

static void check(cudaError_t error) {
  if (error != cudaSuccess) {
    fprintf(stderr, "%s\n", cudaGetErrorString(error));
    exit(1);
  }
}

// An allocator.
struct Peer {
  const char* name;
  std::function<void*(size_t, cudaStream_t)> alloc;
  std::function<void(void*, size_t, cudaStream_t)> free;
  std::function<size_t()> reserved;
};

__global__ void spin(long long ns) {
  long long t0, t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t0));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  } while (t - t0 < ns);
}

static double nanoseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

// Allocates and frees one size on one stream.
static void hot(Peer& peer, cudaStream_t s, size_t bytes, int n) {
  std::vector<double> times;
  for (int r = 0; r < 6; ++r) {
    auto begin = Clock::now();
    for (int i = 0; i < n; ++i) {
      void* block = peer.alloc(bytes, s);
      peer.free(block, bytes, s);
    }
    times.push_back(nanoseconds_since(begin) / n);
    check(cudaStreamSynchronize(s));
  }
  std::sort(times.begin(), times.end());
  printf("%-22s hot pair %10zu B            %10.1f ns/pair\n", peer.name, bytes, times[2]);
  fflush(stdout);
}

// Allocates sizes from 512 B to 64 MiB on one stream, at most 256 blocks and `cap` bytes at begin time.
// Returns the time of an operation.
static double mix_run(Peer& peer, cudaStream_t s, int n, unsigned seed, size_t cap, size_t* peak_live) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(9, 26);
  std::vector<std::pair<void*, size_t>> live;
  size_t live_bytes = 0, peak = 0;
  std::vector<size_t> sizes(n);
  std::vector<unsigned> pick(n);
  for (int i = 0; i < n; ++i) {
    sizes[i] = (size_t)std::exp2(exponent(random));
    pick[i] = random();
  }
  auto begin = Clock::now();
  long operations = 0;
  for (int i = 0; i < n; ++i) {
    while (!live.empty() && (live_bytes + sizes[i] > cap || live.size() >= 256)) {
      size_t k = pick[i] % live.size();
      peer.free(live[k].first, live[k].second, s);
      live_bytes -= live[k].second;
      live[k] = live.back();
      live.pop_back();
      ++operations;
    }
    void* block = peer.alloc(sizes[i], s);
    if (!block) {
      fprintf(stderr, "%s: null\n", peer.name);
      exit(1);
    }
    live.push_back({block, sizes[i]});
    live_bytes += sizes[i];
    peak = std::max(peak, live_bytes);
    ++operations;
  }
  for (auto& held : live) {
    peer.free(held.first, held.second, s);
    ++operations;
  }
  double t = nanoseconds_since(begin) / operations;
  if (peak_live) *peak_live = peak;
  return t;
}

static void mix(Peer& peer, cudaStream_t s) {
  size_t peak;
  mix_run(peer, s, 4000, 7, size_t(2) << 30, &peak);
  check(cudaStreamSynchronize(s));
  std::vector<double> times;
  for (int r = 0; r < 5; ++r) {
    times.push_back(mix_run(peer, s, 20000, 11 + r, size_t(2) << 30, &peak));
    check(cudaStreamSynchronize(s));
  }
  std::sort(times.begin(), times.end());
  printf("%-22s mix 512B..64MiB, <=256 live    %10.1f ns/op   reserved/peak-live %.3f\n", peer.name, times[2],
         peer.reserved ? double(peer.reserved()) / peak : 0.0);
  fflush(stdout);
}

// Allocates, launches a kernel and frees on each of 8 streams in turn.
static void handoff(Peer& peer, int ns_kernel) {
  const int STREAMS = 8;
  cudaStream_t streams[STREAMS];
  for (auto& s : streams)
    check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  size_t bytes = 8 << 20;
  int n = 2000;
  for (int i = 0; i < 64; ++i) {
    void* block = peer.alloc(bytes, streams[i % STREAMS]);
    peer.free(block, bytes, streams[i % STREAMS]);
  }
  check(cudaDeviceSynchronize());
  size_t before = peer.reserved ? peer.reserved() : 0;
  auto begin = Clock::now();
  double host = 0;
  for (int i = 0; i < n; ++i) {
    cudaStream_t s = streams[i % STREAMS];
    auto t = Clock::now();
    void* block = peer.alloc(bytes, s);
    host += nanoseconds_since(t);
    spin<<<1, 1, 0, s>>>(ns_kernel);
    t = Clock::now();
    peer.free(block, bytes, s);
    host += nanoseconds_since(t);
  }
  check(cudaDeviceSynchronize());
  double wall = nanoseconds_since(begin) / n;
  size_t after = peer.reserved ? peer.reserved() : 0;
  printf(
      "%-22s handoff 8 streams, %4d us kernel %9.1f ns/pair host, wall %8.1f ns/iter, reserved %zu -> %zu "
      "MiB\n",
      peer.name, ns_kernel / 1000, host / n, wall, before >> 20, after >> 20);
  fflush(stdout);
  for (auto& s : streams)
    check(cudaStreamDestroy(s));
}

// Allocates and frees 12 sizes on 1 to 16 threads with a stream each.
static void scale(Peer& peer) {
  for (int threads : {1, 2, 4, 8, 16}) {
    std::vector<std::thread> workers;
    std::vector<cudaStream_t> streams(threads);
    for (auto& s : streams)
      check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    std::atomic<int> ready{0};
    std::atomic<bool> go{false};
    const int n = 40000;
    for (int t = 0; t < threads; ++t)
      workers.emplace_back([&, t] {
        check(cudaSetDevice(0));
        for (int i = 0; i < 500; ++i) {
          void* block = peer.alloc(1 << 16, streams[t]);
          peer.free(block, 1 << 16, streams[t]);
        }
        ready++;
        while (!go) {
        }
        for (int i = 0; i < n; ++i) {
          size_t bytes = size_t(1) << (10 + (i * 7 + t) % 12);
          void* block = peer.alloc(bytes, streams[t]);
          peer.free(block, bytes, streams[t]);
        }
      });
    while (ready < threads) {
    }
    auto begin = Clock::now();
    go = true;
    for (auto& worker : workers)
      worker.join();
    double t = nanoseconds_since(begin);
    printf("%-22s scale %2d threads, own stream    %10.3f M pairs/s\n", peer.name, threads,
           double(n) * threads / t * 1e3);
    fflush(stdout);
    check(cudaDeviceSynchronize());
    for (auto& s : streams)
      check(cudaStreamDestroy(s));
  }
}

static void run_all(Peer& peer) {
  cudaStream_t s;
  check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  for (size_t bytes : {size_t(256), size_t(1) << 16, size_t(1) << 20, size_t(64) << 20})
    hot(peer, s, bytes, 20000);
  mix(peer, s);
  handoff(peer, 20000);
  handoff(peer, 200000);
  check(cudaStreamDestroy(s));
  scale(peer);
  check(cudaDeviceSynchronize());
}
