// Switches between PyTorch's own allocator and the pluggable one while a program runs, for by_turns.py. Each tensor is
// freed by the allocator that it came from: the function that frees it is stored with it.

#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

namespace caching = c10::cuda::CUDACachingAllocator;

static caching::CUDAAllocator* own;
static caching::CUDAAllocator* pluggable;

// Call this before the pluggable allocator is installed.
extern "C" __attribute__((visibility("default"))) void find_own() {
  own = caching::allocator.load();
}

// Call this after that, and after CUDA is initialized.
extern "C" __attribute__((visibility("default"))) void initialize_own(int devices) {
  pluggable = caching::allocator.load();
  own->init(devices);
}

extern "C" __attribute__((visibility("default"))) void use_own(bool is_own) {
  caching::allocator.store(is_own ? own : pluggable);
}
