/* Every function of `weirpool.h`, on the simulated device. */
#include "weirpool.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB ((size_t)1 << 20)
#define MILLISECOND UINT64_C(1000000)

#define CHECK(condition)                                                                          \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, weirpool_last_error()); \
      exit(1);                                                                                    \
    }                                                                                             \
  } while (0)
#define OK(call) CHECK((call) == WEIRPOOL_SUCCESS)

static weirpool_pool *create(uint64_t capacity) {
  weirpool_options options = WEIRPOOL_OPTIONS;
  options.device = WEIRPOOL_SIMULATED;
  options.capacity = capacity;
  weirpool_pool *pool = NULL;
  OK(weirpool_create(&options, &pool));
  return pool;
}

static weirpool_statistics figures(weirpool_pool *pool) {
  weirpool_statistics figures = {.size = sizeof figures};
  OK(weirpool_get_statistics(pool, &figures));
  return figures;
}

static void memory_is_allocated_used_and_freed_in_the_order_of_streams(void) {
  weirpool_pool *pool = create(64 * MIB);
  weirpool_stream stream, other;
  OK(weirpool_sim_stream(pool, &stream));
  OK(weirpool_sim_stream(pool, &other));
  CHECK(stream != other);
  void *memory = NULL, *again = NULL, *aligned = NULL;
  OK(weirpool_allocate(pool, &memory, 3 * MIB, 0, stream, WEIRPOOL_SECOND));
  OK(weirpool_sim_launch(pool, stream, 20 * MILLISECOND, memory, 3 * MIB));
  OK(weirpool_free(pool, memory, stream));
  /* The stream reuses it behind its own work. */
  OK(weirpool_allocate(pool, &again, 3 * MIB, 0, stream, WEIRPOOL_NO_WAIT));
  CHECK(again == memory);
  OK(weirpool_sim_launch(pool, stream, MILLISECOND, again, 3 * MIB));
  OK(weirpool_record_use(pool, again, other));
  OK(weirpool_free(pool, again, stream));
  OK(weirpool_allocate(pool, &aligned, 100, 64 << 10, NULL, WEIRPOOL_NO_WAIT));
  CHECK((uintptr_t)aligned % (64 << 10) == 0);
  OK(weirpool_free(pool, aligned, NULL));
  OK(weirpool_free(pool, NULL, stream));
  CHECK(figures(pool).live == 0 && figures(pool).allocations == 3 && figures(pool).used_high >= 3 * MIB);
  weirpool_destroy(pool);
  weirpool_destroy(NULL);
}

static void use_that_nothing_orders_is_an_error(void) {
  weirpool_pool *pool = create(64 * MIB);
  weirpool_stream stream, other;
  OK(weirpool_sim_stream(pool, &stream));
  OK(weirpool_sim_stream(pool, &other));
  void *memory = NULL;
  OK(weirpool_allocate(pool, &memory, MIB, 0, stream, WEIRPOOL_NO_WAIT));
  OK(weirpool_sim_launch(pool, stream, MILLISECOND, memory, MIB));
  CHECK(weirpool_sim_launch(pool, other, MILLISECOND, memory, MIB) == WEIRPOOL_ERROR_UNORDERED);
  CHECK(strstr(weirpool_last_error(), "nothing orders them"));
  weirpool_destroy(pool);
}

static void sync_memory_is_complete_for_every_stream(void) {
  weirpool_pool *pool = create(8 * MIB);
  weirpool_stream stream, other;
  OK(weirpool_sim_stream(pool, &stream));
  OK(weirpool_sim_stream(pool, &other));
  void *memory = NULL;
  OK(weirpool_allocate(pool, &memory, 8 * MIB, 0, stream, WEIRPOOL_NO_WAIT));
  OK(weirpool_sim_launch(pool, stream, 30 * MILLISECOND, memory, 8 * MIB));
  OK(weirpool_free(pool, memory, stream));
  /* The whole pool is behind the work of `stream`: this waits for it, and `other` need not. */
  OK(weirpool_allocate_sync(pool, &memory, 8 * MIB, 0, WEIRPOOL_SECOND));
  OK(weirpool_sim_launch(pool, other, MILLISECOND, memory, 8 * MIB));
  struct timespec pause = {0, 20 * MILLISECOND};
  nanosleep(&pause, NULL);
  OK(weirpool_free_sync(pool, memory));
  OK(weirpool_free_sync(pool, NULL));
  CHECK(figures(pool).live == 0);
  weirpool_destroy(pool);
}

