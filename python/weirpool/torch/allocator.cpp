// PyTorch's trees of CUDA graphs, on memory from weirpool.
//
// `torch.compile(mode="reduce-overhead")` records trees of graphs that share one pool (torch/_inductor/cudagraph_trees.py).
// They take checkpoints of the pool and restore them, for which `CUDAPluggableAllocator` has no hooks: its functions only
// throw. All of them are virtual, so the class here overrides those that the trees call, with functions of the library.
//
// weirpool_torch.py compiles this for the version of PyTorch that is installed, and loads it. No Python is called here.

#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using c10::cuda::MempoolId_t;
using Pluggable = torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

// These match the types in checkpoints.rs and graphs.rs.
struct MemoryRange {
  void* address;
  size_t bytes;
};
struct PoolName {
  uint64_t first, second;
};

PoolName name_of(MempoolId_t id) {
  return {id.first, id.second};
}

// The functions of the library.
struct Library {
  void* (*alloc)(size_t, int, cudaStream_t);
  void* (*alloc_in_pool)(size_t, int, cudaStream_t, PoolName);
  void (*free)(void*, size_t, int, cudaStream_t);
  void (*record_stream)(void*, cudaStream_t);
  void (*begin)(int, PoolName, const void*);
  void (*end)(int, PoolName);
  void (*retain)(int, PoolName);
  void (*release)(int, PoolName);
  size_t (*uses)(int, PoolName);
  void* (*checkpoint)(int, PoolName);
  void (*checkpoint_free)(void*);
  size_t (*checkpoint_ranges)(const void*, MemoryRange*, size_t);
  size_t (*allocated)(int, PoolName, MemoryRange*, size_t);
  void (*restore)(int, PoolName, const void*, cudaStream_t);

  explicit Library(const char* path) {
    void* library = dlopen(path, RTLD_NOW);
    TORCH_CHECK(library, dlerror());
    auto find = [&](auto& function, const char* name) {
      void* symbol = dlsym(library, name);
      TORCH_CHECK(symbol, path, " has no function ", name, "; build it again");
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    };
    find(alloc, "weirpool_alloc_or_throw");
    find(alloc_in_pool, "weirpool_alloc_in_pool_or_throw");
    find(free, "weirpool_free");
    find(record_stream, "weirpool_record_stream");
    find(begin, "weirpool_begin_allocate_to_pool");
    find(end, "weirpool_end_allocate_to_pool");
    find(retain, "weirpool_retain_pool");
    find(release, "weirpool_release_pool");
    find(uses, "weirpool_pool_uses");
    find(checkpoint, "weirpool_checkpoint_or_throw");
    find(checkpoint_free, "weirpool_checkpoint_free");
    find(checkpoint_ranges, "weirpool_checkpoint_ranges");
    find(allocated, "weirpool_allocated_in_pool");
    find(restore, "weirpool_restore_or_throw");
  }
};

// Calls a function that writes ranges until there is room for all of them.
template <class Write>
std::vector<MemoryRange> ranges_of(Write write) {
  std::vector<MemoryRange> ranges;
  size_t count = write(nullptr, 0);
  while (count > ranges.size()) {
    ranges.resize(count);
    count = write(ranges.data(), ranges.size());
  }
  ranges.resize(count);
  return ranges;
}

// The pools that allocations go to, of captures and outside captures. PyTorch passes a function that recognises the
// streams whose allocations go to the pool.
class Routes {
 public:
  void begin(int device, MempoolId_t id, std::function<bool(cudaStream_t)> filter) {
    std::lock_guard<std::mutex> guard(lock_);
    routes_.push_back({device, id, std::move(filter)});
    count_.store(routes_.size(), std::memory_order_release);
  }

  void end(int device, MempoolId_t id) {
    std::lock_guard<std::mutex> guard(lock_);
    auto is_ours = [&](const Route& route) { return route.device == device && route.id == id; };
    auto last = std::find_if(routes_.rbegin(), routes_.rend(), is_ours);
    if (last != routes_.rend()) {
      routes_.erase(std::next(last).base());
    }
    count_.store(routes_.size(), std::memory_order_release);
  }

