// `weirpool.hpp` on the simulated device. With CCCL the class is a resource of `cuda::mr`, which the header asserts.
#include "weirpool.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);             \
      std::exit(1);                                                                    \
    }                                                                                  \
  } while (0)

static constexpr std::size_t MIB = std::size_t{1} << 20;

static_assert(std::is_copy_constructible_v<weirpool::memory_resource>);
static_assert(std::is_nothrow_move_constructible_v<weirpool::memory_resource>);

static weirpool_options simulated(std::uint64_t capacity) {
  weirpool_options options = WEIRPOOL_OPTIONS;
  options.device = WEIRPOOL_SIMULATED;
  options.capacity = capacity;
  return options;
}

static weirpool::stream_type make_stream(weirpool::memory_resource const& resource) {
  weirpool_stream stream = nullptr;
  weirpool::detail::check(weirpool_sim_stream(resource.get(), &stream));
#ifdef WEIRPOOL_HAS_CCCL
  return weirpool::stream_type{reinterpret_cast<cudaStream_t>(stream)};
#else
  return stream;
#endif
}

// A function as libraries have them: it takes whatever resource the application uses.
template <class Resource> static void library(Resource& resource, weirpool::stream_type stream) {
  std::vector<void*> blocks;
  for (std::size_t n = 1; n <= 8; ++n) blocks.push_back(resource.allocate(stream, n * 1000, 256));
  for (std::size_t n = 0; n < 8; ++n) {
    CHECK(blocks[n] != nullptr && reinterpret_cast<std::uintptr_t>(blocks[n]) % 256 == 0);
    for (std::size_t other = 0; other < n; ++other) CHECK(blocks[n] != blocks[other]);
  }
  for (std::size_t n = 1; n <= 8; ++n) resource.deallocate(stream, blocks[n - 1], n * 1000, 256);
}

int main() {
  weirpool::memory_resource resource{simulated(64 * MIB)};
  auto stream = make_stream(resource);
  library(resource, stream);
  auto copy = resource;
  CHECK(copy == resource && !(copy != resource));
  weirpool::memory_resource other{simulated(8 * MIB), std::chrono::milliseconds(5)};
  CHECK(other != resource);
  library(copy, stream);
  CHECK(resource.statistics().live == 0 && resource.statistics().allocations == 16);

  void* memory = resource.allocate_sync(MIB);
  CHECK(resource.statistics().live == 1);
  resource.deallocate_sync(memory, MIB);

  // It is full: a wait of 5 ms, and an exception that says so.
  auto on_other = make_stream(other);
  void* all = other.allocate(on_other, 8 * MIB);
  try {
    other.allocate(on_other, MIB);
    CHECK(false);
  } catch (std::bad_alloc const& error) {
    CHECK(dynamic_cast<weirpool::out_of_memory const&>(error).status() == WEIRPOOL_ERROR_TIMED_OUT);
    CHECK(std::strlen(error.what()) > 20);
  }
  try {
    other.allocate(on_other, 9 * MIB);
    CHECK(false);
  } catch (weirpool::out_of_memory const& error) {
    CHECK(error.status() == WEIRPOOL_ERROR_TOO_LARGE);
  }
  try {
    other.allocate(on_other, MIB, 3);
    CHECK(false);
  } catch (weirpool::error const& error) {
    CHECK(error.status() == WEIRPOOL_ERROR_INVALID_ARGUMENT);
  }
  other.deallocate(on_other, all, 8 * MIB);

  // Threads wait for each other.
  weirpool::memory_resource small{simulated(8 * MIB)};
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([small]() mutable {
      auto own = make_stream(small);
      for (int round = 0; round < 200; ++round) {
        void* block = small.allocate(own, 5 * MIB);
        small.deallocate(own, block, 5 * MIB);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(small.statistics().live == 0 && small.statistics().allocations == 800);

#ifdef WEIRPOOL_HAS_CCCL
#  if CCCL_VERSION < 3001000
  cuda::mr::async_resource_ref<cuda::mr::device_accessible> reference = resource;
  void* by_reference = reference.allocate_async(MIB, 256, stream);
  CHECK(resource.statistics().live == 1);
  reference.deallocate_async(by_reference, MIB, 256, stream);
#  else
  cuda::mr::resource_ref<cuda::mr::device_accessible> reference = resource;
  library(reference, stream);
#    if CCCL_VERSION >= 3002000
  cuda::mr::any_resource<cuda::mr::device_accessible> owner = resource;
  library(owner, stream);
#    endif
#  endif
  std::printf("CCCL %d: ", CCCL_VERSION);
#endif
  CHECK(resource.statistics().live == 0);
  std::puts("passed");
}
