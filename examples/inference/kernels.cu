// Kernels of the service: they access their memory as a model would, and run for a given time.

typedef unsigned char u8;
typedef unsigned long long u64;

// The device's own clock, in nanoseconds.
static __device__ u64 now() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Writes all weights.
extern "C" __global__ void load(u64* weights, u64 bytes) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < bytes / 8; at += step) {
        weights[at] = at;
    }
}

// Reads both ends of a page that is full.
extern "C" __global__ void read(const volatile u8* page, u64 bytes) {
    (void)page[0];
    (void)page[bytes - 1];
}

// Reads weights, and writes activation and page. Each block of threads is busy for `time` nanoseconds.
extern "C" __global__ void step(const volatile u8* weights, volatile u8* activation, u64 activation_bytes,
                                volatile u8* page, u64 page_bytes, u64 time) {
    const u64 began = now();
    if (blockIdx.x == 0) {
        activation[0] = weights[0];
        page[0] = activation[0];
    }
    while (now() - began < time) {
    }
    if (blockIdx.x == 0) {
        activation[activation_bytes - 1] = weights[0];
        page[page_bytes - 1] = activation[activation_bytes - 1];
    }
}
