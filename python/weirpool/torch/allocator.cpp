// PyTorch's class of allocators, on memory from weirpool.
//
// The class here derives `CUDAAllocator` and overrides every virtual function of the versions of PyTorch that are named below. `_build.py` compiles
// it for the installed version. The memory comes from functions in C of the Rust library (python/src/torch.rs and its neighbours). This file
// adds what only C++ can give: PyTorch's own types, its figures, its history, its exceptions. No Python is called here, except by the
// function that PyTorch passes to record the caller's stack.
//
// Locks are held for the tables of this file only, and never during a call of the library or of the device.

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/ApproximateClock.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>
#include <torch/version.h>

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#define TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::cuda::MempoolId_t;
using c10::CachingDeviceAllocator::DeviceStats;
#if TORCH_AT_LEAST(2, 11)
using c10::CachingDeviceAllocator::AnnotationEntry;
#else
using caching::AnnotationEntry;
#endif
using caching::BlockInfo;
using caching::CUDAAllocator;
using caching::RecordContext;
using caching::SegmentInfo;
using caching::TraceEntry;
using Context = std::shared_ptr<c10::GatheredContext>;

constexpr MempoolId_t NO_POOL = {0, 0};
// PyTorch counts requests in steps of this size, and calls those up to the second size small.
constexpr size_t STEP = 512;
constexpr size_t SMALL = 1 << 20;
// A larger request is an error in the program.
constexpr size_t LARGEST = size_t{1} << 60;

// ---- the library in Rust -------------------------------------------------------------------------

// These types match those of the library.
struct MemoryRange {
  void* address;
  size_t bytes;
};
struct PoolName {
  uint64_t first, second;
};
enum RefusalKind : int { OUT_OF_MEMORY = 1, UNSUPPORTED = 2, OTHER = 3 };
// Written on failure only.
struct Refusal {
  int kind = 0;
  char text[1020];
};
struct Figures {
  uint64_t reserved, peak_reserved, released;
  uint64_t chunks, chunks_created;
  uint64_t free, free_blocks, releasable, releasable_blocks;
  uint64_t waits, capacity;
};
struct Opened {
  void* address;
  uint64_t number;
};
using Visit = void (*)(void* to, uint64_t address, uint64_t bytes, int state);
enum BlockState : int { FREE = 0, PENDING = 1, RESERVED = 2, USED = 3 };

PoolName name_of(MempoolId_t id) {
  return {id.first, id.second};
}

struct Library {
  void* (*alloc)(size_t, int, cudaStream_t, const PoolName*, Refusal*);
  void (*free)(void*, size_t, int, cudaStream_t);
  void (*record_stream)(void*, cudaStream_t);
  int (*is_child)();
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
  int (*figures)(int, Figures*);
  void (*reset_peaks)(int);
  uint64_t (*largest)(int);
  int (*trim)(int, Refusal*);
  int (*limit)(int, uint64_t, Refusal*);
  int (*enable_access)(int, int, Refusal*);
  void (*walk)(int, Visit, void*);
  int (*share)(int, void*, size_t, char*, size_t, uint64_t*, Refusal*);
  void (*unshare)(void*);
  int (*open_shared)(int, const char*, size_t, Opened*, Refusal*);
  void (*close_shared)(uint64_t);

  explicit Library(const char* path) {
    void* library = dlopen(path, RTLD_NOW);
    TORCH_CHECK(library, dlerror());
    auto find = [&](auto& function, const char* name) {
      void* symbol = dlsym(library, name);
      TORCH_CHECK(symbol, path, " has no function ", name, "; install weirpool again");
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    };
    find(alloc, "weirpool_torch_alloc");
    find(free, "weirpool_free");
    find(record_stream, "weirpool_record_stream");
    find(is_child, "weirpool_is_child");
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
    find(figures, "weirpool_torch_figures");
    find(reset_peaks, "weirpool_torch_reset_peaks");
    find(largest, "weirpool_torch_largest");
    find(trim, "weirpool_torch_trim");
    find(limit, "weirpool_torch_limit");
    find(enable_access, "weirpool_torch_enable_access");
    find(walk, "weirpool_torch_walk");
    find(share, "weirpool_torch_share");
    find(unshare, "weirpool_torch_unshare");
    find(open_shared, "weirpool_torch_open_shared");
    find(close_shared, "weirpool_torch_close_shared");
  }
};

Library* library = nullptr;

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

void check(int is_refused, const Refusal& refusal) {
  TORCH_CHECK(!is_refused, "weirpool: ", refusal.text);
}

// ---- tables --------------------------------------------------------------------------------------

// The pools that allocations go to, of captures and outside captures. PyTorch passes a function that recognises the
// streams whose allocations go to the pool.
class Routes {
 public:
  void begin(int device, MempoolId_t id, std::function<bool(cudaStream_t)> filter) {
    std::lock_guard<std::mutex> guard(lock_);
    routes_.push_back({device, id, std::make_shared<std::function<bool(cudaStream_t)>>(std::move(filter))});
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

  // Returns the pool that the stream's allocations go to, or `NO_POOL`.
  MempoolId_t find(int device, cudaStream_t stream) {
    if (count_.load(std::memory_order_acquire) == 0) {
      return NO_POOL;
    }
    std::vector<Route> routes;
    {
      std::lock_guard<std::mutex> guard(lock_);
      routes = routes_;
    }
    // The innermost route comes first. The filter may call the driver.
    for (auto route = routes.rbegin(); route != routes.rend(); ++route) {
      if (route->device == device && (*route->filter)(stream)) {
        return route->id;
      }
    }
    return NO_POOL;
  }

 private:
  struct Route {
    int device;
    MempoolId_t id;
    std::shared_ptr<std::function<bool(cudaStream_t)>> filter;
  };
  std::mutex lock_;
  std::vector<Route> routes_;
  std::atomic<size_t> count_{0};
};

// An allocation as PyTorch made it.
struct Record {
  size_t requested = 0;
  cudaStream_t stream = nullptr;
  MempoolId_t pool = NO_POOL;
  Context context;
  // The allocator of the pool, if the pool has one of its own.
  std::shared_ptr<CUDAAllocator> owner;
  DeviceIndex device = -1;
  bool is_shared = false;

