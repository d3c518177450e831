/* One case of the driver's semantics for each name. */
#define _GNU_SOURCE
#include "program.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define MANY 8

static address_t a, b, c;
static void *stream, *other;

static void two_streams(void) {
  CHECK(cuStreamCreate(&stream, 1));
  CHECK(cuStreamCreate(&other, 1));
}

/* Memory that a stream still works on is reused there, and nowhere else. */
static void order(void) {
  two_streams();
  CHECK(cuMemAllocAsync(&a, 8 * MIB, stream));
  CHECK(fakeHold(stream));
  CHECK(cuMemFreeAsync(a, stream));
  CHECK(cuMemAlloc_v2(&b, 8 * MIB));
  IS(b != a);
  CHECK(cuMemAllocAsync(&c, 8 * MIB, stream));
  IS(c == a);
  CHECK(cuMemFreeAsync(c, stream));
  CHECK(cuMemFree_v2(b));
}

/* A free in no stream's order waits for the device; then any stream may have the memory. */
static void waits(void) {
  two_streams();
  CHECK(cuMemAllocAsync(&a, 40 * MIB, stream));
  CHECK(fakeHold(stream));
  CHECK(cuMemFree_v2(a));
  CHECK(cuMemAllocAsync(&b, 40 * MIB, other));
  CHECK(cuMemFreeAsync(b, other));
}

/* A stream is destroyed while the pool still knows memory of it; the device's memory suffices only if that is reused. */
static void destroyed(void) {
  for (int i = 0; i < 50; i++) {
    two_streams();
    CHECK(cuMemAllocAsync(&a, 24 * MIB, stream));
    CHECK(cuMemAllocAsync(&b, 24 * MIB, other));
    CHECK(cuMemFreeAsync(a, stream));
    CHECK(cuStreamDestroy_v2(stream));
    CHECK(cuStreamDestroy_v2(other));
    CHECK(cuMemFree_v2(b)); /* of a stream that is gone */
  }
}

static void captures(void) {
  void *graph;
  two_streams();
  CHECK(cuMemAlloc_v2(&c, MIB));
  CHECK(cuStreamBeginCapture_v2(stream, 2));
  CHECK(cuMemAllocAsync(&a, MIB, stream)); /* a node: the driver's */
  CHECK(cuMemAllocAsync(&b, MIB, other));  /* of the pool */
  CHECK(cuMemFreeAsync(a, stream));
  CHECK(cuMemFreeAsync(b, other));
  IS(cuMemFreeAsync(c, stream) == 1);
  CHECK(cuMemFree_v2(c)); /* later */
  CHECK(cuStreamEndCapture(stream, &graph));
  CHECK(cuMemAlloc_v2(&a, MIB));
  CHECK(cuMemFree_v2(a));
}

/* The pool is not made while a capture goes on, since that waits for the device. */
static void captured_first(void) {
  void *graph;
  two_streams();
  CHECK(cuStreamBeginCapture_v2(stream, 0));
  CHECK(cuMemAllocAsync(&a, MIB, other));
  CHECK(cuStreamEndCapture(stream, &graph));
  CHECK(cuMemAllocAsync(&b, MIB, other));
  CHECK(cuMemFreeAsync(a, other));
  CHECK(cuMemFreeAsync(b, other));
}

/* Captures that end with their stream or their context leave the pool in use. */
static void captures_destroyed(void) {
  two_streams();
  CHECK(cuMemAllocAsync(&a, MIB, stream));
  CHECK(cuStreamBeginCapture_v2(stream, 2));
  CHECK(cuStreamDestroy_v2(stream));
  CHECK(cuMemFree_v2(a));
  CHECK(cuMemAlloc_v2(&a, MIB));
  CHECK(cuStreamBeginCapture_v2(other, 2)); /* of a stream that the pool does not know */
  CHECK(cuStreamDestroy(other));
  CHECK(cuMemAlloc_v2(&b, MIB));
  CHECK(cuMemFree_v2(a));
  CHECK(cuMemFree_v2(b));
  two_streams();
  CHECK(cuStreamBeginCapture_v2(stream, 2));
  CHECK(cuDevicePrimaryCtxReset(0));
  CHECK(cuMemAlloc_v2(&a, MIB));
  CHECK(cuMemFree_v2(a));
}

