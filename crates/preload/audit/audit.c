/* The audit library of `weirpool run`: has the driver's calls of a program bound to functions of the pool.
 *
 * The dynamic linker loads this library into a namespace of its own (LD_AUDIT), and tells it each symbol of the driver that an
 * object of the program binds, in a table of calls or by `dlsym`. The names in CALLS are bound to a function of this
 * library instead, and so is `cuGetProcAddress`, whose results are replaced in the same way. At the first call of such a
 * function the pool's library is loaded into the namespace of the program. The function then passes the call on to it, with the driver's
 * own function in front of the arguments. The pool's library is the one object whose symbols are left as they are, so
 * that its own calls reach the driver.
 *
 * A reference to a function that is no call through a table (its address in data, or code built with -fno-plt) is not
 * told by the linker: `patch` replaces it in the object's table of addresses.
 *
 * This code starts no thread, and uses nothing of the C library that needs a thread to be set up by it: the threads
 * belong to the program's C library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long address_t;
typedef const char *name_t;
typedef void *stream_t;
typedef void *any_t;

/* The stream of a function whose default stream is that of the thread: CU_STREAM_PER_THREAD. */
static stream_t own(stream_t stream) { return stream ? stream : (stream_t)2; }

/* Each call that is replaced: symbol of the driver, function of the pool, parameters, arguments. The first version of
 * cuStreamBeginCapture has no mode, and ignores the argument. */
#define CALLS(X) \
  X(cuMemAlloc_v2, cuMemAlloc, (any_t p, size_t n), p, n) \
  X(cuMemAllocPitch_v2, cuMemAllocPitch, (any_t p, any_t pitch, size_t w, size_t h, unsigned e), p, pitch, w, h, e) \
  X(cuMemAllocManaged, cuMemAllocManaged, (any_t p, size_t n, unsigned f), p, n, f) \
  X(cuMemFree_v2, cuMemFree, (address_t a), a) \
  X(cuMemAllocAsync, cuMemAllocAsync, (any_t p, size_t n, stream_t s), p, n, s) \
  X(cuMemAllocAsync_ptsz, cuMemAllocAsync, (any_t p, size_t n, stream_t s), p, n, own(s)) \
  X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, (any_t p, size_t n, any_t q, stream_t s), p, n, q, s) \
  X(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, (any_t p, size_t n, any_t q, stream_t s), p, n, q, own(s)) \
  X(cuMemFreeAsync, cuMemFreeAsync, (address_t a, stream_t s), a, s) \
  X(cuMemFreeAsync_ptsz, cuMemFreeAsync, (address_t a, stream_t s), a, own(s)) \
  X(cuMemCreate, cuMemCreate, (any_t h, size_t n, any_t p, address_t f), h, n, p, f) \
  X(cuMemRelease, cuMemRelease, (address_t h), h) \
  X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, (any_t h, any_t a), h, a) \
  X(cuMemMap, cuMemMap, (address_t a, size_t n, size_t o, address_t h, address_t f), a, n, o, h, f) \
  X(cuMemUnmap, cuMemUnmap, (address_t a, size_t n), a, n) \
  X(cuMemGetInfo_v2, cuMemGetInfo, (any_t free, any_t total), free, total) \
  X(cuMemGetAddressRange_v2, cuMemGetAddressRange, (any_t base, any_t n, address_t a), base, n, a) \
  X(cuPointerGetAttribute, cuPointerGetAttribute, (any_t d, int t, address_t a), d, t, a) \
  X(cuPointerGetAttributes, cuPointerGetAttributes, (unsigned n, any_t t, any_t d, address_t a), n, t, d, a) \
  X(cuIpcGetMemHandle, cuIpcGetMemHandle, (any_t h, address_t a), h, a) \
  X(cuMemPoolExportPointer, cuMemPoolExportPointer, (any_t d, address_t a), d, a) \
  X(cuMemPoolCreate, cuMemPoolCreate, (any_t q, any_t p), q, p) \
  X(cuMemPoolDestroy, cuMemPoolDestroy, (any_t q), q) \
  X(cuMemPoolTrimTo, cuMemPoolTrimTo, (any_t q, size_t n), q, n) \
  X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, (any_t q, int t, any_t v), q, t, v) \
  X(cuMemPoolGetAttribute, cuMemPoolGetAttribute, (any_t q, int t, any_t v), q, t, v) \
  X(cuMemPoolSetAccess, cuMemPoolSetAccess, (any_t q, any_t d, size_t n), q, d, n) \
  X(cuDeviceSetMemPool, cuDeviceSetMemPool, (int d, any_t q), d, q) \
  X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, (any_t c, unsigned f), c, f) \
  X(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, (any_t c), c) \
  X(cuStreamDestroy_v2, cuStreamDestroy, (stream_t s), s) \
  X(cuStreamDestroy, cuStreamDestroy, (stream_t s), s) \
  X(cuStreamBeginCapture, cuStreamBeginCapture, (stream_t s), s, 0) \
  X(cuStreamBeginCapture_ptsz, cuStreamBeginCapture, (stream_t s), own(s), 0) \
  X(cuStreamBeginCapture_v2, cuStreamBeginCapture, (stream_t s, int m), s, m) \
  X(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture, (stream_t s, int m), own(s), m) \
  X(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, \
    (stream_t s, any_t g, any_t d, any_t e, size_t n, int m), s, g, d, e, n, m) \
  X(cuStreamBeginCaptureToGraph_ptsz, cuStreamBeginCaptureToGraph, \
    (stream_t s, any_t g, any_t d, any_t e, size_t n, int m), own(s), g, d, e, n, m) \
  X(cuStreamEndCapture, cuStreamEndCapture, (stream_t s, any_t g), s, g) \
  X(cuStreamEndCapture_ptsz, cuStreamEndCapture, (stream_t s, any_t g), own(s), g) \
  X(cuCtxDestroy_v2, cuCtxDestroy, (any_t c), c) \
  X(cuCtxDestroy, cuCtxDestroy, (any_t c), c) \
  X(cuGreenCtxDestroy, cuGreenCtxDestroy, (any_t c), c) \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (any_t c, int d), c, d) \
  X(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, (int d), d) \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, (int d), d) \
  X(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, (int d), d) \
  X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, (int d), d) \
  X(nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo, (any_t d, any_t m), d, m) \
  X(nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetMemoryInfo_v2, (any_t d, any_t m), d, m)