  size_t rounded() const {
    return (requested + STEP - 1) / STEP * STEP;
  }
};

// The live allocations by their addresses.
class Records {
 public:
  void insert(void* address, Record record) {
    auto& shard = shard_of(address);
    std::lock_guard<std::mutex> guard(shard.lock);
    shard.records.insert_or_assign(address, std::move(record));
  }

  // Removes a record. Returns whether there was one.
  bool remove(void* address, Record& record) {
    auto& shard = shard_of(address);
    std::lock_guard<std::mutex> guard(shard.lock);
    auto found = shard.records.find(address);
    if (found == shard.records.end()) {
      return false;
    }
    record = std::move(found->second);
    shard.records.erase(found);
    return true;
  }

  bool find(void* address, Record& record) {
    return change(address, [&](Record& found) { record = found; });
  }

  template <class Change>
  bool change(void* address, Change change) {
    auto& shard = shard_of(address);
    std::lock_guard<std::mutex> guard(shard.lock);
    auto found = shard.records.find(address);
    if (found == shard.records.end()) {
      return false;
    }
    change(found->second);
    return true;
  }

 private:
  struct Shard {
    std::mutex lock;
    ska::flat_hash_map<void*, Record> records;
  };

  Shard& shard_of(void* address) {
    auto mixed = (reinterpret_cast<uint64_t>(address) >> 9) * 0x9e3779b97f4a7c15;
    return shards_[mixed >> 60];
  }

  std::array<Shard, 16> shards_;
};

// Ranges of addresses, in order, with gaps between them.
using Ranges = std::map<uint64_t, uint64_t>;

// Calls a function with the parts of ranges that others do not cover.
template <class Visit>
void each_uncovered(const Ranges& ranges, const Ranges& others, Visit visit) {
  for (const auto& range : ranges) {
    uint64_t begin = range.first, end = range.second;
    auto other = others.upper_bound(begin);
    if (other != others.begin()) {
      begin = std::max(begin, std::prev(other)->second);
    }
    for (; begin < end; ++other) {
      uint64_t until = other == others.end() ? end : std::min(end, other->first);
      if (begin < until) {
        visit(begin, until - begin);
      }
      if (until == end) {
        break;
      }
      begin = other->second;
    }
  }
}

// The figures of allocations of one type, side by side: each allocation and each free changes them.
struct Tally {
  c10::CachingAllocator::Stat allocations, bytes, requested;

  template <class Change>
  void each(Change change) {
    change(allocations);
    change(bytes);
    change(requested);
  }
};

// The figures and the history of a device.
struct alignas(64) PerDevice {
  // Of all allocations, and of small and large ones. The pool has the figures for segments and free memory.
  std::array<Tally, static_cast<size_t>(c10::CachingAllocator::StatType::NUM_TYPES)> tallies;
  std::mutex lock;
  uint64_t ooms = 0;
  // The pool's counters when accumulated figures were reset.
  Figures base{};
  // The highest figures of free memory that were read.
  int64_t peak_split = 0, peak_split_bytes = 0;
  double fraction = 1.0;

  std::mutex trace_lock;
  std::vector<TraceEntry> trace;
  size_t next = 0;

  // What the history knows of the mapped memory: its ranges, and the pool's counters when they were read.
  Ranges mapped;
  uint64_t mapped_bytes = 0, mapped_chunks = 0;
};

size_t type_of(size_t requested) {
  auto type = requested <= SMALL ? c10::CachingAllocator::StatType::SMALL_POOL : c10::CachingAllocator::StatType::LARGE_POOL;
  return static_cast<size_t>(type);
}

std::string in_units(uint64_t bytes) {
  const char* units[] = {"bytes", "KiB", "MiB", "GiB"};
  double amount = static_cast<double>(bytes);
  int unit = 0;
  while (amount >= 1024 && unit < 3) {
    amount /= 1024;
    ++unit;
  }
  char text[64];
  snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", amount, units[unit]);
  return text;
}

// The context of compiled code, and the program's own label, of this thread.
thread_local std::vector<std::string> compile_contexts;
thread_local std::string user_metadata;

const char* const ACTIONS[] = {
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "snapshot", "oom"};

void delete_raw(void* address);

// ---- the class -----------------------------------------------------------------------------------

struct Checkpoint : caching::AllocatorState {
  DeviceIndex device;
  MempoolId_t id;
  void* checkpoint;
  std::unordered_map<void*, Record> known;

  Checkpoint(DeviceIndex device, MempoolId_t id)
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

class Allocator : public CUDAAllocator {
 public:
  // -- allocations

  c10::DataPtr allocate(size_t bytes) override {
    DeviceIndex device = current_device();
    void* address = allocate_on(bytes, device, c10::cuda::getCurrentCUDAStream(device));
    return {address, address, &delete_raw, c10::Device(c10::DeviceType::CUDA, device)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &delete_raw;
  }

  void* raw_alloc(size_t bytes) override {
    DeviceIndex device = current_device();
    return allocate_on(bytes, device, c10::cuda::getCurrentCUDAStream(device));
  }

  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    return allocate_on(bytes, current_device(), stream);
  }