/* What is freed during a capture is there for the next request after it. */
static void captures_free(void) {
  void *graph, *second;
  two_streams();
  CHECK(cuCtxCreate_v2(&second, 0, 0));
  CHECK(cuStreamCreate(&other, 1));
  CHECK(cuMemAllocAsync(&b, MIB, other));
  CHECK(cuMemFreeAsync(b, other));
  CHECK(cuCtxSetCurrent(context));
  for (int i = 0; i < 2; i++) {
    CHECK(cuMemAllocAsync(&a, 40 * MIB, stream));
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    IS(cuMemFreeAsync(a, 0) == 906); /* the driver's answer */
    CHECK(i ? cuMemFreeAsync(a, other) : cuMemFree_v2(a));
    CHECK(cuStreamEndCapture(stream, &graph));
  }
  CHECK(cuMemAllocAsync(&a, 40 * MIB, stream));
  CHECK(cuMemFreeAsync(a, stream));
}

static void *capture_and_end(void *unused) {
  (void)unused;
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuStreamBeginCapture_v2((void *)2, 2));
  return 0;
}

/* A thread ends within a capture of its default stream, which ends with it. */
static void captures_thread(void) {
  pthread_t thread;
  two_streams();
  CHECK(cuMemAllocAsync(&a, MIB, stream));
  pthread_create(&thread, 0, capture_and_end, 0);
  pthread_join(thread, 0);
  CHECK(cuMemAlloc_v2(&b, MIB));
  CHECK(cuMemFreeAsync(a, stream));
  CHECK(cuMemFreeAsync(b, stream));
}

static void *destroy_soon(void *second) {
  usleep(50000);
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuCtxDestroy_v2(second));
  return 0;
}

/* A context is destroyed while another thread frees, in turn, what was freed during a capture. */
static void captures_context(void) {
  void *graph, *second;
  pthread_t thread;
  two_streams();
  CHECK(cuMemAllocAsync(&a, MIB, stream));
  CHECK(cuCtxCreate_v2(&second, 0, 0));
  CHECK(cuMemAlloc_v2(&b, MIB));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuStreamBeginCapture_v2(stream, 2));
  CHECK(cuMemFree_v2(a));
  CHECK(cuMemFree_v2(b));
  CHECK(fakeSlow(200000));
  pthread_create(&thread, 0, destroy_soon, second);
  CHECK(cuStreamEndCapture(stream, &graph));
  pthread_join(thread, 0);
  CHECK(cuMemAlloc_v2(&a, MIB));
  CHECK(cuMemFree_v2(a));
}

/* Each version of a function is called with its own arguments. */
static void versions(void) {
  void *graph, *first, *second;
  two_streams();
  CHECK(cuGetProcAddress_v2("cuStreamBeginCapture", &second, 12000, 0, 0));
  CHECK(cuGetProcAddress_v2("cuStreamBeginCapture", &first, 10000, 0, 0));
  CHECK(((int (*)(void *, int))second)(stream, 2));
  IS(fakeMode() == 2);
  CHECK(cuStreamEndCapture(stream, &graph));
  CHECK(((int (*)(void *))first)(stream));
  IS(fakeMode() == 0);
  CHECK(cuStreamEndCapture(stream, &graph));
}

static void errors(void) {
  size_t pitch = 0;
  two_streams();
  IS(cuMemAlloc_v2(&a, 0) == 1);
  IS(cuMemAlloc_v2(0, 1) == 1);
  IS(cuMemAllocAsync(&a, 0, stream) == 0 && a == 0);
  IS(cuMemAllocAsync(0, 1, stream) == 1);
  IS(cuMemAlloc_v2(&a, 1ul << 40) == 2);
  IS(cuMemAllocAsync(&a, 1ul << 40, stream) == 2);
  IS(cuMemFree_v2(0) == 0 && cuMemFreeAsync(0, stream) == 0);
  IS(cuMemFree_v2(12345) == 1);
  CHECK(cuMemAlloc_v2(&a, 1));
  IS(a % 256 == 0);
  IS(cuMemFree_v2(a + 16) == 1);
  IS(cuMemFreeAsync(a, (void *)64) == 400); /* no stream */
  CHECK(cuMemFree_v2(a));
  IS(cuMemFree_v2(a) == 1);
  CHECK(cuMemAllocPitch_v2(&a, &pitch, 1000, 10, 4));
  IS(pitch == 1024);
  use(a, 10240, 5);
  CHECK(cuMemFree_v2(a));
  IS(cuMemAllocPitch_v2(&a, &pitch, 0, 10, 4) == 1);
}