#define NUMBER(symbol, ...) at_##symbol,
enum { CALLS(NUMBER) COUNT };

/* The driver's own functions, from when a program has bound them; and the pool's, once its library is loaded. Each is written
 * once, or by several threads with the same value. */
static void *drivers[COUNT], *pools[COUNT];
static const char *library;
static int has_failed;

static void load(void);

/* Returns the pool's function of a call, or null if there is none: then the call is the driver's. */
static inline void *pool_of(int at) {
  if (__builtin_expect(!__atomic_load_n(&pools[at], __ATOMIC_ACQUIRE), 0)) load();
  return pools[at];
}

/* The functions have many types; as in C before prototypes, the caller passes the arguments as they are. */
typedef int (*call_t)();

#define WRAPPER(symbol, name, parameters, ...) \
  static int wrap_##symbol parameters { \
    void *pool = pool_of(at_##symbol), *driver = drivers[at_##symbol]; \
    return pool ? ((call_t)pool)(driver, __VA_ARGS__) : ((call_t)driver)(__VA_ARGS__); \
  }
CALLS(WRAPPER)

static const struct { const char *symbol, *pool; void *wrapper; } calls[COUNT] = {
#define ROW(symbol, name, ...) {#symbol, "weirpool_" #name, (void *)wrap_##symbol},
  CALLS(ROW)
};

static int starts(const char *text, const char *with) { return !strncmp(text, with, strlen(with)); }

static void say(const char *text) {
  ssize_t ignored = write(2, text, strlen(text));
  (void)ignored;
}

/* Loads the pool's library into the program's namespace, perhaps on several threads at once: the linker loads it once. */
static void load(void) {
  if (__atomic_load_n(&has_failed, __ATOMIC_RELAXED)) return;
  void *handle = dlmopen(LM_ID_BASE, library, RTLD_NOW | RTLD_LOCAL);
  void *found[COUNT];
  for (int at = 0; handle && at < COUNT; at++)
    if (!(found[at] = dlsym(handle, calls[at].pool))) handle = 0;
  for (int at = 0; handle && at < COUNT; at++) __atomic_store_n(&pools[at], found[at], __ATOMIC_RELEASE);
  if (!handle && !__atomic_exchange_n(&has_failed, 1, __ATOMIC_RELAXED)) {
    say("weirpool: the program runs without the pool: ");
    say(library);
    say(" cannot be loaded; build weirpool-preload for this system\n");
  }
}