  // Returns whether the stream's allocations go to a pool, and its name.
  std::pair<bool, MempoolId_t> find(int device, cudaStream_t stream) {
    if (count_.load(std::memory_order_acquire) == 0) {
      return {false, {0, 0}};
    }
    std::lock_guard<std::mutex> guard(lock_);
    // The innermost route comes first.
    for (auto route = routes_.rbegin(); route != routes_.rend(); ++route) {
      if (route->device == device && route->filter(stream)) {
        return {true, route->id};
      }
    }
    return {false, {0, 0}};
  }

 private:
  struct Route {
    int device;
    MempoolId_t id;
    std::function<bool(cudaStream_t)> filter;
  };
  std::mutex lock_;
  std::vector<Route> routes_;
  std::atomic<size_t> count_{0};
};

Library* library = nullptr;
Routes routes;
// The address that the next allocation of this thread returns, which is allocated already.
thread_local void* restored = nullptr;

void* allocate_routed(size_t bytes, int device, cudaStream_t stream) {
  if (restored) {
    return std::exchange(restored, nullptr);
  }
  auto [is_routed, id] = routes.find(device, stream);
  return is_routed ? library->alloc_in_pool(bytes, device, stream, name_of(id))
                   : library->alloc(bytes, device, stream);
}

// A block of a checkpoint, as PyTorch allocated it.
struct Known {
  size_t bytes;
  cudaStream_t stream;
};

struct Checkpoint : caching::AllocatorState {
  c10::DeviceIndex device;
  MempoolId_t id;
  void* checkpoint;
  std::unordered_map<void*, Known> known;

  Checkpoint(c10::DeviceIndex device, MempoolId_t id)
      : device(device), id(id), checkpoint(library->checkpoint(device, name_of(id))) {}
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  ~Checkpoint() override {
    library->checkpoint_free(checkpoint);
  }

  std::vector<MemoryRange> ranges() const {
    return ranges_of([&](MemoryRange* ranges, size_t room) {
      return library->checkpoint_ranges(checkpoint, ranges, room);
    });
  }
};

class Allocator : public Pluggable {
 public:
  Allocator() : Pluggable(allocate_routed, library->free) {
    set_record_stream_fn(library->record_stream);
  }

  void beginAllocateToPool(
      c10::DeviceIndex device,
      MempoolId_t id,
      std::function<bool(cudaStream_t)> filter) override {
    library->begin(device, name_of(id), &filter);
    routes.begin(device, id, std::move(filter));
    note(device, id);
  }

  void endAllocateToPool(c10::DeviceIndex device, MempoolId_t id) override {
    routes.end(device, id);
    library->end(device, name_of(id));
  }

  void releasePool(c10::DeviceIndex device, MempoolId_t id) override {
    library->release(device, name_of(id));
  }

  // For `torch.cuda.MemPool`.
  void createOrIncrefPool(
      c10::DeviceIndex device,
      MempoolId_t id,
      std::shared_ptr<caching::CUDAAllocator> other) override {
    TORCH_CHECK(!other, "a pool with an allocator of its own is not supported on memory from weirpool");
    library->retain(device, name_of(id));
    note(device, id);
  }

  // `torch.cuda.MemPool` sets both, also to false at its end. No request takes memory of a pool of graphs when memory is short.
  void setUseOnOOM(c10::DeviceIndex, MempoolId_t, bool use_on_oom) override {
    TORCH_CHECK(!use_on_oom, "a pool with use_on_oom is not supported on memory from weirpool");
  }

  void setNoSplit(c10::DeviceIndex, MempoolId_t) override {
    TORCH_CHECK(false, "a pool with no_split is not supported on memory from weirpool");
  }

  int getPoolUseCount(c10::DeviceIndex device, MempoolId_t id) override {
    return static_cast<int>(library->uses(device, name_of(id)));
  }

  bool checkPoolLiveAllocations(
      c10::DeviceIndex device,
      MempoolId_t id,
      const std::unordered_set<void*>& expected) override {
    auto live = allocated(device, id);
    auto is_expected = [&](const MemoryRange& range) { return expected.count(range.address) > 0; };
    return live.size() == expected.size() && std::all_of(live.begin(), live.end(), is_expected);
  }