/* The driver's memory, and the pool's beside it. */
static void passed(void) {
  struct { unsigned kind, handles, location; int device; void *security; size_t most; } plain = {1, 0, 1, 0, 0, 0}, exported = {1, 1, 1, 0, 0, 0};
  void *pool, *usual;
  two_streams();
  CHECK(cuMemAllocManaged(&a, MIB, 1));
  CHECK(cuMemFree_v2(a));
  CHECK(cuMemPoolCreate(&pool, &exported));
  CHECK(cuMemAllocFromPoolAsync(&a, MIB, pool, stream));
  CHECK(cuMemFreeAsync(a, stream));
  CHECK(cuMemPoolDestroy(pool));
  CHECK(cuMemPoolCreate(&pool, &plain));
  CHECK(cuDeviceGetDefaultMemPool(&usual, 0));
  CHECK(cuMemAllocFromPoolAsync(&a, MIB, pool, stream));
  CHECK(cuMemAllocFromPoolAsync(&b, MIB, usual, stream));
  uint64_t used = 0;
  CHECK(cuMemPoolGetAttribute(usual, 7, &used));
  IS(used == 2 * MIB);
  CHECK(cuMemFreeAsync(a, stream));
  CHECK(cuMemFreeAsync(b, stream));
  CHECK(cuMemPoolDestroy(pool));
  CHECK(cuMemPoolTrimTo(usual, 0));
  CHECK(cuMemPoolGetAttribute(usual, 5, &used));
  IS(used == 0);
}

/* The default pool is the current one again once the program destroys the one that was. */
static void current_pool(void) {
  struct { unsigned kind, handles, location; int device; void *security; size_t most; } exported = {1, 1, 1, 0, 0, 0};
  void *pool;
  two_streams();
  CHECK(cuMemPoolCreate(&pool, &exported));
  CHECK(cuDeviceSetMemPool(0, pool));
  CHECK(cuMemAllocAsync(&a, MIB, stream)); /* the driver's */
  CHECK(cuMemFreeAsync(a, stream));
  CHECK(cuMemPoolDestroy(pool));
  CHECK(cuMemAllocAsync(&a, MIB, stream));
  CHECK(cuMemFreeAsync(a, stream));
}

static void pointers(void) {
  address_t base;
  size_t bytes;
  void *owner;
  CHECK(cuMemAlloc_v2(&a, 5 * MIB));
  CHECK(cuMemAlloc_v2(&b, 3 * MIB));
  CHECK(cuMemGetAddressRange_v2(&base, &bytes, b + 70000));
  IS(base == b && bytes == 3 * MIB);
  CHECK(cuPointerGetAttribute(&owner, 1, b + 70000));
  IS(owner == context);
  CHECK(cuPointerGetAttribute(&bytes, 12, a));
  IS(bytes == 5 * MIB);
  char handle[64];
  IS(cuIpcGetMemHandle(handle, a) == 1);
  IS(cuMemRetainAllocationHandle(&owner, b + 70000) == 1);
  CHECK(cuMemFree_v2(a));
  CHECK(cuMemFree_v2(b));
}

/* Under a limit of 16 MiB. */
static void limited(void) {
  size_t free, total;
  two_streams();
  CHECK(cuMemGetInfo_v2(&free, &total));
  IS(total == 16 * MIB && free == 16 * MIB);
  CHECK(cuMemAlloc_v2(&a, 10 * MIB));
  CHECK(cuMemGetInfo_v2(&free, &total));
  IS(free <= 6 * MIB);
  IS(cuMemAlloc_v2(&b, 10 * MIB) == 2);
  CHECK(cuMemFree_v2(a));
  CHECK(cuMemGetInfo_v2(&free, &total));
  IS(free == 16 * MIB);
  CHECK(cuMemAlloc_v2(&b, 10 * MIB));
  CHECK(cuMemFree_v2(b));
}

static void *free_soon(void *unused) {
  (void)unused;
  usleep(200000);
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuMemFree_v2(a));
  return 0;
}

/* Another thread frees what this one waits for. */
static void patient(void) {
  pthread_t thread;
  CHECK(cuMemAlloc_v2(&a, 10 * MIB));
  pthread_create(&thread, 0, free_soon, 0);
  CHECK(cuMemAlloc_v2(&b, 10 * MIB));
  pthread_join(thread, 0);
  CHECK(cuMemFree_v2(b));
}

