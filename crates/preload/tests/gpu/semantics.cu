// Prints how the driver answers in cases that are easy to get wrong. With the pool it prints the same.
#include <cstdio>
#include <cstring>
#include <cuda.h>

static CUdevice device;
static CUcontext context;
static CUstream stream;

static void say(const char *what, int status) { printf("%-58s %d\n", what, status); }
#define SAY(call) say(#call, call)

int main() {
  cuInit(0);
  cuDeviceGet(&device, 0);
  cuDevicePrimaryCtxRetain(&context, device);
  cuCtxSetCurrent(context);
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  CUdeviceptr a = 0, b = 0, base = 0;
  size_t pitch = 0, bytes = 0, widths[] = {1, 100, 511, 512, 513, 4000, 70000};
  SAY(cuMemAlloc(&a, 0));
  SAY(cuMemAlloc(nullptr, 1));
  SAY(cuMemAllocAsync(&a, 0, stream));
  SAY(cuMemAllocAsync(nullptr, 1, stream));
  SAY(cuMemFree(0));
  SAY(cuMemFreeAsync(0, stream));
  SAY(cuMemFree(12345));
  SAY(cuMemFreeAsync(12345, stream));
  SAY(cuMemAlloc(&a, 1ull << 50));
  SAY(cuMemAllocAsync(&a, 1ull << 50, stream));
  SAY(cuMemAlloc(&a, 1));
  printf("aligned: %d\n", a % 256 == 0);
  SAY(cuMemFree(a + 16));
  SAY(cuMemFree(a));
  SAY(cuMemFree(a));
  SAY(cuMemAlloc(&a, 3 << 20));
  SAY(cuMemFreeAsync(a, stream));
  SAY(cuStreamSynchronize(stream));
  SAY(cuMemAllocAsync(&b, 3 << 20, stream));
  SAY(cuMemFree(b));
  SAY(cuMemAllocAsync(&b, 3 << 20, 0));
  SAY(cuMemFreeAsync(b, CU_STREAM_PER_THREAD));
  SAY(cuMemAllocAsync(&b, 3 << 20, CU_STREAM_LEGACY));
  SAY(cuMemFreeAsync(b + 512, CU_STREAM_LEGACY));
  SAY(cuMemFreeAsync(b, CU_STREAM_LEGACY));
  for (size_t width : widths) {
    int status = cuMemAllocPitch(&a, &pitch, width, 3, 4);
    printf("pitch of %zu: %zu %d\n", width, pitch, status);
    cuMemFree(a);
  }
  SAY(cuMemAllocPitch(&a, &pitch, 0, 3, 4));
  SAY(cuMemAllocPitch(&a, &pitch, 100, 3, 5));

  cuMemAlloc(&a, 5 << 20);
  cuMemAllocAsync(&b, 6 << 20, stream);
  cuStreamSynchronize(stream);
  for (CUdeviceptr p : {a, b}) {
    int status = cuMemGetAddressRange(&base, &bytes, p + 4096);
    printf("range: %d %d %zu\n", status, base == p, bytes);
    CUcontext owner = 0;
    status = cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p);
    printf("context: %d %s\n", status, owner == context ? "own" : owner ? "another" : "none");
    CUmemorytype type;
    status = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p);
    printf("type: %d %d\n", status, (int)type);
    unsigned managed = 7;
    status = cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p);
    printf("managed: %d %u\n", status, managed);
    int ordinal = 7;
    status = cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p);
    printf("device: %d %d\n", status, ordinal);
    size_t size = 0;
    status = cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p + 4096);
    printf("range size: %d %zu\n", status, size);
    CUmemoryPool pool = 0, usual = 0;
    cuDeviceGetDefaultMemPool(&usual, device);
    status = cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p);
    printf("pool: %d %s\n", status, pool == usual ? "default" : pool ? "another" : "none");
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    void *places[] = {&owner, &size, &type};
    status = cuPointerGetAttributes(3, which, places, p);
    printf("several: %d %s %zu %d\n", status, owner == context ? "own" : "not own", size, (int)type);
  }
  cuMemFree(a);
  cuMemFreeAsync(b, stream);

  // A capture with an allocation node.
  CUgraph graph;
  CUgraphExec ready;
  SAY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  SAY(cuMemAllocAsync(&a, 1 << 20, stream));
  SAY(cuMemsetD8Async(a, 1, 1 << 20, stream));
  SAY(cuMemFreeAsync(a, stream));
  SAY(cuStreamEndCapture(stream, &graph));
  SAY(cuGraphInstantiate(&ready, graph, 0));
  SAY(cuGraphLaunch(ready, stream));
  SAY(cuStreamSynchronize(stream));

  // Pools: the default one and one of the program's.
  CUmemoryPool pool;
  cuuint64_t threshold = ~0ull;
  cuDeviceGetDefaultMemPool(&pool, device);
  SAY(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CUmemPoolProps properties;
  memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  SAY(cuMemPoolCreate(&pool, &properties));
  SAY(cuMemAllocFromPoolAsync(&a, 4 << 20, pool, stream));
  cuuint64_t used = 0;
  SAY(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  printf("used: %llu\n", (unsigned long long)used);
  SAY(cuMemFreeAsync(a, stream));
  SAY(cuMemPoolDestroy(pool));

  // The memory of a context ends with it.
  SAY(cuMemAlloc(&a, 1 << 20));
  SAY(cuStreamDestroy(stream));
  SAY(cuDevicePrimaryCtxReset(device));
  SAY(cuDevicePrimaryCtxRetain(&context, device));
  SAY(cuCtxSetCurrent(context));
  SAY(cuMemAlloc(&b, 1 << 20));
  SAY(cuMemsetD8(b, 1, 1 << 20));
  SAY(cuMemFree(b));
  SAY(cuDevicePrimaryCtxRelease(device));

  CUcontext other;
  SAY(cuCtxCreate(&other, nullptr, 0, device));
  SAY(cuMemAlloc(&b, 1 << 20));
  SAY(cuMemsetD8(b, 1, 1 << 20));
  SAY(cuMemFree(b));
  SAY(cuMemAlloc(&b, 1 << 20));
  SAY(cuCtxDestroy(other));
}