/* Returns what the program gets for a symbol of the driver. */
static void *replaced(const char *symbol, void *driver) {
  for (int at = 0; at < COUNT; at++)
    if (!strcmp(symbol, calls[at].symbol)) {
      __atomic_store_n(&drivers[at], driver, __ATOMIC_RELEASE);
      return calls[at].wrapper;
    }
  return driver;
}

static void *replaced_address(const char *name, int version, int is_per_thread, void *driver);

static int (*get_address)(const char *, void **, int, uint64_t, void *);
static int (*get_address_ptsz)(const char *, void **, int, uint64_t, void *);
static int (*get_address_v1)(const char *, void **, int, uint64_t);
static int (*get_address_v1_ptsz)(const char *, void **, int, uint64_t);

/* CU_GET_PROC_ADDRESS_LEGACY_STREAM and CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */
enum { LEGACY = 1, PER_THREAD = 2 };

static int found(int result, const char *name, void **function, int version, uint64_t flags, int is_per_thread) {
  if (flags & (LEGACY | PER_THREAD)) is_per_thread = (flags & PER_THREAD) != 0;
  if (!result && name && function && *function) *function = replaced_address(name, version, is_per_thread, *function);
  return result;
}
static int wrap_get_address(const char *n, void **f, int v, uint64_t g, void *s) { return found(get_address(n, f, v, g, s), n, f, v, g, 0); }
static int wrap_get_address_ptsz(const char *n, void **f, int v, uint64_t g, void *s) { return found(get_address_ptsz(n, f, v, g, s), n, f, v, g, 1); }
static int wrap_get_address_v1(const char *n, void **f, int v, uint64_t g) { return found(get_address_v1(n, f, v, g), n, f, v, g, 0); }
static int wrap_get_address_v1_ptsz(const char *n, void **f, int v, uint64_t g) { return found(get_address_v1_ptsz(n, f, v, g), n, f, v, g, 1); }

static void *replaced_symbol(const char *symbol, void *driver) {
#define LOOKUP(text, wrapper, place) \
  if (!strcmp(symbol, text)) { place = driver; return (void *)wrapper; }
  LOOKUP("cuGetProcAddress_v2", wrap_get_address, get_address)
  LOOKUP("cuGetProcAddress_v2_ptsz", wrap_get_address_ptsz, get_address_ptsz)
  LOOKUP("cuGetProcAddress", wrap_get_address_v1, get_address_v1)
  LOOKUP("cuGetProcAddress_ptsz", wrap_get_address_v1_ptsz, get_address_v1_ptsz)
  return replaced(symbol, driver);
}

/* The functions whose second version takes another argument, or is another function, and the version of CUDA that has it
 * first. The second versions of all other functions are older than cuGetProcAddress' oldest callers. */
static const struct { const char *name; int since; } seconds[] = {
  {"cuGetProcAddress", 12000}, {"cuDevicePrimaryCtxRelease", 11000}, {"cuDevicePrimaryCtxReset", 11000},
  {"cuStreamBeginCapture", 10010}, {"cuStreamDestroy", 4000}, {"cuCtxDestroy", 4000},
};

/* cuGetProcAddress knows the functions by names without versions, and returns the newest one that the caller's version of
 * CUDA has. */
static void *replaced_address(const char *name, int version, int is_per_thread, void *driver) {
  static const char *const suffixes[2][4] = {{"_v2", ""}, {"_v2_ptsz", "_ptsz", "_v2", ""}};
  size_t length = strlen(name);
  char symbol[64];
  if (length + sizeof "_v2_ptsz" > sizeof symbol) return driver;
  memcpy(symbol, name, length);
  int is_first = 0;
  for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++)
    is_first |= version < seconds[i].since && !strcmp(name, seconds[i].name);
  for (int i = 0; i < 4 && suffixes[is_per_thread][i]; i++) {
    if (is_first && starts(suffixes[is_per_thread][i], "_v2")) continue;
    strcpy(symbol + length, suffixes[is_per_thread][i]);
    void *wrapper = replaced_symbol(symbol, driver);
    if (wrapper != driver) return wrapper;
  }
  return driver;
}

