/* weirpool: a stream-ordered GPU memory pool that waits for memory instead of failing. The interface for C.
 *
 *     weirpool_options options = WEIRPOOL_OPTIONS;
 *     options.capacity = (uint64_t)8 << 30;
 *     weirpool_pool *pool;
 *     weirpool_create(&options, &pool);
 *     void *memory;
 *     weirpool_allocate(pool, &memory, 64 << 20, 0, stream, WEIRPOOL_SECOND); // waits up to 1 s for memory
 *     kernel<<<blocks, threads, 0, stream>>>(memory);
 *     weirpool_free(pool, memory, stream);                                   // in the order of the stream
 *     weirpool_destroy(pool);
 *
 * Every function but weirpool_destroy may be called by any thread at any time. After an error, weirpool_last_error describes
 * it; nothing was allocated, freed or written then. No Rust panic leaves a function.
 */
#ifndef WEIRPOOL_H
#define WEIRPOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The result of a call. */
typedef int32_t weirpool_status;
#define WEIRPOOL_SUCCESS 0
#define WEIRPOOL_ERROR_INVALID_ARGUMENT 1 /* a null pointer, an alignment, a size of a struct, an option */
#define WEIRPOOL_ERROR_OUT_OF_MEMORY 2    /* there is no memory at the moment */
#define WEIRPOOL_ERROR_TIMED_OUT 3        /* there was none while the call waited */
#define WEIRPOOL_ERROR_TOO_LARGE 4        /* the request exceeds the capacity, and can never be met */
#define WEIRPOOL_ERROR_NOT_ALLOCATED 5    /* the address is not one that the pool gave out, or was freed already */
#define WEIRPOOL_ERROR_STREAM 6           /* the stream cannot be used with the pool */
#define WEIRPOOL_ERROR_DEVICE 7           /* the device or its driver failed, or is absent */
#define WEIRPOOL_ERROR_UNORDERED 8        /* the simulated device found a use of memory that nothing orders */
#define WEIRPOOL_ERROR_PANIC 9            /* a bug in weirpool; do not use the pool any more */

/* A pool. */
typedef struct weirpool_pool weirpool_pool;

/* A stream: a cudaStream_t or CUstream. A null pointer is the legacy default stream of the pool's device, whatever device is
 * current. A stream must exist during each call that is given it, and may be destroyed afterwards. The per-thread default
 * stream is refused. */
typedef void *weirpool_stream;

/* Kinds of memory. */
#define WEIRPOOL_MEMORY_VIRTUAL 0 /* of the device; free pieces are mapped together */
#define WEIRPOOL_MEMORY_DEVICE 1  /* of the device, by cuMemAlloc: can be exported by cudaIpcGetMemHandle */
#define WEIRPOOL_MEMORY_PINNED 2  /* page-locked, of the host */
#define WEIRPOOL_MEMORY_MANAGED 3 /* moves between host and device */

/* The simulated device instead of a GPU: tests need neither a GPU nor a driver. */
#define WEIRPOOL_SIMULATED (-1)

/* Streams are never destroyed while the pool exists. A free then records no event of its own, which saves a call of the
 * driver, and a request that waits may be granted memory behind a wait on the device. */
#define WEIRPOOL_PERMANENT_STREAMS 1u

/* The settings of a pool. Zero in a field is its default. */
typedef struct weirpool_options {
  size_t size;                /* sizeof(weirpool_options), so that later versions can add fields */
  int32_t device;             /* the number of the device, or WEIRPOOL_SIMULATED */
  uint32_t memory;            /* WEIRPOOL_MEMORY_... */
  uint64_t capacity;          /* the most bytes that the pool takes from the device; 0: all of its memory */
  uint64_t release_threshold; /* free bytes above this go back to the device; 0: the pool's default */
  const char *name;           /* a name for reports, in UTF-8, that no other pool has; or NULL */
  uint32_t flags;             /* WEIRPOOL_PERMANENT_STREAMS, or 0 */
  uint32_t reserved;          /* 0 */
} weirpool_options;

/* The defaults: WEIRPOOL_OPTIONS initializes a variable. */
#define WEIRPOOL_OPTIONS {sizeof(weirpool_options), 0, WEIRPOOL_MEMORY_VIRTUAL, 0, 0, NULL, 0, 0}

