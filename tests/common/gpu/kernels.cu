// What tests have a GPU do. NVRTC compiles this where it runs; `gpu.rs`, beside it, launches it.
//
// Every parameter is 64 bits wide. Memory is counted in words of 32 bits. Each kernel is right with any
// number of blocks and threads, except where it says that it is run by one.

typedef unsigned int u32;
typedef unsigned long long u64;

__device__ u64 self() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

__device__ u64 everyone() { return (u64)gridDim.x * blockDim.x; }

// Nanoseconds; the same clock on all of the device.
__device__ u64 now()
{
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

extern "C" __global__ void fill(u32 *memory, u64 words, u64 value)
{
    for (u64 at = self(); at < words; at += everyone())
        memory[at] = (u32)value;
}

// Notes a word that is not the value: its number, counted from 1, in the upper half, and its value in the lower half.
// One of several wins.
extern "C" __global__ void compare(const u32 *memory, u64 words, u64 value, volatile u64 *found)
{
    for (u64 at = self(); at < words; at += everyone())
        if (memory[at] != (u32)value)
            *found = (at + 1) << 32 | memory[at];
}

extern "C" __global__ void add(u32 *memory, u64 words, u64 amount)
{
    for (u64 at = self(); at < words; at += everyone())
        memory[at] += (u32)amount;
}

// One thread: takes a while.
extern "C" __global__ void spend(u64 nanoseconds)
{
    const u64 start = now();
    while (now() - start < nanoseconds)
        __nanosleep(100);
}

// One thread: until the number is so large. If that takes too long, it notes that it gave up: what never
// comes fails a test, and hangs nothing.
extern "C" __global__ void hold(const volatile u64 *number, u64 target, u64 limit, volatile u64 *gave_up)
{
    const u64 start = now();
    while (*number < target) {
        if (now() - start > limit) {
            *gave_up = 1;
            return;
        }
        __nanosleep(200);
    }
}

// One thread: sets the number that another kernel, or the host, waits for.
extern "C" __global__ void raise(volatile u64 *number, u64 value)
{
    __threadfence_system();
    *number = value;
}

// One thread: writes where it must not.
extern "C" __global__ void trespass(volatile u32 *memory)
{
    *memory = 1;
}