  void raw_delete(void* address) override {
    // A forked process has neither the device nor the threads that may hold the locks.
    if (!address || library->is_child()) {
      return;
    }
    Context context = gather(RecordContext::ALL);
    Record record;
    TORCH_CHECK(records_.remove(address, record), "weirpool: ", address, " is not allocated; was it freed already?");
    if (const auto* interpreter = c10::impl::GPUTrace::get_trace()) {
      (*interpreter)->trace_gpu_memory_deallocation(c10::DeviceType::CUDA, reinterpret_cast<uintptr_t>(address));
    }
    trace(TraceEntry::FREE_REQUESTED, address, record, context);
    if (record.is_shared) {
      library->unshare(address);
    }
    if (record.owner) {
      record.owner->raw_delete(address);
    } else {
      library->free(address, record.requested, record.device, record.stream);
    }
    note_freed(address, record);
    trace(TraceEntry::FREE_COMPLETED, address, record, context);
  }

  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    // Tensors of other processes and of other allocators are not ours.
    Record record;
    if (data.get() && records_.find(data.get(), record) && !record.owner && record.stream != stream.stream()) {
      library->record_stream(data.get(), stream.stream());
    }
  }

  void* getBaseAllocation(void* address, size_t* bytes) override {
    Record record;
    TORCH_CHECK(records_.find(address, record), "weirpool: ", address, " is not allocated");
    if (bytes) {
      *bytes = record.rounded();
    }
    return address;
  }

  void copy_data(void* to, const void* from, std::size_t count) const override {
    C10_CUDA_CHECK(cudaMemcpy(to, from, count, cudaMemcpyDeviceToDevice));
  }

  // -- state

  void init(int devices) override {
    devices_.store(std::max(devices, devices_.load()), std::memory_order_release);
    is_initialized_.store(true, std::memory_order_release);
  }

  bool initialized() override {
    return is_initialized_.load(std::memory_order_acquire);
  }

  // PyTorch's own allocator ignores this as well.
  void enable(bool) override {}

  bool isEnabled() const override {
    return true;
  }

  std::string name() override {
    return "weirpool";
  }

  // -- limits and cached memory

  double getMemoryFraction(DeviceIndex device) override {
    auto& state = of(device);
    std::lock_guard<std::mutex> guard(state.lock);
    return state.fraction;
  }

  void setMemoryFraction(double fraction, DeviceIndex device) override {
    TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction: ", fraction, "; it must be from 0 to 1");
    auto& state = of(device);
    auto total = getMemoryInfo(device).second;
    Refusal refusal;
    check(library->limit(device, static_cast<uint64_t>(fraction * static_cast<double>(total)), &refusal), refusal);
    std::lock_guard<std::mutex> guard(state.lock);
    state.fraction = fraction;
  }

  std::pair<size_t, size_t> memory_info(DeviceIndex device) {
    c10::cuda::CUDAGuard guard(device);
    size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return {free, total};
  }

#if TORCH_AT_LEAST(2, 10)
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    return memory_info(device);
  }
#else
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) {
    return memory_info(device);
  }
#endif

  // Returns free memory of every pool to the device. Memory of a pool of graphs is set aside until its last owner releases it, and then
  // it is free memory, so the name of the pool makes no difference.
  void emptyCache(MempoolId_t) override {
    for (int device = 0; device < devices_.load(std::memory_order_acquire); ++device) {
      Refusal refusal;
      check(library->trim(device, &refusal), refusal);
      trace_mapped(static_cast<DeviceIndex>(device), RecordContext::ALL);
    }
  }

  void cacheInfo(DeviceIndex device, size_t* largest) override {
    of(device);
    *largest = std::max<size_t>(*largest, library->largest(device));
  }

#if TORCH_AT_LEAST(2, 10)
  // These are the segments of PyTorch's own allocator, which NCCL registers.
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override {
    return {};
  }
#endif

  // -- figures

  DeviceStats getDeviceStats(DeviceIndex device) override {
    auto& state = of(device);
    Figures now{};
    library->figures(device, &now);
    std::lock_guard<std::mutex> guard(state.lock);
    DeviceStats stats;
    for (size_t type = 0; type < state.tallies.size(); ++type) {
      stats.allocation[type] = state.tallies[type].allocations;
      stats.allocated_bytes[type] = state.tallies[type].bytes;
      stats.requested_bytes[type] = state.tallies[type].requested;
    }
    // A freed block is free for its stream at once.
    stats.active = stats.allocation;
    stats.active_bytes = stats.allocated_bytes;
    auto split = static_cast<int64_t>(now.free_blocks - std::min(now.free_blocks, now.releasable_blocks));
    auto split_bytes = static_cast<int64_t>(now.free - std::min(now.free, now.releasable));
    state.peak_split = std::max(state.peak_split, split);
    state.peak_split_bytes = std::max(state.peak_split_bytes, split_bytes);
    // All memory belongs to one pool, which counts as the one of large blocks.
    for (auto type : {c10::CachingAllocator::StatType::AGGREGATE, c10::CachingAllocator::StatType::LARGE_POOL}) {
      auto at = static_cast<size_t>(type);
      auto& segment = stats.segment[at];
      segment.current = static_cast<int64_t>(now.chunks);
      segment.allocated = static_cast<int64_t>(now.chunks_created - state.base.chunks_created);
      segment.freed = static_cast<int64_t>(
          (now.chunks_created - now.chunks) - (state.base.chunks_created - state.base.chunks));
      auto& reserved = stats.reserved_bytes[at];
      reserved.current = static_cast<int64_t>(now.reserved);
      reserved.peak = static_cast<int64_t>(std::max(now.reserved, now.peak_reserved));
      reserved.freed = static_cast<int64_t>(now.released - state.base.released);
      reserved.allocated =
          static_cast<int64_t>(now.reserved + now.released - state.base.reserved - state.base.released);
      segment.peak = now.reserved > 0 ? reserved.peak * segment.current / reserved.current : segment.current;
      stats.inactive_split[at].current = split;
      stats.inactive_split[at].peak = state.peak_split;
      stats.inactive_split_bytes[at].current = split_bytes;
      stats.inactive_split_bytes[at].peak = state.peak_split_bytes;
    }
    stats.num_alloc_retries = static_cast<int64_t>(now.waits - state.base.waits);
    stats.num_ooms = static_cast<int64_t>(state.ooms);
    stats.num_device_alloc = stats.segment[0].allocated;
    stats.num_device_free = stats.segment[0].freed;
    // No block is too large to be split.
    stats.max_split_size = -1;
    return stats;
  }

  void resetAccumulatedStats(DeviceIndex device) override {
    auto& state = of(device);
    Figures now{};
    library->figures(device, &now);
    std::lock_guard<std::mutex> guard(state.lock);
    state.base = now;
    state.ooms = 0;
    for (auto& tally : state.tallies) {
      tally.each([](auto& stat) { stat.reset_accumulated(); });
    }
  }

  void resetPeakStats(DeviceIndex device) override {
    auto& state = of(device);
    library->reset_peaks(device);
    std::lock_guard<std::mutex> guard(state.lock);
    state.peak_split = state.peak_split_bytes = 0;
    for (auto& tally : state.tallies) {
      tally.each([](auto& stat) { stat.reset_peak(); });
    }
  }

  // -- history

  bool isHistoryEnabled() override {
    return is_recording_.load(std::memory_order_acquire);
  }