  std::shared_ptr<caching::AllocatorState> getCheckpointState(c10::DeviceIndex device, MempoolId_t id) override {
    auto state = std::make_shared<Checkpoint>(device, id);
    auto ranges = state->ranges();
    std::lock_guard<std::mutex> guard(allocator_mutex_);
    for (const auto& range : ranges) {
      auto found = allocation_metadata_.find(range.address);
      if (found != allocation_metadata_.end()) {
        state->known[range.address] = {found->second.size, found->second.stream};
      }
    }
    return state;
  }

  caching::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device,
      std::shared_ptr<caching::AllocatorState> state) override {
    auto* to = dynamic_cast<Checkpoint*>(state.get());
    TORCH_CHECK(to && to->device == device, "the state is not a checkpoint of a pool of device ", int(device));
    caching::CheckpointDelta delta;
    {
      std::lock_guard<std::mutex> guard(allocator_mutex_);
      for (const auto& range : allocated(device, to->id)) {
        if (allocation_metadata_.erase(range.address)) {
          delta.ptrs_freed.push_back(range.address);
        }
      }
    }
    auto ranges = to->ranges();
    cudaStream_t stream = to->known.empty() ? nullptr : to->known.begin()->second.stream;
    library->restore(device, name_of(to->id), to->checkpoint, stream);
    for (const auto& range : ranges) {
      auto found = to->known.find(range.address);
      auto known = found == to->known.end() ? Known{range.bytes, stream} : found->second;
      // Only PyTorch's `malloc` makes its own record of the allocation.
      restored = range.address;
      this->malloc(known.bytes, device, known.stream);
      delta.dataptrs_allocd.emplace_back(
          range.address, range.address, raw_deleter(), c10::Device(c10::DeviceType::CUDA, device));
    }
    return delta;
  }

  // Returns only the blocks of pools of graphs, each as its own segment, for the message of a check that fails.
  caching::SnapshotInfo snapshot(MempoolId_t only, bool /*include_traces*/) override {
    caching::SnapshotInfo info{};
    std::set<std::pair<int, MempoolId_t>> pools;
    {
      std::lock_guard<std::mutex> guard(pools_mutex_);
      pools = pools_;
    }
    for (const auto& [device, id] : pools) {
      if (only != MempoolId_t{0, 0} && only != id) {
        continue;
      }
      for (const auto& range : allocated(device, id)) {
        c10::CachingDeviceAllocator::BlockInfo block{};
        block.size = block.requested_size = range.bytes;
        block.allocated = block.active = true;
        c10::CachingDeviceAllocator::SegmentInfo segment{};
        segment.device = static_cast<c10::DeviceIndex>(device);
        segment.address = reinterpret_cast<size_t>(range.address);
        segment.total_size = segment.requested_size = range.bytes;
        segment.allocated_size = segment.active_size = range.bytes;
        segment.owner_private_pool_id = id;
        segment.blocks.push_back(std::move(block));
        info.segments.push_back(std::move(segment));
      }
    }
    return info;
  }

  bool isHistoryEnabled() override {
    return false;
  }

 private:
  std::vector<MemoryRange> allocated(int device, MempoolId_t id) {
    return ranges_of([&](MemoryRange* ranges, size_t room) {
      return library->allocated(device, name_of(id), ranges, room);
    });
  }

  void note(int device, MempoolId_t id) {
    std::lock_guard<std::mutex> guard(pools_mutex_);
    pools_.emplace(device, id);
  }

  std::mutex pools_mutex_;
  std::set<std::pair<int, MempoolId_t>> pools_;
};

} // namespace

// Makes PyTorch allocate from the library at `path` until the process ends. Returns null, or the reason on failure.
extern "C" const char* weirpool_install(const char* path) {
  static std::string reason;
  try {
    library = new Library(path);
    auto allocator = std::make_shared<Allocator>();
    allocator->init(0);
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(allocator);
    return nullptr;
  } catch (const std::exception& error) {
    reason = error.what();
    return reason.c_str();
  }
}