/* With plain memory: what is exported is the driver's. */
static void plain(void) {
  char handle[64];
  address_t base;
  size_t bytes;
  CHECK(cuMemAlloc_v2(&a, 3 * MIB));
  CHECK(cuIpcGetMemHandle(handle, a));
  CHECK(cuMemGetAddressRange_v2(&base, &bytes, a));
  IS(base == 2 * MIB); /* the driver's answer */
  IS(cuMemAlloc_v2(&b, 14 * MIB) == 2);
  CHECK(cuMemFreeAsync(a, 0));
  CHECK(cuMemAlloc_v2(&b, 14 * MIB));
  CHECK(cuMemFree_v2(b));
}

/* Physical memory that the program maps is admitted for as long as a handle or a mapping has it. */
static void chunks(void) {
  struct { unsigned kind, handles, location; int device; char more[16]; } where = {1, 0, 1, 0, {0}};
  void *handle, *another;
  CHECK(cuMemCreate(&handle, 10 * MIB, &where, 0));
  IS(cuMemCreate(&another, 10 * MIB, &where, 0) == 2);
  IS(cuMemAlloc_v2(&a, 10 * MIB) == 2);
  CHECK(cuMemAddressReserve(&b, 10 * MIB, 0, 0, 0));
  CHECK(cuMemMap(b, 10 * MIB, 0, handle, 0));
  CHECK(cuMemRelease(handle));
  use(b, 10 * MIB, 3);
  IS(cuMemCreate(&another, 10 * MIB, &where, 0) == 2);
  IS(cuMemUnmap(b, 10 * MIB + 1) == 1); /* it stays mapped, and admitted */
  IS(cuMemCreate(&another, 10 * MIB, &where, 0) == 2);
  CHECK(cuMemUnmap(b, 10 * MIB));
  CHECK(cuMemAlloc_v2(&a, 10 * MIB));
  CHECK(cuMemFree_v2(a));
  CHECK(cuMemCreate(&another, 10 * MIB, &where, 0)); /* of what the pool gives back */
  CHECK(cuMemRelease(another));
}

/* Calls that name another context or device than the current one. */
static void elsewhere(void) {
  void *second, *now, *pool;
  CHECK(cuStreamCreate(&stream, 1));
  CHECK(cuDevicePrimaryCtxRetain(&second, 1));
  CHECK(cuCtxSetCurrent(second));
  CHECK(cuStreamCreate(&other, 1));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuMemAllocAsync(&a, MIB, other));
  CHECK(cuCtxGetCurrent(&now));
  IS(now == context);
  CHECK(cuDeviceGetDefaultMemPool(&pool, 1));
  CHECK(cuMemAllocFromPoolAsync(&b, MIB, pool, other));
  CHECK(cuMemAllocFromPoolAsync(&c, MIB, pool, stream)); /* of the other device: the driver's */
  CHECK(cuMemFreeAsync(a, other));
  CHECK(cuMemFreeAsync(b, other));
  CHECK(cuMemFreeAsync(c, stream));
}

/* Access that is given before there is a pool, by contexts and by pools; and an attribute. */
static void peers(void) {
  struct { int kind, device, flags; } access = {1, 1, 3};
  void *second, *pool, *now;
  uint64_t threshold = 3 * MIB, read = 0;
  CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cuMemPoolSetAccess(pool, &access, 1));
  CHECK(cuMemPoolSetAttribute(pool, 4, &threshold));
  CHECK(cuMemAlloc_v2(&a, MIB));
  CHECK(cuMemPoolGetAttribute(pool, 4, &read));
  IS(read == threshold);
  CHECK(cuDevicePrimaryCtxRetain(&second, 1));
  CHECK(cuCtxEnablePeerAccess(second, 0));
  CHECK(cuCtxGetCurrent(&now));
  IS(now == context);
  CHECK(cuMemAlloc_v2(&b, 20 * MIB));
  CHECK(cuCtxSetCurrent(second));
  CHECK(cuMemAlloc_v2(&c, MIB));
  CHECK(cuMemFree_v2(a));
  CHECK(cuMemFree_v2(b));
  CHECK(cuMemFree_v2(c));
}

/* The driver refuses to destroy a primary context, and its memory stays. */
static void refused(void) {
  void *second;
  CHECK(cuMemAlloc_v2(&a, MIB));
  IS(cuCtxDestroy_v2(context) == 201);
  use(a, MIB, 7);
  CHECK(cuMemFree_v2(a));
  CHECK(cuCtxCreate_v2(&second, 0, 0));
  CHECK(cuMemAlloc_v2(&a, 40 * MIB));
  CHECK(cuCtxDestroy(second));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuMemAlloc_v2(&a, 40 * MIB));
  CHECK(cuMemFree_v2(a));
}