#if TORCH_AT_LEAST(2, 11)
  void recordHistory(
      bool is_enabled,
      caching::CreateContextFn recorder,
      size_t max_entries,
      RecordContext when,
      bool is_cleared,
      const std::vector<std::string>& skipped) override {
    record_history(is_enabled, recorder, max_entries, when, is_cleared, skipped);
  }
#else
  void recordHistory(
      bool is_enabled,
      caching::CreateContextFn recorder,
      size_t max_entries,
      RecordContext when,
      bool is_cleared) override {
    record_history(is_enabled, recorder, max_entries, when, is_cleared, {});
  }
#endif

  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& texts) override {
    if (!isHistoryEnabled()) {
      return;
    }
    AnnotationEntry entry(current_device(), c10::getApproximateTime());
    for (const auto& [name, text] : texts) {
      entry.recordUserMetadata(name, text);
    }
    std::lock_guard<std::mutex> guard(history_lock_);
    annotations_.push_back(std::move(entry));
    if (annotations_.size() > max_entries_.load(std::memory_order_relaxed)) {
      annotations_.erase(annotations_.begin());
    }
  }

  void pushCompileContext(std::string& context) override {
    compile_contexts.push_back(context);
  }

  void popCompileContext() override {
    if (!compile_contexts.empty()) {
      compile_contexts.pop_back();
    }
  }

#if TORCH_AT_LEAST(2, 10)
  void setUserMetadata(const std::string& text) override {
    user_metadata = text;
  }

  std::string getUserMetadata() override {
    return user_metadata;
  }
#endif

#if TORCH_AT_LEAST(2, 11)
  caching::SnapshotInfo snapshot(MempoolId_t only, bool has_traces) override {
    return take_snapshot(only, has_traces);
  }
#else
  caching::SnapshotInfo snapshot(MempoolId_t only) override {
    return take_snapshot(only, true);
  }
#endif

  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    std::lock_guard<std::mutex> guard(history_lock_);
    observers_.push_back(std::move(observer));
  }

  // Trackers learn of allocations and frees, and of no segments: the pool maps chunks by itself.
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    std::lock_guard<std::mutex> guard(history_lock_);
    trackers_.push_back(std::move(tracker));
    has_trackers_.store(true, std::memory_order_release);
  }

  // -- several devices and processes

  void enablePeerAccess(DeviceIndex from, DeviceIndex to) override {
    {
      // For memory of other libraries.
      c10::cuda::CUDAGuard guard(from);
      cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
      } else {
        C10_CUDA_CHECK(error);
      }
    }
    // Virtual memory has rights of its own. A kernel of either device may read the one and write the other.
    for (auto [memory, device] : {std::pair{to, from}, std::pair{from, to}}) {
      Refusal refusal;
      check(library->enable_access(memory, device, &refusal), refusal);
    }
  }

  cudaError_t memcpyAsync(
      void* to,
      int to_device,
      const void* from,
      int from_device,
      size_t count,
      cudaStream_t stream,
      bool has_access) override {
    if (has_access || to_device == from_device) {
      return cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream);
    }
    // Without access, only this copies virtual memory.
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, count, stream);
  }

  caching::ShareableHandle shareIpcHandle(void* address) override {
    Record record;
    TORCH_CHECK(records_.find(address, record) && !record.owner, "weirpool: ", address, " is not allocated here, so it cannot be shared");
    char handle[512];
    uint64_t offset = 0;
    Refusal refusal;
    int length = library->share(record.device, address, record.rounded(), handle, sizeof handle, &offset, &refusal);
    check(length <= 0, refusal);
    records_.change(address, [](Record& found) { found.is_shared = true; });
    return {static_cast<ptrdiff_t>(offset), std::string(handle, static_cast<size_t>(length))};
  }

  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    std::lock_guard<std::mutex> opening(opening_lock_);
    {
      std::lock_guard<std::mutex> guard(history_lock_);
      if (auto known = opened_[handle].lock()) {
        return known;
      }
    }
    Opened opened{};
    Refusal refusal;
    check(library->open_shared(current_device(), handle.data(), handle.size(), &opened, &refusal), refusal);
    std::shared_ptr<void> base(opened.address, [this, handle, number = opened.number](void*) {
      {
        std::lock_guard<std::mutex> guard(history_lock_);
        auto known = opened_.find(handle);
        if (known != opened_.end() && known->second.expired()) {
          opened_.erase(known);
        }
      }
      library->close_shared(number);
    });
    std::lock_guard<std::mutex> guard(history_lock_);
    opened_[handle] = base;
    return base;
  }

  // -- pools of graphs, and `torch.cuda.MemPool`

  void beginAllocateToPool(DeviceIndex device, MempoolId_t id, std::function<bool(cudaStream_t)> filter) override {
    library->begin(device, name_of(id), &filter);
    routes_.begin(device, id, std::move(filter));
  }

  void endAllocateToPool(DeviceIndex device, MempoolId_t id) override {
    routes_.end(device, id);
    library->end(device, name_of(id));
  }

  void releasePool(DeviceIndex device, MempoolId_t id) override {
    library->release(device, name_of(id));
    if (library->uses(device, name_of(id)) == 0) {
      std::shared_ptr<CUDAAllocator> owner;
      std::lock_guard<std::mutex> guard(history_lock_);
      auto found = owners_.find({device, id});
      if (found != owners_.end()) {
        owner = std::move(found->second);
        owners_.erase(found);
      }
    }
  }

