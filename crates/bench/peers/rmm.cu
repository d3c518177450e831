// RMM's pool and arena. It takes the headers and libraries of the PyPI wheels librmm-cu13 and rapids-logger,
// unpacked into `un`:
//
//   nvcc -O2 -std=c++20 -arch=sm_90 --expt-relaxed-constexpr --extended-lambda rmm.cu -o rmm \
//     -Iun/librmm/include -Iun/librmm/include/rapids -Iun/rapids_logger/include \
//     -Lun/librmm/lib64 -lrmm -Lun/rapids_logger/lib64 -lrapids_logger
#include <rmm/cuda_stream_view.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "workloads.hpp"
template <class MR>
Peer peer(const char* name, MR& mr) {
  return Peer{
      name,
      [&mr](size_t n, cudaStream_t s) { return mr.allocate(rmm::cuda_stream_view{s}, n, 256); },
      [&mr](void* q, size_t n, cudaStream_t s) { mr.deallocate(rmm::cuda_stream_view{s}, q, n, 256); },
      {}};
}
int main() {
  check(cudaSetDevice(0));
  check(cudaFree(0));
  rmm::mr::cuda_memory_resource up;
  {
    rmm::mr::pool_memory_resource mr{up, size_t(8) << 30};
    auto p = peer("rmm pool", mr);
    run_all(p);
  }
  {
    rmm::mr::arena_memory_resource mr{up, size_t(8) << 30};
    auto p = peer("rmm arena", mr);
    run_all(p);
  }
  return 0;
}