/* Under a reserve of 40 MiB: a request that fails leaves nothing taken. */
static void reserved(void) {
  void *pool;
  uint64_t taken = 1;
  IS(cuMemAlloc_v2(&a, 100 * MIB) == 2);
  CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cuMemPoolTrimTo(pool, 0));
  CHECK(cuMemPoolGetAttribute(pool, 5, &taken));
  IS(taken == 0);
}

/* Under a reserve and a limit of 40 MiB: an impossible request leaves the reserve with the blocks. */
static void reserve_kept(void) {
  void *pool;
  uint64_t taken = 0;
  CHECK(cuMemAlloc_v2(&a, 8 * MIB));
  IS(cuMemAlloc_v2(&b, SIZE_MAX) == 2);
  CHECK(cuMemAlloc_v2(&b, 10 * MIB));
  CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cuMemPoolTrimTo(pool, 0));
  CHECK(cuMemPoolGetAttribute(pool, 5, &taken));
  IS(taken == 40 * MIB);
  CHECK(cuMemFree_v2(a));
  CHECK(cuMemFree_v2(b));
}

static void *ask(void *unused) {
  address_t none;
  (void)unused;
  CHECK(cuCtxSetCurrent(context));
  IS(cuMemAlloc_v2(&none, 10 * MIB) == 2);
  return 0;
}

/* The reserve is all of the limit, and a block that needs no turn is in its way: threads wait side by side. */
static void reserve_in_vain(void) {
  struct timespec begun, ended;
  pthread_t all[4];
  CHECK(cuMemAlloc_v2(&a, MIB));
  clock_gettime(CLOCK_MONOTONIC, &begun);
  for (int i = 0; i < 4; i++) pthread_create(&all[i], 0, ask, 0);
  for (int i = 0; i < 4; i++) pthread_join(all[i], 0);
  clock_gettime(CLOCK_MONOTONIC, &ended);
  IS(ended.tv_sec - begun.tv_sec + (ended.tv_nsec - begun.tv_nsec) / 1e9 < 1.5); /* one after the other: 2 s */
  CHECK(cuMemFree_v2(a));
}