struct waits {
  weirpool_pool *pool;
  weirpool_stream stream;
  weirpool_status status;
  void *memory;
};

static void *wait_for_memory(void *argument) {
  struct waits *waits = argument;
  waits->status = weirpool_allocate(waits->pool, &waits->memory, 8 * MIB, 0, waits->stream, 20 * WEIRPOOL_SECOND);
  return NULL;
}

static void thread_waits_for_the_free_of_another(void) {
  weirpool_pool *pool = create(8 * MIB);
  struct waits waits = {.pool = pool, .status = -1};
  weirpool_stream stream;
  OK(weirpool_sim_stream(pool, &stream));
  OK(weirpool_sim_stream(pool, &waits.stream));
  void *memory = NULL, *none = &none;
  OK(weirpool_allocate(pool, &memory, 8 * MIB, 0, stream, WEIRPOOL_NO_WAIT));
  CHECK(weirpool_allocate(pool, &none, MIB, 0, stream, WEIRPOOL_NO_WAIT) == WEIRPOOL_ERROR_OUT_OF_MEMORY);
  CHECK(weirpool_allocate(pool, &none, MIB, 0, stream, 5 * MILLISECOND) == WEIRPOOL_ERROR_TIMED_OUT);
  CHECK(none == &none); /* nothing was written */
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, wait_for_memory, &waits) == 0);
  while (figures(pool).waiting == 0) {
  }
  OK(weirpool_free(pool, memory, stream));
  CHECK(pthread_join(thread, NULL) == 0);
  OK(waits.status);
  CHECK(figures(pool).served == 1 && figures(pool).timed_out == 1);
  OK(weirpool_free(pool, waits.memory, waits.stream));
  weirpool_destroy(pool);
}

static void *allocate_and_free(void *argument) {
  weirpool_pool *pool = argument;
  weirpool_stream stream;
  OK(weirpool_sim_stream(pool, &stream));
  for (int round = 0; round < 500; round++) {
    void *memory = NULL;
    size_t bytes = MIB * (1 + round % 5);
    OK(weirpool_allocate(pool, &memory, bytes, 0, stream, WEIRPOOL_NO_LIMIT));
    OK(weirpool_sim_launch(pool, stream, 1000, memory, bytes));
    OK(weirpool_free(pool, memory, stream));
  }
  return NULL;
}

static void threads_share_a_pool_that_is_too_small_for_them(void) {
  weirpool_pool *pool = create(12 * MIB);
  pthread_t threads[4];
  for (int n = 0; n < 4; n++) CHECK(pthread_create(&threads[n], NULL, allocate_and_free, pool) == 0);
  for (int n = 0; n < 4; n++) CHECK(pthread_join(threads[n], NULL) == 0);
  CHECK(figures(pool).live == 0 && figures(pool).allocations == 2000);
  weirpool_destroy(pool);
}

static void trim_returns_memory_to_the_device(void) {
  weirpool_pool *pool = create(64 * MIB);
  void *memory = NULL;
  OK(weirpool_allocate_sync(pool, &memory, 16 * MIB, 0, WEIRPOOL_NO_WAIT));
  OK(weirpool_free_sync(pool, memory));
  CHECK(figures(pool).reserved >= 16 * MIB);
  OK(weirpool_trim(pool, 0));
  CHECK(figures(pool).reserved == 0);
  weirpool_destroy(pool);
}