/* What an object is to this library. */
enum { PROGRAM, DRIVER, POOL };

static int kind_of(const struct link_map *map) {
  const char *slash = strrchr(map->l_name, '/'), *name = slash ? slash + 1 : map->l_name;
  if (starts(name, "libweirpool_preload.")) return POOL;
  return starts(name, "libcuda.so") || starts(name, "libnvidia-ml.so") ? DRIVER : PROGRAM;
}

#if defined(__x86_64__)
enum { GLOB_DAT = R_X86_64_GLOB_DAT, ABSOLUTE = R_X86_64_64 };
#else
enum { GLOB_DAT = R_AARCH64_GLOB_DAT, ABSOLUTE = R_AARCH64_ABS64 };
#endif

/* Returns whether an address lies in an object of the driver: a program may have functions of the same names. */
static int is_drivers(void *address) {
  Dl_info info;
  struct link_map *map = 0;
  return dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) && map && kind_of(map) == DRIVER;
}

/* Replaces the driver's functions in the addresses of an object that the linker has relocated. */
static void patch(const struct link_map *map) {
  const Elf64_Rela *row = 0;
  const Elf64_Sym *symbols = 0;
  const char *names = 0;
  size_t bytes = 0, page = sysconf(_SC_PAGESIZE);
  for (const Elf64_Dyn *entry = map->l_ld; entry && entry->d_tag != DT_NULL; entry++) switch (entry->d_tag) {
      case DT_RELA: row = (const Elf64_Rela *)entry->d_un.d_ptr; break;
      case DT_RELASZ: bytes = entry->d_un.d_val; break;
      case DT_SYMTAB: symbols = (const Elf64_Sym *)entry->d_un.d_ptr; break;
      case DT_STRTAB: names = (const char *)entry->d_un.d_ptr; break;
    }
  /* Of the kernel's own object the linker does not relocate the entries. */
  if (!row || !symbols || !names || (uintptr_t)row < map->l_addr) return;
  for (size_t i = 0; i < bytes / sizeof *row; i++) {
    unsigned type = ELF64_R_TYPE(row[i].r_info);
    const Elf64_Sym *symbol = &symbols[ELF64_R_SYM(row[i].r_info)];
    if ((type != GLOB_DAT && type != ABSOLUTE) || symbol->st_shndx != SHN_UNDEF) continue;
    void **place = (void **)(map->l_addr + row[i].r_offset), *driver = *place;
    const char *name = names + symbol->st_name;
    if (!driver || !(starts(name, "cu") || starts(name, "nvml")) || !is_drivers(driver)) continue;
    void *wrapper = replaced_symbol(name, driver);
    /* The page may be read-only since its addresses are known. It stays writable. */
    if (wrapper != driver && !mprotect((void *)((uintptr_t)place & -page), page, PROT_READ | PROT_WRITE)) *place = wrapper;
  }
}


/* The first object of the program's namespace: the program. */
static const struct link_map *program;

unsigned la_version(unsigned version) {
  library = getenv("WEIRPOOL_RUN_LIBRARY");
  /* Without its setting it is off: the linker then unloads this library. */
  return library && *library ? version : 0;
}

unsigned la_objopen(struct link_map *map, Lmid_t namespace, uintptr_t *cookie) {
  if (namespace != LM_ID_BASE) return 0;
  if (!program) program = map;
  *cookie = kind_of(map);
  return *cookie == POOL ? 0 : *cookie == DRIVER ? LA_FLG_BINDTO | LA_FLG_BINDFROM : LA_FLG_BINDFROM;
}

uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned number, uintptr_t *from, uintptr_t *to, unsigned *flags, const char *name) {
  (void)number, (void)flags;
  void *driver = (void *)symbol->st_value;
  if (*from != PROGRAM || *to != DRIVER) return symbol->st_value;
  return (uintptr_t)replaced_symbol(name, driver);
}

void la_preinit(uintptr_t *cookie) {
  (void)cookie;
  for (const struct link_map *map = program; map; map = map->l_next)
    if (kind_of(map) == PROGRAM) patch(map);
}