#if TORCH_AT_LEAST(2, 11)
  void createOrIncrefPool(DeviceIndex device, MempoolId_t id, std::shared_ptr<CUDAAllocator> owner) override {
    retain(device, id, std::move(owner));
  }

  void setUseOnOOM(DeviceIndex, MempoolId_t, bool is_used) override {
    refuse_use_on_oom(is_used);
  }
#else
  void createOrIncrefPool(DeviceIndex device, MempoolId_t id, CUDAAllocator* owner) override {
    // The caller keeps it.
    retain(device, id, owner ? std::shared_ptr<CUDAAllocator>(owner, [](CUDAAllocator*) {}) : nullptr);
  }

  void setUseOnOOM(DeviceIndex, MempoolId_t) override {
    refuse_use_on_oom(true);
  }
#endif

#if TORCH_AT_LEAST(2, 10)
  void setNoSplit(DeviceIndex, MempoolId_t) override {
    TORCH_CHECK(false, "weirpool: a pool with no_split is not supported, because segments of graphs are ranges of one heap");
  }
#endif

  int getPoolUseCount(DeviceIndex device, MempoolId_t id) override {
    return static_cast<int>(library->uses(device, name_of(id)));
  }

  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id, const std::unordered_set<void*>& expected) override {
    auto live = allocated(device, id);
    auto is_expected = [&](const MemoryRange& range) { return expected.count(range.address) > 0; };
    return live.size() == expected.size() && std::all_of(live.begin(), live.end(), is_expected);
  }

  std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t id) override {
    auto state = std::make_shared<Checkpoint>(device, id);
    for (const auto& range : state->ranges()) {
      Record record;
      if (records_.find(range.address, record)) {
        state->known[range.address] = std::move(record);
      }
    }
    return state;
  }

  caching::CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<caching::AllocatorState> state) override {
    auto* to = dynamic_cast<Checkpoint*>(state.get());
    TORCH_CHECK(to && to->device == device, "weirpool: the state is not a checkpoint of a pool of device ", int(device));
    caching::CheckpointDelta delta;
    for (const auto& range : allocated(device, to->id)) {
      Record record;
      if (records_.remove(range.address, record)) {
        note_freed(range.address, record);
        delta.ptrs_freed.push_back(range.address);
      }
    }
    auto ranges = to->ranges();
    cudaStream_t stream = to->known.empty() ? nullptr : to->known.begin()->second.stream;
    library->restore(device, name_of(to->id), to->checkpoint, stream);
    for (const auto& range : ranges) {
      auto found = to->known.find(range.address);
      Record record;
      if (found != to->known.end()) {
        record = found->second;
      } else {
        record.requested = range.bytes;
        record.stream = stream;
      }
      record.device = device;
      record.pool = to->id;
      note_allocated(range.address, record);
      delta.dataptrs_allocd.emplace_back(
          range.address, range.address, &delete_raw, c10::Device(c10::DeviceType::CUDA, device));
    }
    return delta;
  }

 private:
  static DeviceIndex current_device() {
    DeviceIndex device = -1;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return device;
  }

  PerDevice& of(DeviceIndex device) {
    TORCH_CHECK(
        device >= 0 && device < static_cast<int>(per_device_.size()), "weirpool: there is no device ", int(device));
    return per_device_[static_cast<size_t>(device)];
  }

  Context gather(RecordContext level) {
    if (when_.load(std::memory_order_relaxed) < level) {
      return nullptr;
    }
    auto recorder = recorder_.load(std::memory_order_acquire);
    return recorder ? recorder() : nullptr;
  }

  void* allocate_on(size_t bytes, DeviceIndex device, cudaStream_t stream) {
    TORCH_CHECK_WITH(
        OutOfMemoryError, bytes < LARGEST, "CUDA out of memory. Tried to allocate more than 1EB memory.");
    if (bytes == 0) {
      return nullptr;
    }
    Record record;
    record.requested = bytes;
    record.stream = stream;
    record.device = device;
    record.context = gather(RecordContext::STATE);
    record.pool = routes_.find(device, stream);
    record.owner = owner_of(device, record.pool);
    void* address = nullptr;
    if (record.owner) {
      address = record.owner->raw_alloc_with_stream(bytes, stream);
    } else {
      PoolName name = name_of(record.pool);
      const PoolName* pool = record.pool == NO_POOL ? nullptr : &name;
      Refusal refusal;
      address = library->alloc(bytes, device, stream, pool, &refusal);
      if (!address && refusal.kind == OUT_OF_MEMORY && run_callbacks()) {
        address = library->alloc(bytes, device, stream, pool, &refusal);
      }
      if (!address) {
        refuse(record, refusal);
      }
    }
    note_allocated(address, record);
    if (const auto* interpreter = c10::impl::GPUTrace::get_trace()) {
      (*interpreter)->trace_gpu_memory_allocation(c10::DeviceType::CUDA, reinterpret_cast<uintptr_t>(address));
    }
    return address;
  }

  // Lets other parts of PyTorch free memory that they keep, such as tensors that other processes have released.
  static bool run_callbacks() {
    bool has_freed = false;
    auto* registry = c10::FreeCudaMemoryCallbacksRegistry();
    for (const auto& name : registry->Keys()) {
      auto callback = registry->Create(name);
      has_freed |= callback && callback->Execute();
    }
    return has_freed;
  }

  [[noreturn]] void refuse(const Record& record, const Refusal& refusal) {
    TORCH_CHECK(refusal.kind == OUT_OF_MEMORY, "weirpool: ", refusal.text);
    auto device = record.device;
    auto& state = of(device);
    Figures figures{};
    library->figures(device, &figures);
    auto [free, total] = memory_info(device);
    std::vector<caching::OutOfMemoryObserver> observers;
    {
      std::lock_guard<std::mutex> guard(history_lock_);
      observers = observers_;
    }
    int64_t allocated;
    double fraction;
    {
      std::lock_guard<std::mutex> guard(state.lock);
      ++state.ooms;
      allocated = state.tallies[0].bytes.current;
      fraction = state.fraction;
    }
    trace(TraceEntry::OOM, reinterpret_cast<void*>(free), record, record.context);
    auto limit = std::min<uint64_t>(figures.capacity, total);
    for (const auto& observer : observers) {
      observer(device, record.requested, fraction < 1 ? limit : total, free);
    }
    c10::reportOutOfMemoryToProfiler(
        static_cast<int64_t>(record.requested),
        static_cast<size_t>(allocated),
        figures.reserved,
        c10::Device(c10::DeviceType::CUDA, device));
    auto unallocated = static_cast<int64_t>(figures.reserved) - allocated;
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        false,
        "CUDA out of memory. Tried to allocate ", in_units(record.requested), ". GPU ", int(device),
        " has a total capacity of ", in_units(total), " of which ", in_units(free), " is free. The pool may reserve ",
        in_units(limit), ". Of the memory that it has reserved, ", in_units(static_cast<uint64_t>(allocated)),
        " is allocated by PyTorch, and ", in_units(static_cast<uint64_t>(std::max<int64_t>(unallocated, 0))),
        " is not. weirpool: ", refusal.text);
    abort();
  }

  void note_allocated(void* address, const Record& record) {
    records_.insert(address, record);
    auto& state = of(record.device);
    int64_t allocated;
    {
      std::lock_guard<std::mutex> guard(state.lock);
      for (size_t type : {size_t{0}, type_of(record.requested)}) {
        auto& tally = state.tallies[type];
        tally.allocations.increase(1);
        tally.bytes.increase(record.rounded());
        tally.requested.increase(record.requested);
      }
      allocated = state.tallies[0].bytes.current;
    }
    report(address, record, static_cast<int64_t>(record.rounded()), allocated);
    trace_mapped(record.device, RecordContext::ALLOC);
    trace(TraceEntry::ALLOC, address, record, record.context);
  }

  void note_freed(void* address, const Record& record) {
    auto& state = of(record.device);
    int64_t allocated;
    {
      std::lock_guard<std::mutex> guard(state.lock);
      for (size_t type : {size_t{0}, type_of(record.requested)}) {
        auto& tally = state.tallies[type];
        tally.allocations.decrease(1);
        tally.bytes.decrease(record.rounded());
        tally.requested.decrease(record.requested);
      }
      allocated = state.tallies[0].bytes.current;
    }
    report(address, record, -static_cast<int64_t>(record.rounded()), allocated);
  }

  // Tells the profiler, if it runs.
  void report(void* address, const Record& record, int64_t change, int64_t allocated) {
    if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
      Figures figures{};
      library->figures(record.device, &figures);
      c10::reportMemoryUsageToProfiler(
          address, change, static_cast<size_t>(allocated), figures.reserved, c10::Device(c10::DeviceType::CUDA, record.device));
    }
  }

  // Returns the mapped memory of a device.
  static Ranges mapped(DeviceIndex device) {
    Ranges blocks, ranges;
    auto visit = [](void* to, uint64_t address, uint64_t bytes, int) {
      static_cast<Ranges*>(to)->emplace(address, address + bytes);
    };
    library->walk(device, visit, &blocks);
    for (auto [begin, end] : blocks) {
      auto last = ranges.empty() ? ranges.end() : std::prev(ranges.end());
      if (last != ranges.end() && last->second == begin) {
        last->second = end;
      } else {
        ranges.emplace_hint(ranges.end(), begin, end);
      }
    }
    return ranges;
  }

  // Reads the mapped memory of a device. Returns whether it changed since the last call.
  bool read_mapped(DeviceIndex device, Ranges& before, Ranges& after) {
    auto& state = of(device);
    Figures now{};
    library->figures(device, &now);
    {
      std::lock_guard<std::mutex> guard(state.trace_lock);
      if (now.reserved == state.mapped_bytes && now.chunks_created == state.mapped_chunks) {
        return false;
      }
    }
    // Another thread may do the same. If the older answer comes last, the next call reads again.
    after = mapped(device);
    Ranges kept = after;
    std::lock_guard<std::mutex> guard(state.trace_lock);
    state.mapped_bytes = now.reserved;
    state.mapped_chunks = now.chunks_created;
    before = std::move(state.mapped);
    state.mapped = std::move(kept);
    return true;
  }

  // Adds to the history what was mapped and unmapped since the last call. Trackers register memory with other libraries before it is
  // unmapped, which this is too late for: they are not told.
  void trace_mapped(DeviceIndex device, RecordContext level) {
    Ranges before, after;
    if (C10_LIKELY(!isHistoryEnabled()) || !read_mapped(device, before, after)) {
      return;
    }
    Context context = gather(level);
    Record record;
    record.device = device;
    auto visit = [&](TraceEntry::Action action) {
      return [&, action](uint64_t address, uint64_t bytes) {
        record.requested = bytes;
        trace(action, reinterpret_cast<void*>(address), record, context, false);
      };
    };
    each_uncovered(before, after, visit(TraceEntry::SEGMENT_UNMAP));
    each_uncovered(after, before, visit(TraceEntry::SEGMENT_MAP));
  }

  void trace(
      TraceEntry::Action action,
      void* address,
      const Record& record,
      const Context& context,
      bool is_for_trackers = true) {
    bool is_recording = is_recording_.load(std::memory_order_acquire);
    if (C10_LIKELY(!is_recording && !has_trackers_.load(std::memory_order_acquire))) {
      return;
    }
    bool has_context = when_.load(std::memory_order_relaxed) >= RecordContext::ALLOC;
    TraceEntry entry(
        action,
        record.device,
        reinterpret_cast<size_t>(address),
        record.requested,
        record.stream,
        record.pool,
        c10::getApproximateTime(),
        has_context ? context : nullptr,
        compile_contexts.empty() ? "" : compile_contexts.back()
#if TORCH_AT_LEAST(2, 10)
            ,
        user_metadata
#endif
    );
    std::vector<caching::AllocatorTraceTracker> trackers;
    {
      std::lock_guard<std::mutex> guard(history_lock_);
      if (is_for_trackers) {
        trackers = trackers_;
      }
      is_recording &= std::find(skipped_.begin(), skipped_.end(), ACTIONS[action]) == skipped_.end();
    }
    for (const auto& tracker : trackers) {
      tracker(entry);
    }
    if (is_recording) {
      keep(of(record.device), std::move(entry));
    }
  }

  void keep(PerDevice& state, TraceEntry entry) {
    std::lock_guard<std::mutex> guard(state.trace_lock);
    if (state.trace.size() < max_entries_.load(std::memory_order_relaxed)) {
      state.trace.push_back(std::move(entry));
    } else {
      std::swap(state.trace[state.next], entry);
      state.next = (state.next + 1) % state.trace.size();
    }
  }

  void record_history(
      bool is_enabled,
      caching::CreateContextFn recorder,
      size_t max_entries,
      RecordContext when,
      bool is_cleared,
      const std::vector<std::string>& skipped) {
    TORCH_CHECK(when == RecordContext::NEVER || recorder, "weirpool: a history with stacks needs a function that records them");
    for (int device = 0; is_enabled && device < devices_.load(std::memory_order_acquire); ++device) {
      Ranges before, after;
      read_mapped(static_cast<DeviceIndex>(device), before, after);
    }
    is_recording_.store(is_enabled, std::memory_order_release);
    recorder_.store(is_enabled ? recorder : nullptr, std::memory_order_release);
    when_.store(is_enabled ? when : RecordContext::NEVER, std::memory_order_release);
    max_entries = std::max<size_t>(1, max_entries);
    bool is_shorter = max_entries < max_entries_.exchange(max_entries, std::memory_order_acq_rel);
    std::vector<AnnotationEntry> annotations;
    {
      std::lock_guard<std::mutex> guard(history_lock_);
      skipped_ = skipped;
      if (!is_enabled || is_cleared) {
        annotations.swap(annotations_);
      }
    }
    if (!is_enabled || is_cleared || is_shorter) {
      for (auto& state : per_device_) {
        std::vector<TraceEntry> trace;
        std::lock_guard<std::mutex> guard(state.trace_lock);
        trace.swap(state.trace);
        state.next = 0;
      }
    }
  }

  struct Walk {
    std::vector<std::array<uint64_t, 3>> blocks;
  };

  caching::SnapshotInfo take_snapshot(MempoolId_t only, bool has_traces) {
    caching::SnapshotInfo info{};
    int devices = devices_.load(std::memory_order_acquire);
    auto in_ns = clock_.makeConverter();
    auto settle = [&](auto& entry) { entry.time_.t_ = in_ns(entry.time_.approx_t_) / 1000; };
    for (int device = 0; device < devices; ++device) {
      std::vector<TraceEntry> entries;
      if (has_traces) {
        auto& state = of(static_cast<DeviceIndex>(device));
        std::lock_guard<std::mutex> guard(state.trace_lock);
        entries.insert(entries.end(), state.trace.begin() + static_cast<ptrdiff_t>(state.next), state.trace.end());
        entries.insert(entries.end(), state.trace.begin(), state.trace.begin() + static_cast<ptrdiff_t>(state.next));
      }
      std::for_each(entries.begin(), entries.end(), settle);
      info.device_traces.push_back(std::move(entries));
      // The next history says that there was a snapshot.
      if (has_traces) {
        Record record;
        record.device = static_cast<DeviceIndex>(device);
        trace(TraceEntry::SNAPSHOT, nullptr, record, nullptr);
      }
      add_segments(info, static_cast<DeviceIndex>(device), only);
    }
    if (has_traces) {
      std::lock_guard<std::mutex> guard(history_lock_);
      info.external_annotations = annotations_;
    }
    std::for_each(info.external_annotations.begin(), info.external_annotations.end(), settle);
    return info;
  }

  // Adds the mapped memory of a device. Blocks that adjoin and belong to the same pool form a segment.
  void add_segments(caching::SnapshotInfo& info, DeviceIndex device, MempoolId_t only) {
    Walk walk;
    auto visit = [](void* to, uint64_t address, uint64_t bytes, int state) {
      static_cast<Walk*>(to)->blocks.push_back({address, bytes, static_cast<uint64_t>(state)});
    };
    library->walk(device, visit, &walk);
    SegmentInfo segment{};
    uint64_t end = 0;
    auto finish = [&] {
      if (segment.total_size > 0 && (only == NO_POOL || only == segment.owner_private_pool_id)) {
        info.segments.push_back(segment);
      }
      segment = {};
    };
    for (auto [address, bytes, state] : walk.blocks) {
      Record record;
      bool is_ours = state == USED && records_.find(reinterpret_cast<void*>(address), record);
      MempoolId_t pool = is_ours ? record.pool : NO_POOL;
      // Memory that is set aside, and free memory, belongs to what comes before it.
      bool is_same = is_ours ? pool == segment.owner_private_pool_id : state != USED || segment.owner_private_pool_id == NO_POOL;
      if (segment.total_size == 0 || address != end || !is_same) {
        finish();
        segment.device = device;
        segment.address = address;
        segment.owner_private_pool_id = pool;
        segment.is_large = true;
        segment.is_expandable = true;
        segment.stream = record.stream;
      }
      BlockInfo block{};
      block.size = bytes;
      block.requested_size = is_ours ? record.requested : state == USED ? bytes : 0;
      block.allocated = state == USED;
      block.active = state == USED || state == PENDING;
      block.context_when_allocated = record.context;
      segment.total_size += bytes;
      segment.requested_size += block.requested_size;
      segment.allocated_size += block.allocated ? bytes : 0;
      segment.active_size += block.active ? bytes : 0;
      segment.blocks.push_back(std::move(block));
      end = address + bytes;
    }
    finish();
  }

  void retain(DeviceIndex device, MempoolId_t id, std::shared_ptr<CUDAAllocator> owner) {
    library->retain(device, name_of(id));
    if (owner) {
      TORCH_CHECK(owner.get() != this, "weirpool: a pool needs no allocator of its own to allocate from weirpool");
      std::lock_guard<std::mutex> guard(history_lock_);
      owners_[{device, id}] = std::move(owner);
      has_owners_.store(true, std::memory_order_release);
    }
  }

  static void refuse_use_on_oom(bool is_used) {
    TORCH_CHECK(
        !is_used,
        "weirpool: a pool with use_on_oom is not supported, because a graph that is replayed would overwrite memory that was taken from it");
  }

  std::shared_ptr<CUDAAllocator> owner_of(DeviceIndex device, MempoolId_t id) {
    if (id == NO_POOL || !has_owners_.load(std::memory_order_acquire)) {
      return nullptr;
    }
    std::lock_guard<std::mutex> guard(history_lock_);
    auto found = owners_.find({device, id});
    return found == owners_.end() ? nullptr : found->second;
  }

  std::vector<MemoryRange> allocated(int device, MempoolId_t id) {
    return ranges_of([&](MemoryRange* ranges, size_t room) { return library->allocated(device, name_of(id), ranges, room); });
  }

  Routes routes_;
  Records records_;
  std::array<PerDevice, 128> per_device_;
  std::atomic<int> devices_{0};
  std::atomic<bool> is_initialized_{false};

  std::atomic<bool> is_recording_{false}, has_trackers_{false}, has_owners_{false};
  std::atomic<caching::CreateContextFn> recorder_{nullptr};
  std::atomic<RecordContext> when_{RecordContext::NEVER};
  std::atomic<size_t> max_entries_{1};
  c10::ApproximateClockToUnixTimeConverter clock_;

  // Held for the tables below. Never while anything else is called.
  std::mutex history_lock_;
  std::vector<std::string> skipped_;
  std::vector<AnnotationEntry> annotations_;
  std::vector<caching::OutOfMemoryObserver> observers_;
  std::vector<caching::AllocatorTraceTracker> trackers_;
  std::map<std::pair<int, MempoolId_t>, std::shared_ptr<CUDAAllocator>> owners_;
  std::unordered_map<std::string, std::weak_ptr<void>> opened_;
  // Held while memory of another process is opened, so that it is opened once.
  std::mutex opening_lock_;
};

Allocator* installed = nullptr;

void delete_raw(void* address) {
  installed->raw_delete(address);
}

} // namespace

// Makes PyTorch allocate from the library at `path` until the process ends. Returns null, or the reason on failure.
extern "C" __attribute__((visibility("default"))) const char* weirpool_install(const char* path) {
  static std::string reason;
  try {
    library = new Library(path);
    installed = new Allocator();
    // Tensors may be freed while the process ends, so it lives as long.
    std::shared_ptr<CUDAAllocator> allocator(installed, [](CUDAAllocator*) {});
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(allocator);
    c10::SetAllocator(c10::DeviceType::CUDA, installed);
    // From now on, no other allocator can replace it.
    installed->init(0);
    return nullptr;
  } catch (const std::exception& error) {
    reason = error.what();
    return reason.c_str();
  }
}