static void errors_change_nothing_and_say_why(void) {
  weirpool_pool *pool = create(8 * MIB);
  void *memory = NULL;
  CHECK(weirpool_allocate(NULL, &memory, 1, 0, NULL, 0) == WEIRPOOL_ERROR_INVALID_ARGUMENT);
  CHECK(strstr(weirpool_last_error(), "the pool is null"));
  CHECK(weirpool_allocate(pool, NULL, 1, 0, NULL, 0) == WEIRPOOL_ERROR_INVALID_ARGUMENT);
  CHECK(weirpool_allocate(pool, &memory, 1, 3, NULL, 0) == WEIRPOOL_ERROR_INVALID_ARGUMENT);
  CHECK(weirpool_allocate(pool, &memory, 9 * MIB, 0, NULL, 0) == WEIRPOOL_ERROR_TOO_LARGE);
  CHECK(weirpool_allocate(pool, &memory, 1, 0, (weirpool_stream)77777, 0) == WEIRPOOL_ERROR_STREAM);
  CHECK(memory == NULL);
  OK(weirpool_allocate(pool, &memory, 1, 0, NULL, 0));
  CHECK(weirpool_free(pool, (char *)memory + 512, NULL) == WEIRPOOL_ERROR_NOT_ALLOCATED);
  CHECK(weirpool_record_use(pool, pool, NULL) == WEIRPOOL_ERROR_NOT_ALLOCATED);
  OK(weirpool_free(pool, memory, NULL));
  CHECK(weirpool_free(pool, memory, NULL) == WEIRPOOL_ERROR_NOT_ALLOCATED);
  CHECK(strstr(weirpool_last_error(), "freed already"));
  CHECK(weirpool_free_sync(pool, memory) == WEIRPOOL_ERROR_NOT_ALLOCATED);
  CHECK(weirpool_trim(NULL, 0) == WEIRPOOL_ERROR_INVALID_ARGUMENT);
  CHECK(weirpool_sim_stream(pool, NULL) == WEIRPOOL_ERROR_INVALID_ARGUMENT);
  weirpool_destroy(pool);
}

static void structs_of_other_versions_are_understood_or_refused(void) {
  struct {
    weirpool_options known;
    uint64_t later;
  } newer = {.known = WEIRPOOL_OPTIONS};
  newer.known.size = sizeof newer;
  newer.known.device = WEIRPOOL_SIMULATED;
  weirpool_pool *pool = NULL;
  OK(weirpool_create(&newer.known, &pool));
  struct {
    weirpool_statistics known;
    uint64_t later;
  } more = {.known = {.size = sizeof more}, .later = 7};
  OK(weirpool_get_statistics(pool, &more.known));
  CHECK(more.known.capacity == (uint64_t)8 << 30 && more.later == 0 && more.known.size == sizeof more);
  more.known.size = 8;
  CHECK(weirpool_get_statistics(pool, &more.known) == WEIRPOOL_ERROR_INVALID_ARGUMENT);
  CHECK(weirpool_get_statistics(pool, NULL) == WEIRPOOL_ERROR_INVALID_ARGUMENT);
  weirpool_destroy(pool);
  pool = NULL;
  newer.later = 1;
  CHECK(weirpool_create(&newer.known, &pool) == WEIRPOOL_ERROR_INVALID_ARGUMENT);
  weirpool_options options = WEIRPOOL_OPTIONS;
  options.device = WEIRPOOL_SIMULATED;
  options.name = "in c";
  weirpool_pool *named = NULL;
  OK(weirpool_create(&options, &named));
  CHECK(weirpool_create(&options, &pool) == WEIRPOOL_ERROR_INVALID_ARGUMENT);
  CHECK(strstr(weirpool_last_error(), "\"in c\""));
  weirpool_destroy(named);
  options.name = NULL;
  options.size = 0;
  CHECK(weirpool_create(&options, &pool) == WEIRPOOL_ERROR_INVALID_ARGUMENT);
  options.size = sizeof options;
  options.flags = 1u << 31;
  CHECK(weirpool_create(&options, &pool) == WEIRPOOL_ERROR_INVALID_ARGUMENT);
  options.flags = 0;
  options.memory = 99;
  CHECK(weirpool_create(&options, &pool) == WEIRPOOL_ERROR_INVALID_ARGUMENT);
  options.memory = 0;
  options.device = -2;
  CHECK(weirpool_create(&options, &pool) == WEIRPOOL_ERROR_INVALID_ARGUMENT);
  CHECK(weirpool_create(&options, NULL) == WEIRPOOL_ERROR_INVALID_ARGUMENT);
  CHECK(pool == NULL);
}

int main(void) {
  memory_is_allocated_used_and_freed_in_the_order_of_streams();
  use_that_nothing_orders_is_an_error();
  sync_memory_is_complete_for_every_stream();
  thread_waits_for_the_free_of_another();
  threads_share_a_pool_that_is_too_small_for_them();
  trim_returns_memory_to_the_device();
  errors_change_nothing_and_say_why();
  structs_of_other_versions_are_understood_or_refused();
  puts("passed");
  return 0;
}
