/* The C interface on a GPU: order of streams, waits of threads, streams that end, memory that goes back; and the time of a pair. */
#include "weirpool.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB ((size_t)1 << 20)

#define CHECK(condition)                                                                          \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, weirpool_last_error()); \
      exit(1);                                                                                    \
    }                                                                                             \
  } while (0)
#define OK(call) CHECK((call) == WEIRPOOL_SUCCESS)
#define CUDA(call) CHECK((call) == cudaSuccess)

static weirpool_pool *create(uint64_t capacity, uint32_t flags) {
  weirpool_options options = WEIRPOOL_OPTIONS;
  options.capacity = capacity;
  options.flags = flags;
  weirpool_pool *pool = NULL;
  OK(weirpool_create(&options, &pool));
  return pool;
}

static weirpool_statistics figures(weirpool_pool *pool) {
  weirpool_statistics figures = {.size = sizeof figures};
  OK(weirpool_get_statistics(pool, &figures));
  return figures;
}

/* Gives bytes of the host that a copy on a stream writes later: a copy to other memory has ended when the call returns, so that
 * no work would be left at a free. The bytes stay until the program ends. */
static void pinned(unsigned char **memory, size_t bytes) {
  CUDA(cudaMallocHost((void **)memory, bytes));
  memset(*memory, 0, bytes);
}

/* Writes a byte to memory on a stream `times` times, so that it takes long, and copies the end of it to the host. */
static void fill(void *memory, size_t bytes, int byte, int times, unsigned char *last, cudaStream_t stream) {
  for (int n = 0; n < times; n++) CUDA(cudaMemsetAsync(memory, byte, bytes, stream));
  CUDA(cudaMemcpyAsync(last, (char *)memory + bytes - 1, 1, cudaMemcpyDeviceToHost, stream));
}

static void memory_moves_between_streams_in_order(void) {
  weirpool_pool *pool = create(256 * MIB, 0);
  cudaStream_t streams[3];
  for (int n = 0; n < 3; n++) CUDA(cudaStreamCreateWithFlags(&streams[n], cudaStreamNonBlocking));
  unsigned char *last;
  pinned(&last, 300);
  /* Each takes over the memory of the one before, which is still at work: the whole pool. */
  for (int n = 0; n < 300; n++) {
    void *memory;
    OK(weirpool_allocate(pool, &memory, 256 * MIB, 0, streams[n % 3], 10 * WEIRPOOL_SECOND));
    fill(memory, 256 * MIB, n % 251, 5, &last[n], streams[n % 3]);
    OK(weirpool_free(pool, memory, streams[n % 3]));
  }
  for (int n = 0; n < 3; n++) CUDA(cudaStreamSynchronize(streams[n]));
  for (int n = 0; n < 300; n++) CHECK(last[n] == n % 251);
  /* A use on a further stream is kept in order as well. */
  void *memory, *again;
  OK(weirpool_allocate(pool, &memory, 256 * MIB, 0, streams[0], 10 * WEIRPOOL_SECOND));
  CUDA(cudaStreamSynchronize(streams[0]));
  OK(weirpool_record_use(pool, memory, streams[1]));
  fill(memory, 256 * MIB, 7, 50, &last[0], streams[1]);
  OK(weirpool_free(pool, memory, streams[0]));
  OK(weirpool_allocate(pool, &again, 256 * MIB, 0, streams[0], 10 * WEIRPOOL_SECOND));
  fill(again, 256 * MIB, 9, 1, &last[1], streams[0]);
  CUDA(cudaDeviceSynchronize());
  CHECK(last[0] == 7 && last[1] == 9);
  OK(weirpool_free(pool, again, streams[0]));
  for (int n = 0; n < 3; n++) CUDA(cudaStreamDestroy(streams[n]));
  weirpool_destroy(pool);
}

static void streams_may_end_before_their_memory(void) {
  weirpool_pool *pool = create(256 * MIB, 0);
  unsigned char *last;
  pinned(&last, 200);
  for (int n = 0; n < 200; n++) {
    cudaStream_t stream, other;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    void *memory;
    OK(weirpool_allocate(pool, &memory, 100 * MIB, 0, stream, 10 * WEIRPOOL_SECOND));
    fill(memory, 100 * MIB, n, 3, &last[n], stream);
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(weirpool_free(pool, memory, other));
    CUDA(cudaStreamDestroy(other));
  }
  for (int n = 0; n < 200; n++) CHECK(last[n] == n);
  CHECK(figures(pool).live == 0);
  weirpool_destroy(pool);
}

static void default_stream_is_served_and_that_of_a_thread_refused(void) {
  weirpool_pool *pool = create(64 * MIB, 0);
  void *memory;
  unsigned char *last;
  pinned(&last, 1);
  OK(weirpool_allocate(pool, &memory, MIB, 0, NULL, WEIRPOOL_NO_WAIT));
  fill(memory, MIB, 5, 1, last, NULL);
  OK(weirpool_free(pool, memory, cudaStreamLegacy));
  CUDA(cudaDeviceSynchronize());
  CHECK(*last == 5);
  CHECK(weirpool_allocate(pool, &memory, MIB, 0, cudaStreamPerThread, WEIRPOOL_NO_WAIT) == WEIRPOOL_ERROR_STREAM);
  weirpool_destroy(pool);
}

