// PyTorch's caching allocator, where TORCH is the folder of the Python package:
//
//   nvcc -O2 -std=c++20 -arch=sm_90 torch.cu -o torch -ITORCH/include -ITORCH/include/torch/csrc/api/include \
//     -LTORCH/lib -lc10_cuda -lc10 -Xlinker -rpath=TORCH/lib
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include "workloads.hpp"
namespace allocator = c10::cuda::CUDACachingAllocator;
int main() {
  check(cudaSetDevice(0));
  check(cudaFree(0));
  allocator::init(1);
  Peer p{"pytorch caching", [](size_t n, cudaStream_t s) { return allocator::raw_alloc_with_stream(n, s); },
         [](void* q, size_t, cudaStream_t) { allocator::raw_delete(q); },
         [] { return (size_t)allocator::getDeviceStats(0).reserved_bytes[0].peak; }};
  run_all(p);
  return 0;
}
