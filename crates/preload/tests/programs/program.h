/* What the programs of the tests share: the functions of the driver, and a use of them. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t address_t;
#define CHECK(call) do { int status = (call); if (status) { printf("%s: %d\n", #call, status); exit(1); } } while (0)
#define IS(what) do { if (!(what)) { printf("%d: not %s\n", __LINE__, #what); exit(1); } } while (0)

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuDevicePrimaryCtxReset_v2(int);
int cuDevicePrimaryCtxRelease(int);
int cuDevicePrimaryCtxReset(int);
int cuCtxCreate_v2(void **, unsigned, int);
int cuCtxDestroy_v2(void *);
int cuCtxDestroy(void *);
int cuCtxGetCurrent(void **);
int cuCtxEnablePeerAccess(void *, unsigned);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize(void);
int cuStreamCreate(void **, unsigned);
int cuStreamDestroy_v2(void *);
int cuStreamDestroy(void *);
int cuStreamBeginCapture_v2(void *, int);
int cuStreamEndCapture(void *, void **);
int cuMemAlloc_v2(address_t *, size_t);
int cuMemAllocPitch_v2(address_t *, size_t *, size_t, size_t, unsigned);
int cuMemAllocManaged(address_t *, size_t, unsigned);
int cuMemFree_v2(address_t);
int cuMemAllocAsync(address_t *, size_t, void *);
int cuMemFreeAsync(address_t, void *);
int cuMemAllocAsync_ptsz(address_t *, size_t, void *);
int cuMemFreeAsync_ptsz(address_t, void *);
int cuMemAllocFromPoolAsync(address_t *, size_t, void *, void *);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemGetAddressRange_v2(address_t *, size_t *, address_t);
int cuPointerGetAttribute(void *, int, address_t);
int cuMemRetainAllocationHandle(void **, address_t);
int cuIpcGetMemHandle(void *, address_t);
int cuDeviceGetDefaultMemPool(void **, int);
int cuDeviceSetMemPool(int, void *);
int cuMemPoolCreate(void **, void *);
int cuMemPoolDestroy(void *);
int cuMemPoolTrimTo(void *, size_t);
int cuMemPoolSetAccess(void *, void *, size_t);
int cuMemPoolGetAttribute(void *, int, void *);
int cuMemPoolSetAttribute(void *, int, void *);
int cuStreamSynchronize(void *);
int cuMemCreate(void **, size_t, void *, uint64_t);
int cuMemRelease(void *);
int cuMemAddressReserve(address_t *, size_t, size_t, address_t, uint64_t);
int cuMemMap(address_t, size_t, size_t, void *, uint64_t);
int cuMemUnmap(address_t, size_t);
int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
int fakeHold(void *);
int fakeSlow(int);
int fakeMode(void);

static void *context;

static inline void begin(void) {
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(cuCtxSetCurrent(context));
}

static inline int end(void) {
  puts("ok");
  return 0;
}

/* Fills memory, and finds it filled: the device's memory is the host's here. */
static inline void use(address_t at, size_t bytes, int with) {
  memset((void *)at, with, bytes);
  for (size_t i = 0; i < bytes; i += 997) IS(((unsigned char *)at)[i] == (unsigned char)with);
}
