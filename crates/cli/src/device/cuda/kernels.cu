// Kernels of a replay: they use blocks as a model would, and run for a given time.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// The device's own clock, in nanoseconds.
static __device__ u64 now() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Holds the stream until that time, and for `longest` at most, whatever the clock shows.
static __device__ void hold(u64 until, u64 longest) {
    const u64 began = now();
    u64 time = began;
    while (time < until && time - began < longest) {
        time = now();
    }
}

static __device__ void touch(volatile u8* block, u64 bytes) {
    if (bytes > 0) {
        block[0] = 1;
        block[bytes - 1] = 1;
    }
}

// The pattern at a word of the block of an allocation: SplitMix64 of both.
static __device__ u64 pattern(u64 id, u64 word) {
    u64 mixed = (id + 1) * 0x9e3779b97f4a7c15ULL ^ (word << 32 | word >> 32);
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebULL;
    return mixed ^ mixed >> 31;
}

static __device__ u8 byte_of_pattern(u64 id, u64 at) {
    return (u8)(pattern(id, at / 8) >> at % 8 * 8);
}

static __device__ u64 first_word(u64 step) {
    return ((u64)blockIdx.x * blockDim.x + threadIdx.x) * step;
}

static __device__ u64 to_next_word(u64 step) {
    return (u64)gridDim.x * blockDim.x * step;
}

// The first of the last bytes of a block, up to 8: one thread handles them, since they may be no whole word.
static __device__ u64 last_bytes(u64 bytes) {
    return bytes < 8 ? 0 : bytes - 8;
}

extern "C" __global__ void tell_time(u64* into) {
    *into = now();
}

extern "C" __global__ void hold_stream(u64 until, u64 longest) {
    hold(until, longest);
}

// Touches the ends of a block from the beginning of a use to its end.
extern "C" __global__ void use_block(u8* block, u64 bytes, u64 until, u64 longest) {
    touch(block, bytes);
    hold(until, longest);
    touch(block, bytes);
}

// Writes every `step`th word of a block, and its last bytes.
extern "C" __global__ void fill_block(u8* block, u64 bytes, u64 id, u64 step) {
    u64* words = (u64*)block;
    for (u64 at = first_word(step); at < bytes / 8; at += to_next_word(step)) {
        words[at] = pattern(id, at);
    }
    if (first_word(1) == 0) {
        for (u64 at = last_bytes(bytes); at < bytes; ++at) {
            block[at] = byte_of_pattern(id, at);
        }
    }
}

// Reads what `fill_block` wrote with the same arguments, and marks the allocation if it differs.
extern "C" __global__ void check_block(const u8* block, u64 bytes, u64 id, u64 step, u32* damaged) {
    const u64* words = (const u64*)block;
    bool is_sound = true;
    for (u64 at = first_word(step); at < bytes / 8; at += to_next_word(step)) {
        is_sound = is_sound && words[at] == pattern(id, at);
    }
    if (first_word(1) == 0) {
        for (u64 at = last_bytes(bytes); at < bytes; ++at) {
            is_sound = is_sound && block[at] == byte_of_pattern(id, at);
        }
    }
    if (!is_sound) {
        damaged[id] = 1;
    }
}
