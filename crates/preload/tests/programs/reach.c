/* Reaches the driver in a way of its argument: linked, dlsym, address (cuGetProcAddress) or thread (the same, for functions
 * whose default stream is that of the thread). Built with -fno-plt, `linked` and `own` call through addresses in data: `own` a function
 * of the program's that has the name of one of the driver's. */
#define _GNU_SOURCE
#include "program.h"
#include <dlfcn.h>

static int (*alloc)(address_t *, size_t);
static int (*release)(address_t);
static int (*alloc_async)(address_t *, size_t, void *);
static int (*free_async)(address_t, void *);

int main(int count, char **arguments) {
  const char *way = count > 1 ? arguments[1] : "linked";
  void *stream;
  begin();
  CHECK(cuStreamCreate(&stream, 1));
  if (!strcmp(way, "own")) {
    address_t a;
    size_t pitch;
    IS(cuMemAllocPitch_v2(&a, &pitch, 1, 1, 4) == 77);
    return end();
  }
  if (!strcmp(way, "linked")) {
    for (int i = 0; i < 10; i++) {
      address_t a, b;
      CHECK(cuMemAlloc_v2(&a, 1 << 20));
      CHECK(cuMemAllocAsync(&b, 3 << 20, stream));
      use(a, 1 << 20, i);
      use(b, 3 << 20, i + 1);
      CHECK(cuMemFreeAsync(b, stream));
      CHECK(cuMemFree_v2(a));
    }
    return end();
  }
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  IS(driver);
  if (!strcmp(way, "dlsym")) {
    alloc = dlsym(driver, "cuMemAlloc_v2");
    release = dlsym(RTLD_DEFAULT, "cuMemFree_v2");
    alloc_async = dlsym(driver, "cuMemAllocAsync");
    free_async = dlsym(driver, "cuMemFreeAsync");
  } else {
    int (*get)(const char *, void *, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    uint64_t flags = strcmp(way, "thread") ? 0 : 2;
    void *again;
    CHECK(get("cuGetProcAddress", &again, 13000, flags, 0));
    get = again;
    CHECK(get("cuMemAlloc", &alloc, 13000, flags, 0));
    CHECK(get("cuMemFree", &release, 13000, flags, 0));
    CHECK(get("cuMemAllocAsync", &alloc_async, 13000, flags, 0));
    CHECK(get("cuMemFreeAsync", &free_async, 13000, flags, 0));
    IS(get("cuNoSuchFunction", &again, 13000, flags, 0) && !again);
    if (flags) stream = 0;
  }
  for (int i = 0; i < 10; i++) {
    address_t a, b;
    CHECK(alloc(&a, 1 << 20));
    CHECK(alloc_async(&b, 3 << 20, stream));
    use(a, 1 << 20, i);
    use(b, 3 << 20, i + 1);
    CHECK(free_async(b, stream));
    CHECK(release(a));
  }
  return end();
}
