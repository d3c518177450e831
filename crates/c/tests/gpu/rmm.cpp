// Tests of RMM, as they are, over a pool: its suites for any resource, and those of its containers, whose current resource it is.
#include "mr/cccl_mr_ref_test_allocation.hpp"
#include "mr/cccl_mr_ref_test_basic.hpp"
#include "mr/cccl_mr_ref_test_mt.hpp"

#include <rmm/error.hpp>
#include <rmm/mr/per_device_resource.hpp>

#include "weirpool.hpp"

namespace {

// RMM's tests expect RMM's exception.
struct resource : weirpool::memory_resource {
  using weirpool::memory_resource::memory_resource;

  template <class Allocate> void* as_rmm(Allocate allocate) {
    try {
      return allocate();
    } catch (weirpool::out_of_memory const& error) {
      throw rmm::out_of_memory(std::string{"out_of_memory: "} + error.what());
    }
  }
  void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = default_alignment) {
    return as_rmm([&] { return memory_resource::allocate(stream, bytes, alignment); });
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    return as_rmm([&] { return memory_resource::allocate_sync(bytes, alignment); });
  }
};

weirpool_options options() {
  weirpool_options options = WEIRPOOL_OPTIONS;
  options.capacity = std::uint64_t{8} << 30;
  return options;
}

resource& pool() {
  static resource pool{options()};
  return pool;
}

} // namespace

namespace rmm::test {

struct WeirpoolFixture : public ::testing::Test {
  resource mr{pool()};
  rmm::device_async_resource_ref ref{mr};
  rmm::cuda_stream stream{};
};

INSTANTIATE_TYPED_TEST_SUITE_P(Weirpool, CcclMrRefTest, WeirpoolFixture);
INSTANTIATE_TYPED_TEST_SUITE_P(Weirpool, CcclMrRefAllocationTest, WeirpoolFixture);
INSTANTIATE_TYPED_TEST_SUITE_P(Weirpool, CcclMrRefTestMT, WeirpoolFixture);

} // namespace rmm::test

int main(int count, char** arguments) {
  ::testing::InitGoogleTest(&count, arguments);
  auto const earlier = pool().statistics().allocations;
  rmm::mr::set_current_device_resource(pool());
  int const result = RUN_ALL_TESTS();
  rmm::mr::reset_current_device_resource();
  auto const figures = pool().statistics();
  std::printf("%llu allocations of the pool, %llu live\n", (unsigned long long)(figures.allocations - earlier),
              (unsigned long long)figures.live);
  return result != 0 || figures.live != 0;
}
