/* weirpool for C++: a memory resource for `cuda::mr` (CCCL), and without CCCL a class with the same functions. C++17, this header
 * alone; link with weirpool_c.
 *
 *     weirpool::memory_resource resource{options};
 *     void* memory = resource.allocate(stream, 64 << 20);   // waits for memory instead of failing
 *     resource.deallocate(stream, memory, 64 << 20);        // in the order of the stream
 */
#ifndef WEIRPOOL_HPP
#define WEIRPOOL_HPP

#include "weirpool.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#if __has_include(<cuda/memory_resource>)
#  ifndef LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#    define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE // CCCL 3.0 demands it
#  endif
#  include <cuda/memory_resource>
#  include <cuda/stream_ref>
#  include <cuda/version>
#  define WEIRPOOL_HAS_CCCL 1
#endif

namespace weirpool {

/// A call failed for another reason than a lack of memory.
class error : public std::runtime_error {
public:
  error(weirpool_status status, std::string const& what) : std::runtime_error(what), status_(status) {}
  weirpool_status status() const noexcept { return status_; }

private:
  weirpool_status status_;
};

/// There was no memory, although the call waited; or the request can never be met.
class out_of_memory : public std::bad_alloc {
public:
  out_of_memory(weirpool_status status, std::string const& what) : error_(status, what) {}
  char const* what() const noexcept override { return error_.what(); }
  weirpool_status status() const noexcept { return error_.status(); }

private:
  error error_; // its text is shared by copies, which throw nothing
};

#ifdef WEIRPOOL_HAS_CCCL
using stream_type = ::cuda::stream_ref;
#else
using stream_type = weirpool_stream;
#endif

namespace detail {

inline void check(weirpool_status status) {
  switch (status) {
  case WEIRPOOL_SUCCESS: return;
  case WEIRPOOL_ERROR_OUT_OF_MEMORY:
  case WEIRPOOL_ERROR_TIMED_OUT:
  case WEIRPOOL_ERROR_TOO_LARGE: throw out_of_memory(status, weirpool_last_error());
  default: throw error(status, weirpool_last_error());
  }
}

/// A free that fails frees nothing, and must not throw: it is reported.
inline void report(weirpool_status status) noexcept {
  if (status != WEIRPOOL_SUCCESS) std::fprintf(stderr, "weirpool: memory was not freed: %s\n", weirpool_last_error());
}

inline weirpool_stream raw(stream_type stream) noexcept {
#ifdef WEIRPOOL_HAS_CCCL
  return reinterpret_cast<weirpool_stream>(stream.get());
#else
  return stream;
#endif
}

} // namespace detail

/// A pool as a resource of `cuda::mr`. Copies are the same pool, which ends with the last of them, and are equal.
class memory_resource {
public:
  static constexpr std::size_t default_alignment = 256;
  /// How long an allocation waits for memory before it throws `out_of_memory`.
  static constexpr std::chrono::nanoseconds default_wait = std::chrono::seconds(5);

  /// Throws `error` if there is no such device, or an option is invalid.
  explicit memory_resource(weirpool_options const& options = WEIRPOOL_OPTIONS, std::chrono::nanoseconds wait = default_wait)
      : wait_(wait.count() < 0 ? 0 : static_cast<std::uint64_t>(wait.count())) {
    weirpool_pool* pool = nullptr;
    detail::check(weirpool_create(&options, &pool));
    pool_.reset(pool, weirpool_destroy);
  }

  /// Returns the pool, for functions of `weirpool.h`.
  weirpool_pool* get() const noexcept { return pool_.get(); }

  /// Allocates in the order of a stream. Throws `out_of_memory`, or `error` if the stream or the device does not do.
  void* allocate(stream_type stream, std::size_t bytes, std::size_t alignment = default_alignment) {
    void* memory = nullptr;
    detail::check(weirpool_allocate(get(), &memory, bytes, alignment, detail::raw(stream), wait_));
    return memory;
  }

  /// Frees in the order of a stream.
  void deallocate(stream_type stream, void* memory, std::size_t, std::size_t = default_alignment) noexcept {
    detail::report(weirpool_free(get(), memory, detail::raw(stream)));
  }

  /// Allocates memory that any stream may use at once.
  void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    void* memory = nullptr;
    detail::check(weirpool_allocate_sync(get(), &memory, bytes, alignment, wait_));
    return memory;
  }

  /// Frees memory that no work uses any more.
  void deallocate_sync(void* memory, std::size_t, std::size_t = default_alignment) noexcept {
    detail::report(weirpool_free_sync(get(), memory));
  }

  /// Returns the figures of the pool.
  weirpool_statistics statistics() const {
    weirpool_statistics figures = {};
    figures.size = sizeof figures;
    detail::check(weirpool_get_statistics(get(), &figures));
    return figures;
  }

  friend bool operator==(memory_resource const& one, memory_resource const& other) noexcept { return one.pool_ == other.pool_; }
  friend bool operator!=(memory_resource const& one, memory_resource const& other) noexcept { return one.pool_ != other.pool_; }

#ifdef WEIRPOOL_HAS_CCCL
  friend constexpr void get_property(memory_resource const&, ::cuda::mr::device_accessible) noexcept {}
#  if CCCL_VERSION < 3001000
  // The names of CCCL 3.0.
  void* allocate_async(std::size_t bytes, std::size_t alignment, stream_type stream) { return allocate(stream, bytes, alignment); }
  void* allocate_async(std::size_t bytes, stream_type stream) { return allocate(stream, bytes); }
  void deallocate_async(void* memory, std::size_t bytes, std::size_t alignment, stream_type stream) noexcept {
    deallocate(stream, memory, bytes, alignment);
  }
  void deallocate_async(void* memory, std::size_t bytes, stream_type stream) noexcept { deallocate(stream, memory, bytes); }
  void* allocate(std::size_t bytes, std::size_t alignment = default_alignment) { return allocate_sync(bytes, alignment); }
  void deallocate(void* memory, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    deallocate_sync(memory, bytes, alignment);
  }
#  endif
#endif

private:
  std::shared_ptr<weirpool_pool> pool_;
  std::uint64_t wait_;
};

#ifdef WEIRPOOL_HAS_CCCL
#  if CCCL_VERSION < 3001000
static_assert(::cuda::mr::async_resource_with<memory_resource, ::cuda::mr::device_accessible>);
#  else
static_assert(::cuda::mr::resource_with<memory_resource, ::cuda::mr::device_accessible>);
#  endif
#endif

} // namespace weirpool

#endif