static void sync_memory_is_complete_for_every_stream(void) {
  weirpool_pool *pool = create(256 * MIB, 0);
  cudaStream_t stream, other;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  for (int n = 0; n < 50; n++) {
    void *memory;
    unsigned char *last;
    pinned(&last, 2);
    OK(weirpool_allocate(pool, &memory, 256 * MIB, 0, stream, 10 * WEIRPOOL_SECOND));
    fill(memory, 256 * MIB, 1, 20, &last[0], stream);
    OK(weirpool_free(pool, memory, stream));
    OK(weirpool_allocate_sync(pool, &memory, 256 * MIB, 0, 10 * WEIRPOOL_SECOND));
    fill(memory, 256 * MIB, 2, 1, &last[1], other);
    CUDA(cudaDeviceSynchronize());
    CHECK(last[0] == 1 && last[1] == 2);
    OK(weirpool_free_sync(pool, memory));
  }
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaStreamDestroy(other));
  weirpool_destroy(pool);
}

static void *allocate_and_free(void *argument) {
  weirpool_pool *pool = argument;
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int round = 0; round < 200; round++) {
    void *memory = NULL;
    unsigned char *last;
    pinned(&last, 1);
    OK(weirpool_allocate(pool, &memory, 300 * MIB, 0, stream, 30 * WEIRPOOL_SECOND));
    fill(memory, 300 * MIB, 1 + round % 200, 2, last, stream);
    OK(weirpool_free(pool, memory, stream));
    CUDA(cudaStreamSynchronize(stream));
    CHECK(*last == 1 + round % 200);
  }
  CUDA(cudaStreamDestroy(stream));
  return NULL;
}

static void threads_wait_for_each_other(void) {
  weirpool_pool *pool = create(512 * MIB, 0);
  pthread_t threads[4];
  for (int n = 0; n < 4; n++) CHECK(pthread_create(&threads[n], NULL, allocate_and_free, pool) == 0);
  for (int n = 0; n < 4; n++) CHECK(pthread_join(threads[n], NULL) == 0);
  weirpool_statistics after = figures(pool);
  CHECK(after.live == 0 && after.allocations == 800);
  printf("4 threads, memory for one: %llu of 800 allocations waited\n", (unsigned long long)after.served);
  void *memory, *more;
  OK(weirpool_allocate_sync(pool, &memory, 300 * MIB, 0, WEIRPOOL_NO_WAIT));
  CHECK(weirpool_allocate_sync(pool, &more, 300 * MIB, 0, WEIRPOOL_SECOND / 100) == WEIRPOOL_ERROR_TIMED_OUT);
  OK(weirpool_free_sync(pool, memory));
  size_t before, now, total;
  CUDA(cudaMemGetInfo(&before, &total));
  OK(weirpool_trim(pool, 0));
  CUDA(cudaMemGetInfo(&now, &total));
  CHECK(now - before >= 300 * MIB && figures(pool).reserved == 0);
  weirpool_destroy(pool);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The best of some runs, in nanoseconds for an allocation and its free. */
static void pair(const char *what, weirpool_pool *pool, cudaStream_t stream) {
  double best = 1e9;
  for (int run = 0; run < 10; run++) {
    double begin = seconds();
    for (int n = 0; n < 10000; n++) {
      void *memory;
      if (pool) {
        OK(weirpool_allocate(pool, &memory, 100000, 0, stream, WEIRPOOL_SECOND));
        OK(weirpool_free(pool, memory, stream));
      } else {
        CUDA(cudaMallocAsync(&memory, 100000, stream));
        CUDA(cudaFreeAsync(memory, stream));
      }
    }
    double time = (seconds() - begin) / 10000 * 1e9;
    best = time < best ? time : best;
  }
  CUDA(cudaStreamSynchronize(stream));
  printf("%s: %.0f ns\n", what, best);
}

int main(void) {
  CUDA(cudaSetDevice(0));
  memory_moves_between_streams_in_order();
  streams_may_end_before_their_memory();
  default_stream_is_served_and_that_of_a_thread_refused();
  sync_memory_is_complete_for_every_stream();
  threads_wait_for_each_other();
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  weirpool_pool *pools[] = {create(64 * MIB, 0), create(64 * MIB, WEIRPOOL_PERMANENT_STREAMS)};
  for (int turn = 0; turn < 2; turn++) {
    pair("a pair of cudaMallocAsync and cudaFreeAsync", NULL, stream);
    pair("a pair of weirpool_allocate and weirpool_free", pools[0], stream);
    pair("the same, with permanent streams", pools[1], stream);
  }
  weirpool_destroy(pools[0]);
  weirpool_destroy(pools[1]);
  puts("passed");
  return 0;
}
