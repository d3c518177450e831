/* A driver for tests: its memory is the host's, and work is complete when it is submitted, unless a stream is held. It has
 * the functions that the pool and the programs of these tests call. At the end it tells, in the file FAKE_REPORT, how
 * often its own functions that allocate were called, and what was not freed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int R;
typedef uint64_t P;
#define API __attribute__((visibility("default"))) R
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_CONTEXT = 201, INVALID_HANDLE = 400, NOT_READY = 600, NO_CAPTURE = 900, IMPLICIT = 906 };
#define INVALID_STREAM ((void *)64)
#define DESTROYED -1
#define STEP (2ul << 20)
#define TOTAL (64ul << 20)

static struct { long alloc, async, pool, managed, create, free, free_async, synchronize, destroyed, access; } calls;
static long used, handles_live, ranges_live;

struct stream { uint64_t id, held; int captured; void *context; };
struct event { struct stream *stream; uint64_t at; };
struct handle { int file; size_t bytes; };
struct context { int device, retained; };
static struct context primaries[2] = {{0, 0}, {1, 0}};
static __thread struct context *current;
static __thread int mode;
static __thread struct stream thread_stream;
static struct stream legacy = {1, 0, 0, primaries};
static int captures, capture_mode;
static __thread int slow;
static uint64_t ids = 2;

static struct stream *of(void *s) {
  if ((uintptr_t)s < 2) return &legacy;
  if ((uintptr_t)s > 2) return s;
  if (!thread_stream.id) thread_stream = (struct stream){__atomic_fetch_add(&ids, 1, 5), 0, 0, primaries};
  return &thread_stream;
}

API cuInit(unsigned f) { (void)f; return OK; }
API cuDriverGetVersion(int *v) { *v = 13000; return OK; }
API cuDeviceGetCount(int *n) { *n = 2; return OK; }
API cuDeviceGet(int *d, int n) { *d = n; return n > 1 ? 101 : OK; }
API cuDeviceGetName(char *t, int n, int d) { (void)d; snprintf(t, n, "fake"); return OK; }
API cuDeviceGetUuid_v2(char *u, int d) { memset(u, 7 + d, 16); return OK; }
API cuDeviceTotalMem_v2(size_t *n, int d) { (void)d; *n = TOTAL; return OK; }
API cuDeviceCanAccessPeer(int *v, int a, int b) { *v = a != b; return OK; }
API cuDeviceGetAttribute(int *v, int a, int d) {
  (void)d;
  switch (a) {
    case 75: *v = 9; break; /* compute capability */
    case 41: case 102: case 103: case 115: *v = 1; break; /* unified addresses, virtual memory, descriptors, pools */
    default: *v = 0;
  }
  return OK;
}
API cuGetErrorName(R r, const char **t) { *t = r == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR"; return OK; }
API cuGetErrorString(R r, const char **t) { *t = r == NO_MEMORY ? "out of memory" : "error"; return OK; }

API cuDevicePrimaryCtxRetain(void **c, int d) { primaries[d].retained++; *c = &primaries[d]; return OK; }
API cuDevicePrimaryCtxRelease_v2(int d) { primaries[d].retained--; return OK; }
API cuDevicePrimaryCtxRelease(int d) { return cuDevicePrimaryCtxRelease_v2(d); }
API cuDevicePrimaryCtxReset_v2(int d) { (void)d; captures = 0; return OK; } /* It stays retained. */
API cuDevicePrimaryCtxReset(int d) { return cuDevicePrimaryCtxReset_v2(d); }
API cuDevicePrimaryCtxGetState(int d, unsigned *f, int *a) { *f = 0; *a = primaries[d].retained > 0; return OK; }
API cuCtxCreate_v2(struct context **c, unsigned f, int d) { (void)f; *c = calloc(1, sizeof **c); (*c)->device = d; current = *c; return OK; }
API cuCtxDestroy_v2(struct context *c) { if (c == primaries || c == primaries + 1) return NO_CONTEXT; c->device = DESTROYED; return OK; } /* It stays, for later uses to be seen. */
API cuCtxDestroy(struct context *c) { return cuCtxDestroy_v2(c); }
API cuCtxEnablePeerAccess(void *c, unsigned f) { (void)c, (void)f; return OK; }
API cuCtxGetCurrent(void **c) { *c = current; return OK; }
API cuCtxSetCurrent(void *c) { current = c; return OK; }
static __thread void *stack[8];
static __thread int depth;
API cuCtxPushCurrent_v2(struct context *c) {
  if (c->device == DESTROYED) { fputs("fake: use of a destroyed context\n", stderr); abort(); }
  stack[depth++] = current;
  current = c;
  return OK;
}
API cuCtxPopCurrent_v2(void **c) { *c = current; current = stack[--depth]; return OK; }
API cuCtxGetDevice(int *d) { *d = current ? current->device : 0; return current ? OK : NO_CONTEXT; }
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *all[4096];
static int streams;
API cuCtxSynchronize(void) {
  calls.synchronize++;
  if (captures) return NO_CAPTURE;
  usleep(slow);
  pthread_mutex_lock(&streams_lock);
  for (int i = 0; i < streams; i++) if (all[i]) all[i]->held = 0;
  legacy.held = 0;
  pthread_mutex_unlock(&streams_lock);
  return OK;
}
API cuThreadExchangeStreamCaptureMode(int *m) { int was = mode; mode = *m; *m = was; return OK; }

API cuStreamCreate(struct stream **s, unsigned f) {
  (void)f;
  *s = malloc(sizeof **s);
  **s = (struct stream){__atomic_fetch_add(&ids, 1, 5), 0, 0, current};
  pthread_mutex_lock(&streams_lock);
  all[streams++] = *s;
  pthread_mutex_unlock(&streams_lock);
  return OK;
}
API cuStreamCreateWithPriority(struct stream **s, unsigned f, int p) { (void)p; return cuStreamCreate(s, f); }
API cuStreamDestroy_v2(struct stream *s) {
  pthread_mutex_lock(&streams_lock);
  for (int i = 0; i < streams; i++) if (all[i] == s) all[i] = 0;
  pthread_mutex_unlock(&streams_lock);
  calls.destroyed++;
  captures -= s->captured;
  memset(s, 0xdd, sizeof *s); /* a later use is seen */
  return OK;
}
API cuStreamDestroy(struct stream *s) { return cuStreamDestroy_v2(s); }
API cuStreamGetId(void *s, uint64_t *id) { *id = of(s)->id; return OK; }
API cuStreamGetCtx(void *s, void **c) { if (s == INVALID_STREAM) return INVALID_HANDLE; *c = (uintptr_t)s > 2 ? of(s)->context : current; return OK; }
API cuStreamIsCapturing(void *s, int *v) { *v = of(s)->captured; return captures && of(s) == &legacy ? IMPLICIT : OK; }
API cuStreamGetCaptureInfo_v2(void *s, int *v, uint64_t *id, void *g, void *d, void *n) { (void)g, (void)d, (void)n; *v = of(s)->captured; *id = 1; return OK; }
API cuStreamBeginCapture_v2(void *s, int m) { capture_mode = m; of(s)->captured = 1; captures++; return OK; }
API cuStreamBeginCapture(void *s) { return cuStreamBeginCapture_v2(s, 0); }
API cuStreamEndCapture(void *s, void **g) { captures -= of(s)->captured; of(s)->captured = 0; *g = &legacy; return OK; }
API cuGraphDestroy(void *g) { (void)g; return OK; }
API fakeMode(void) { return capture_mode; }
API cuStreamQuery(void *s) { return of(s)->held ? NOT_READY : OK; }
API cuStreamSynchronize(void *s) { of(s)->held = 0; return OK; }
API cuStreamWaitEvent(void *s, struct event *e, unsigned f) { (void)f; if (e->stream && e->stream->held) of(s)->held = 1; return OK; }
/* Each wait of this thread for a context takes this long. */
API fakeSlow(int us) { slow = us; return OK; }
/* The work of a stream goes on until it is waited for. */
API fakeHold(void *s) { of(s)->held = 1; return OK; }
API cuEventCreate(struct event **e, unsigned f) { (void)f; *e = calloc(1, sizeof **e); return OK; }
API cuEventRecord(struct event *e, void *s) {
  if (of(s)->id == 0xddddddddddddddddul) { fputs("fake: event of a destroyed stream\n", stderr); abort(); }
  e->stream = of(s)->held ? of(s) : 0;
  return OK;
}
API cuEventQuery(struct event *e) { return e->stream && e->stream->held ? NOT_READY : OK; }
API cuEventSynchronize(struct event *e) { if (e->stream) e->stream->held = 0; return OK; }
API cuEventDestroy_v2(struct event *e) { free(e); return OK; }

static int charge(long bytes) {
  long now = __atomic_add_fetch(&used, bytes, 5);
  if (bytes > 0 && now > (long)TOTAL) { __atomic_sub_fetch(&used, bytes, 5); return NO_MEMORY; }
  return OK;
}
API cuMemGetInfo_v2(size_t *f, size_t *t) { *t = TOTAL; *f = TOTAL - used; return OK; }

/* Memory with its size in front. */
static R take(P *p, size_t n) {
  if (!n || !p) return INVALID;
  if (charge(n)) return NO_MEMORY;
  size_t *start = aligned_alloc(STEP, (n + STEP + STEP - 1) & -STEP);
  *start = n;
  *p = (P)start + 4096;
  return OK;
}
static R give(P p) {
  if (!p) return OK;
  if ((p - 4096) % STEP) return INVALID;
  charge(-(long)*(size_t *)(p - 4096));
  free((void *)(p - 4096));
  return OK;
}
API cuMemAlloc_v2(P *p, size_t n) { calls.alloc++; return take(p, n); }
API cuMemAllocAsync(P *p, size_t n, void *s) { (void)s; calls.async++; return p && !n ? (*p = 0, OK) : take(p, n); }
API cuMemAllocAsync_ptsz(P *p, size_t n, void *s) { return cuMemAllocAsync(p, n, s); }
API cuMemAllocFromPoolAsync(P *p, size_t n, void *q, void *s) { (void)s, (void)q; calls.pool++; return take(p, n); }
API cuMemAllocPitch_v2(P *p, size_t *pitch, size_t w, size_t h, unsigned e) {
  (void)e;
  if (!w || !h) return INVALID;
  *pitch = (w + 511) & -512ul;
  return cuMemAlloc_v2(p, *pitch * h);
}
API cuMemAllocManaged(P *p, size_t n, unsigned f) { (void)f; calls.managed++; return take(p, n); }
API cuMemFree_v2(P p) { calls.free++; return give(p); }
API cuMemFreeAsync(P p, void *s) { (void)s; calls.free_async++; return give(p); }
API cuMemFreeAsync_ptsz(P p, void *s) { return cuMemFreeAsync(p, s); }
API cuMemsetD8Async(P p, unsigned char v, size_t n, void *s) { (void)s; memset((void *)p, v, n); return OK; }
API cuMemGetAddressRange_v2(P *b, size_t *n, P p) { (void)p; *b = STEP; *n = STEP; return OK; }
API cuPointerGetAttribute(void *d, int a, P p) { (void)a, (void)p; *(uint64_t *)d = 0; return OK; }
API cuMemRetainAllocationHandle(void **h, P p) { (void)p; *h = &legacy; return OK; }
API cuIpcGetMemHandle(void *h, P p) { (void)h, (void)p; return OK; }

API cuDeviceGetDefaultMemPool(void **q, int d) { *q = &primaries[d]; return OK; }
API cuMemPoolSetAccess(void *q, void *a, size_t n) { (void)q, (void)a, (void)n; return OK; }
API cuDeviceSetMemPool(int d, void *q) { (void)d, (void)q; return OK; }
API cuMemPoolCreate(void **q, void *p) { (void)p; *q = malloc(8); return OK; }
API cuMemPoolDestroy(void *q) { free(q); return OK; }
API cuMemPoolTrimTo(void *q, size_t n) { (void)q, (void)n; return OK; }
API cuMemPoolSetAttribute(void *q, int a, void *v) { (void)q, (void)a, (void)v; return OK; }
API cuMemPoolGetAttribute(void *q, int a, void *v) { (void)q; memset(v, 0, a < 4 ? 4 : 8); return OK; }

API cuMemGetAllocationGranularity(size_t *n, void *p, int o) { (void)p, (void)o; *n = STEP; return OK; }
API cuMemAddressReserve(P *p, size_t n, size_t a, P at, uint64_t f) {
  (void)a, (void)at, (void)f;
  char *start = mmap(0, n + STEP, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return NO_MEMORY;
  ranges_live++;
  *p = ((P)start + STEP - 1) & -STEP;
  return OK;
}
API cuMemAddressFree(P p, size_t n) { ranges_live--; munmap((void *)p, n); return OK; }
API cuMemCreate(struct handle **h, size_t n, void *p, uint64_t f) {
  (void)p, (void)f;
  calls.create++;
  if (charge(n)) return NO_MEMORY;
  *h = malloc(sizeof **h);
  **h = (struct handle){memfd_create("chunk", 0), n};
  if (ftruncate((*h)->file, n)) return NO_MEMORY;
  __atomic_add_fetch(&handles_live, 1, 5);
  return OK;
}
API cuMemRelease(struct handle *h) { charge(-(long)h->bytes); close(h->file); free(h); __atomic_sub_fetch(&handles_live, 1, 5); return OK; }
API cuMemMap(P p, size_t n, size_t at, struct handle *h, uint64_t f) {
  (void)f;
  return mmap((void *)p, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, h->file, at) == MAP_FAILED ? INVALID : OK;
}
struct access { int kind, device, flags; };
API cuMemSetAccess(P p, size_t n, struct access *a, size_t c) {
  (void)p, (void)n;
  for (size_t i = 0; i < c; i++) calls.access |= (a[i].flags == 3) << (current->device * 2 + a[i].device);
  return OK;
}
API cuMemUnmap(P p, size_t n) {
  if (n % STEP) return INVALID;
  return mmap((void *)p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED ? INVALID : OK;
}

/* By the newest version, of the thread's default stream if it is asked for. */
API cuGetProcAddress_v2(const char *name, void **f, int v, uint64_t flags, int *status) {
  static const char *const suffixes[] = {"_v2_ptsz", "_ptsz", "_v2", ""};
  char symbol[96];
  void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  for (int i = flags & 2 ? 0 : 2; i < 4; i++) {
    if (v < 10010 && !strcmp(name, "cuStreamBeginCapture") && i < 3) continue;
    snprintf(symbol, sizeof symbol, "%s%s", name, suffixes[i]);
    if ((*f = dlsym(self, symbol))) break;
  }
  if (status) *status = *f ? 0 : 1;
  return *f ? OK : INVALID;
}

__attribute__((destructor)) static void report(void) {
  const char *file = getenv("FAKE_REPORT");
  FILE *out = file ? fopen(file, "a") : 0;
  if (!out) return;
  fprintf(out, "alloc=%ld async=%ld pool=%ld managed=%ld create=%ld free=%ld free_async=%ld synchronize=%ld destroyed=%ld access=%ld used=%ld handles=%ld ranges=%ld\n",
          calls.alloc, calls.async, calls.pool, calls.managed, calls.create, calls.free, calls.free_async, calls.synchronize, calls.destroyed, calls.access, used, handles_live, ranges_live);
  fclose(out);
}
