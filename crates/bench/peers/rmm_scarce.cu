// RMM's pool with memory for 4 blocks of 8 MiB, handed around 8 streams: the workload of benches/suite/scarce.rs.
//
// Prints lines for `cargo bench --bench table -- --peers FILE`. It takes the headers and libraries of the PyPI wheels
// librmm-cu13 and rapids-logger, unpacked into `un`:
//
//   nvcc -O2 -std=c++20 -arch=sm_90 --expt-relaxed-constexpr --extended-lambda rmm_scarce.cu -o rmm_scarce \
//     -Iun/librmm/include -Iun/librmm/include/rapids -Iun/rapids_logger/include \
//     -Lun/librmm/lib64 -lrmm -Lun/rapids_logger/lib64 -lrapids_logger
#include <new>
#include <rmm/cuda_stream_view.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "workloads.hpp"

constexpr int STREAMS = 8, ITERATIONS = 1200;
constexpr size_t BYTES = 8 << 20, BLOCKS = 4;

template <class Pool>
static void run(Pool& pool, bool is_handed_on, int micros) {
  std::vector<cudaStream_t> streams(STREAMS);
  for (auto& stream : streams) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<cudaEvent_t> written(STREAMS);
  for (auto& event : written) check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  int refused = 0;
  auto start = std::chrono::steady_clock::now();
  for (int iteration = 0; iteration < ITERATIONS; ++iteration) {
    int producer = is_handed_on ? iteration * 2 % STREAMS : iteration % STREAMS;
    int consumer = is_handed_on ? producer + 1 : producer;
    void* block = nullptr;
    for (int tries = 0; block == nullptr; ++tries) {
      try {
        block = pool.allocate(rmm::cuda_stream_view{streams[producer]}, BYTES, 256);
      } catch (std::bad_alloc const&) {
        refused += tries == 0;
      }
    }
    spin<<<1, 1, 0, streams[producer]>>>(micros * 1000LL);
    if (is_handed_on) {
      check(cudaEventRecord(written[producer], streams[producer]));
      check(cudaStreamWaitEvent(streams[consumer], written[producer]));
      spin<<<1, 1, 0, streams[consumer]>>>(micros * 1000LL);
    }
    // Freed on the stream that used it last, which comes after the other.
    pool.deallocate(rmm::cuda_stream_view{streams[consumer]}, block, BYTES, 256);
  }
  check(cudaDeviceSynchronize());
  std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  std::printf("rmm pool               scarce %s, %4d us kernel %9.1f ns/iter, refused %d\n",
              is_handed_on ? "handed on" : "alone", micros, took.count() / ITERATIONS, refused);
  std::fflush(stdout);
  for (auto& event : written) check(cudaEventDestroy(event));
  for (auto& stream : streams) check(cudaStreamDestroy(stream));
}

int main() {
  check(cudaSetDevice(0));
  check(cudaFree(nullptr));
  rmm::mr::cuda_memory_resource upstream;
  for (bool is_handed_on : {false, true}) {
    for (int micros : {20, 200}) {
      rmm::mr::pool_memory_resource pool{upstream, BLOCKS * BYTES, BLOCKS * BYTES};
      run(pool, is_handed_on, micros);
      run(pool, is_handed_on, micros); // the first one is for warming up
    }
  }
}