/* How long a call waits, in nanoseconds. */
#define WEIRPOOL_NO_WAIT UINT64_C(0)
#define WEIRPOOL_SECOND UINT64_C(1000000000)
#define WEIRPOOL_NO_LIMIT UINT64_MAX

/* Figures of a pool, in bytes where nothing else is said. */
typedef struct weirpool_statistics {
  size_t size; /* sizeof(weirpool_statistics), set by the caller */
  uint64_t capacity;
  uint64_t reserved;      /* taken from the device */
  uint64_t reserved_high; /* the most so far */
  uint64_t used;          /* in live allocations */
  uint64_t used_high;
  uint64_t pending;      /* freed, behind work that is not known to be complete */
  uint64_t live;         /* number of live allocations */
  uint64_t allocations;  /* number so far */
  uint64_t waiting;      /* number of calls that wait now */
  uint64_t served;       /* number of calls that waited and got memory */
  uint64_t timed_out;    /* number of calls that waited in vain */
  uint64_t device_waits; /* number of waits on the device that the pool inserted */
} weirpool_statistics;

/* Creates a pool. `options` may be NULL: the first GPU, and all of its memory. */
weirpool_status weirpool_create(const weirpool_options *options, weirpool_pool **pool);

/* Ends a pool, once no other call uses it and no call will. NULL does nothing. Memory that was not freed stays allocated for
 * ever, because device work may use it, and keeps the pool. Free memory goes back to the device; all of it, once no work can
 * touch it any more, if everything was freed. */
void weirpool_destroy(weirpool_pool *pool);

/* Allocates `bytes` bytes for use in the order of `stream`, and waits up to `wait` nanoseconds for memory in the pool's fair
 * queue. Zero bytes are valid. `alignment` is a power of two up to the device's step
 * (2 MiB on NVIDIA GPUs), or 0: every allocation is aligned to 512 bytes. A thread that waits
 * holds up no other call, but must not hold a lock that threads need before they free. */
weirpool_status weirpool_allocate(weirpool_pool *pool, void **memory, size_t bytes, size_t alignment, weirpool_stream stream,
                                  uint64_t wait);

/* Frees memory in the order of `stream`: it is reused once `stream` has passed the work submitted to it so far. Work on it by
 * other streams must be ordered before that, as cudaFreeAsync requires. NULL does nothing. */
weirpool_status weirpool_free(weirpool_pool *pool, void *memory, weirpool_stream stream);

/* Declares uses of memory on a further stream, up to the free. They need not be ordered before it: the memory is reused after both.
 * The stream must exist until the memory is freed. */
weirpool_status weirpool_record_use(weirpool_pool *pool, void *memory, weirpool_stream stream);

/* Allocates memory that any stream, or the host where it sees the memory, may use at once. Otherwise as weirpool_allocate; after
 * that, it waits for the work that used the memory before, however long that takes. */
weirpool_status weirpool_allocate_sync(weirpool_pool *pool, void **memory, size_t bytes, size_t alignment, uint64_t wait);

/* Frees memory that no work uses any more. NULL does nothing. */
weirpool_status weirpool_free_sync(weirpool_pool *pool, void *memory);

/* Gives free memory back to the device, until at most `keep` bytes are reserved. Waits for no work. */
weirpool_status weirpool_trim(weirpool_pool *pool, uint64_t keep);

/* Writes the figures of a pool, as many as `statistics->size` has room for. */
weirpool_status weirpool_get_statistics(weirpool_pool *pool, weirpool_statistics *statistics);

/* Returns the description of the last error of a call by this thread, in UTF-8; empty if there was none. It is valid until the next
 * error of this thread. */
const char *weirpool_last_error(void);

/* For a pool of the simulated device, whose work takes real time: makes a stream, which lives as long as the pool. */
weirpool_status weirpool_sim_stream(weirpool_pool *pool, weirpool_stream *stream);

/* Submits work that stands for a kernel: it takes so many nanoseconds and writes these bytes. If nothing orders it after the
 * other uses of the same bytes, it is submitted nonetheless, and the call returns WEIRPOOL_ERROR_UNORDERED with a description of
 * both. Of threads that launch at once, another one may be told. */
weirpool_status weirpool_sim_launch(weirpool_pool *pool, weirpool_stream stream, uint64_t nanoseconds, void *memory, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