/* The memory of a context ends with it, and the next one begins anew. */
static void contexts(void) {
  for (int i = 0; i < 3; i++) {
    two_streams();
    CHECK(cuMemAlloc_v2(&a, 20 * MIB));
    CHECK(cuMemAllocAsync(&b, 20 * MIB, stream));
    CHECK(cuDevicePrimaryCtxReset_v2(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
  }
  CHECK(cuMemAlloc_v2(&a, 20 * MIB));
  for (int i = 0; i < 4; i++) CHECK(cuDevicePrimaryCtxRelease_v2(0));
}

static void *churn(void *number) {
  address_t held[16] = {0};
  size_t sizes[16];
  unsigned seed = (unsigned)(uintptr_t)number + 1;
  void *own;
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuStreamCreate(&own, 1));
  for (int i = 0; i < 3000; i++) {
    int at = rand_r(&seed) % 16;
    unsigned char with = seed % 255;
    if (held[at]) {
      unsigned char *bytes = (void *)held[at];
      IS(bytes[0] == bytes[1] && bytes[0] == bytes[sizes[at] - 1]);
      switch (at % 3) {
        case 0: CHECK(cuMemFree_v2(held[at])); break;
        case 1: CHECK(cuMemFreeAsync(held[at], own)); break;
        default: CHECK(cuMemFreeAsync_ptsz(held[at], 0));
      }
      held[at] = 0;
      continue;
    }
    sizes[at] = 2 + rand_r(&seed) % (64 << 10);
    switch (at % 3) {
      case 0: CHECK(cuMemAlloc_v2(&held[at], sizes[at])); break;
      case 1: CHECK(cuMemAllocAsync(&held[at], sizes[at], own)); break;
      default: CHECK(cuMemAllocAsync_ptsz(&held[at], sizes[at], 0));
    }
    memset((void *)held[at], with, sizes[at]);
    if (i % 500 == 499) {
      CHECK(cuStreamDestroy_v2(own));
      CHECK(cuStreamCreate(&own, 1));
    }
  }
  for (int at = 0; at < 16; at++) if (held[at]) CHECK(cuMemFree_v2(held[at]));
  CHECK(cuStreamDestroy_v2(own));
  return 0;
}

/* Threads that end, with streams of their own; contents tell if two of them have the same memory. */
static void threads(void) {
  for (int round = 0; round < 3; round++) {
    pthread_t all[MANY];
    for (uintptr_t i = 0; i < MANY; i++) pthread_create(&all[i], 0, churn, (void *)(i + round * MANY));
    for (int i = 0; i < MANY; i++) pthread_join(all[i], 0);
  }
}

/* A forked process gets the driver's answers. One that is forked first has a pool of its own. */
static void forks(void) {
  int status;
  CHECK(cuMemAlloc_v2(&a, MIB));
  pid_t child = fork();
  if (!child) {
    IS(!cuMemAlloc_v2(&b, MIB)); /* the driver's */
    IS(!cuMemFree_v2(b));
    exit(0);
  }
  waitpid(child, &status, 0);
  IS(!status);
  CHECK(cuMemFree_v2(a));
}

static void forks_first(void) {
  int status;
  pid_t child = fork();
  CHECK(cuMemAlloc_v2(&a, MIB));
  CHECK(cuMemFree_v2(a));
  if (!child) exit(0);
  waitpid(child, &status, 0);
  IS(!status);
}

static char *self;
static void executes(void) {
  CHECK(cuMemAlloc_v2(&a, MIB));
  execl(self, self, "order", (char *)0);
  IS(0);
}

static void free_late(void) { CHECK(cuMemFree_v2(a)); CHECK(cuMemFreeAsync(b, stream)); CHECK(cuMemFreeAsync_ptsz(c, 0)); }
/* Memory is freed when the program has ended. */
static void late(void) {
  two_streams();
  atexit(free_late);
  CHECK(cuMemAlloc_v2(&a, MIB));
  CHECK(cuMemAllocAsync(&b, MIB, stream));
  CHECK(cuMemAllocAsync_ptsz(&c, MIB, 0));
}

static void *exit_here(void *unused) { (void)unused; CHECK(cuCtxSetCurrent(context)); CHECK(cuMemAllocAsync_ptsz(&b, MIB, 0)); puts("ok"); exit(0); }
static void exits_in_thread(void) {
  pthread_t thread;
  CHECK(cuMemAlloc_v2(&a, MIB));
  pthread_create(&thread, 0, exit_here, 0);
  pthread_join(thread, 0);
}

static void leaves(void) { CHECK(cuMemAlloc_v2(&a, MIB)); puts("ok"); fflush(stdout); _exit(0); }
static void crashes(void) { CHECK(cuMemAlloc_v2(&a, MIB)); raise(SIGSEGV); }

/* Memory of 24 MiB in each of 200 rounds. */
static void rounds(void) {
  two_streams();
  for (int i = 0; i < 200; i++) {
    CHECK(cuMemAlloc_v2(&a, 12 * MIB));
    CHECK(cuMemAllocAsync(&b, 12 * MIB, stream));
    use(a, 4096, i);
    use(b, 4096, i);
    usleep(500);
    CHECK(cuMemFreeAsync(b, stream));
    CHECK(cuMemFree_v2(a));
  }
}

/* Many pairs, for profiles. */
static void pairs(void) { two_streams(); for (int i = 0; i < 100000; i++) { CHECK(cuMemAllocAsync(&a, MIB, stream)); CHECK(cuMemFreeAsync(a, stream)); } }

static const struct { const char *name; void (*run)(void); } cases[] = {
#define CASE(name) {#name, name}
  CASE(order), CASE(waits), CASE(destroyed), CASE(captures), CASE(captured_first), CASE(captures_destroyed), CASE(captures_free), CASE(captures_thread), CASE(captures_context), CASE(versions), CASE(elsewhere), CASE(peers), CASE(refused), CASE(reserved), CASE(reserve_kept), CASE(reserve_in_vain), CASE(errors), CASE(passed), CASE(current_pool), CASE(pointers), CASE(limited), CASE(patient), CASE(plain), CASE(chunks), CASE(rounds),
  CASE(contexts), CASE(threads), CASE(forks), CASE(forks_first), CASE(executes), CASE(late), CASE(exits_in_thread), CASE(leaves), CASE(crashes), CASE(pairs),
};

int main(int count, char **arguments) {
  self = arguments[0];
  for (size_t i = 0; count > 1 && i < sizeof cases / sizeof *cases; i++) {
    if (strcmp(cases[i].name, arguments[1])) continue;
    if (strcmp(arguments[1], "forks_first")) begin();
    else { CHECK(cuInit(0)); CHECK(cuDevicePrimaryCtxRetain(&context, 0)); CHECK(cuCtxSetCurrent(context)); }
    cases[i].run();
    return end();
  }
  return 2;
}
