// The kernels of a step, but for the products of matrices, which are cuBLAS's. Matrices lie by rows.

typedef unsigned int u32;
typedef unsigned long long u64;

// One thread for each element.
extern "C" __global__ void embed(u32 elements, u32 width, const u32 *tokens, const u32 *positions,
                                 const float *token_embeddings, const float *position_embeddings, float *output) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= elements) return;
    u32 row = at / width, column = at % width;
    output[at] = token_embeddings[(u64)tokens[row] * width + column] +
                 position_embeddings[(u64)positions[row] * width + column];
}

// Adds up one number of each thread of a block. `shared` has room for 32 numbers.
__device__ float sum_of_block(float value, float *shared) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(~0u, value, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
    for (u32 warp = 0; warp < (blockDim.x + 31) / 32; ++warp) sum += shared[warp];
    return sum;
}

// Finds the largest of one number of each thread of a block.
__device__ float maximum_of_block(float value, float *shared) {
    for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_down_sync(~0u, value, offset));
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    float largest = shared[0];
    for (u32 warp = 1; warp < (blockDim.x + 31) / 32; ++warp) largest = fmaxf(largest, shared[warp]);
    return largest;
}

// One block of threads for each row.
extern "C" __global__ void layer_norm(u32 width, const float *input, const float *gain, const float *bias, float *output) {
    __shared__ float shared[32];
    const float *row = input + (u64)blockIdx.x * width;
    float *out = output + (u64)blockIdx.x * width;
    float sum = 0;
    for (u32 column = threadIdx.x; column < width; column += blockDim.x) sum += row[column];
    float mean = sum_of_block(sum, shared) / width;
    float squares = 0;
    for (u32 column = threadIdx.x; column < width; column += blockDim.x) {
        float difference = row[column] - mean;
        squares += difference * difference;
    }
    float scale = rsqrtf(sum_of_block(squares, shared) / width + 1e-5f);
    for (u32 column = threadIdx.x; column < width; column += blockDim.x)
        out[column] = (row[column] - mean) * scale * gain[column] + bias[column];
}

// Writes the bias to each row, or adds it. One thread for each element.
extern "C" __global__ void bias(u32 elements, u32 width, const float *values, float *output, u32 adds) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= elements) return;
    float value = values[at % width];
    output[at] = adds ? output[at] + value : value;
}

// Where a page has the keys (0) or values (1) of a position.
__device__ float *stored(const u64 *table, u32 position, u32 page, u32 layer, u32 which, u32 width) {
    float *base = (float *)table[position / page];
    return base + ((u64)(2 * layer + which) * page + position % page) * width;
}

// One thread for each element of a row's keys and values.
extern "C" __global__ void store(u32 elements, u32 width, u32 page, u32 layer, const float *qkv, const u64 *tables,
                                 const u32 *positions, const u32 *table_starts) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= elements) return;
    u32 row = at / (2 * width), rest = at % (2 * width);
    u32 which = rest / width, column = rest % width;
    float *to = stored(tables + table_starts[row], positions[row], page, layer, which, width);
    to[column] = qkv[(u64)row * 3 * width + (1 + which) * width + column];
}

// One block of threads for each head (x) and row (y). The scores are in dynamic shared memory, behind 32 numbers.
extern "C" __global__ void attend(u32 width, u32 head, u32 page, u32 layer, const float *qkv, const u64 *tables,
                                  const u32 *positions, const u32 *table_starts, float *output) {
    extern __shared__ float memory[];
    float *shared = memory, *scores = memory + 32;
    u32 row = blockIdx.y, begin = blockIdx.x * head;
    u32 count = positions[row] + 1;
    const u64 *table = tables + table_starts[row];
    const float *query = qkv + (u64)row * 3 * width + begin;
    float scale = rsqrtf((float)head);
    float largest = -3.4e38f;
    for (u32 position = threadIdx.x; position < count; position += blockDim.x) {
        const float *keys = stored(table, position, page, layer, 0, width) + begin;
        float score = 0;
        for (u32 at = 0; at < head; ++at) score += query[at] * keys[at];
        scores[position] = score * scale;
        largest = fmaxf(largest, score * scale);
    }
    largest = maximum_of_block(largest, shared);
    float sum = 0;
    for (u32 position = threadIdx.x; position < count; position += blockDim.x) {
        scores[position] = expf(scores[position] - largest);
        sum += scores[position];
    }
    sum = sum_of_block(sum, shared);
    for (u32 at = threadIdx.x; at < head; at += blockDim.x) {
        float mixed = 0;
        for (u32 position = 0; position < count; ++position)
            mixed += scores[position] * stored(table, position, page, layer, 1, width)[begin + at];
        output[(u64)row * width + begin + at] = mixed / sum;
    }
}

extern "C" __global__ void gelu(u32 elements, float *data) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= elements) return;
    float x = data[at];
    data[at] = 0.5f * x * (1.0f + tanhf(0.7978846f * (x + 0.044715f * x * x * x)));
}

extern "C" __global__ void gather(u32 elements, u32 width, const u32 *rows, const float *input, float *output) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= elements) return;
    output[at] = input[(u64)rows[at / width] * width + at % width];
}

// The same numbers as `gumbel` in `simulated.rs`.
__device__ float gumbel(u64 seed, u64 position, u64 token) {
    u64 bits = seed ^ ((position << 32 | token) * 0x9e3779b97f4a7c15ull);
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ull;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebull;
    bits ^= bits >> 31;
    float uniform = ((float)(bits >> 40) + 0.5f) / 16777216.0f;
    return -logf(-logf(uniform));
}

// One block of 256 threads for each row. Equal values: the first token.
extern "C" __global__ void sample(u32 vocabulary, const float *logits, const float *temperatures, const u64 *seeds,
                                  const u32 *chosen, const u32 *positions, u32 *answers) {
    __shared__ float values[256];
    __shared__ u32 tokens[256];
    u32 row = blockIdx.x;
    float temperature = temperatures[row], best = -3.4e38f;
    u32 token = 0;
    for (u32 at = threadIdx.x; at < vocabulary; at += blockDim.x) {
        float value = logits[(u64)row * vocabulary + at];
        if (temperature != 0) value = value / temperature + gumbel(seeds[row], positions[chosen[row]], at);
        if (value > best) {
            best = value;
            token = at;
        }
    }
    values[threadIdx.x] = best;
    tokens[threadIdx.x] = token;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 other = 1; other < blockDim.x; ++other) {
        bool is_better = values[other] > best || (values[other] == best && tokens[other] < token);
        if (is_better) {
            best = values[other];
            token = tokens[other];
        }
    }
    answers[row] = token;
}
