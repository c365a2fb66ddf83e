// Output and log-sum-exp of attention.
//
// Each warp group of a block of queries starts two products together: the next scores, and the last weights times their
// values. During the second it exponentiates the scores or, if maxima are running, finds their maxima.
//
// Weights are relative to a number for each row, which cancels out. It need not be the maximum of the row: in bfloat16,
// weights have the exponents of floats. There, only the first tile of a row and tiles that the mask divides update the
// maximum and rescale the output. If a later product is so much larger that a sum could overflow, the block of queries is
// processed again with running maxima. In float16, maxima are always running.
//
// Compile-time options: DTYPE ("bf16" or "f16"), HEAD_DIM (64 or 128), WARP_GROUPS and STAGES.

#include "query_blocks.cuh"

struct Problem {
    void* output;       // [batch, heads, q_len, HEAD_DIM]
    float* lse;         // [batch, heads, q_len]
    const int* ranges;  // key ranges, [range_count, 2, range_batches, q_len]; null: every query may attend to every key
    const float* sinks;  // [heads], or null
    int* next_item;      // counter of the blocks of queries that have started
    float scale;         // times log2 e, positive
    int heads, group, batches, q_len, kv_len, range_count, range_batches;
    int bundle;  // heads whose blocks run at the same time
};

// Running maximum of the products, and this thread's part of the sum of exponentials, of the thread's two rows.
struct Softmax {
    float maximum[2] = {-INFINITE, -INFINITE}, sum[2] = {};
};

constexpr bool WIDE_EXPONENTS = DTYPE[0] == 'b';  // weights have the exponents of floats
// Largest sum of a thread's weights with maxima that stay. The output does not overflow if values are below 2^60.
constexpr float LARGEST_SUM = 0x1p64f;

// Replaces the products of a tile by weights relative to the running maximum. `rescale` receives the factors of
// everything that was added up before. Keys count from the thread's first key.
template <bool MASKED>
__device__ __forceinline__ void exponentiate_running(
    float (&products)[64], Softmax& softmax, float (&rescale)[2], float scale, const int (&first)[2],
    const int (&last)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float maximum = softmax.maximum[i];
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float& product = products[4 * j + 2 * i + e];
                if (MASKED) product = 8 * j + e >= first[i] && 8 * j + e < last[i] ? product : -INFINITE;
                maximum = fmaxf(maximum, product);
            }
        maximum = fmaxf(maximum, __shfl_xor_sync(0xFFFFFFFF, maximum, 1));
        maximum = fmaxf(maximum, __shfl_xor_sync(0xFFFFFFFF, maximum, 2));
        // a row with no key yet has the maximum −∞; subtracting it would give nan
        float pivot = maximum == -INFINITE ? 0.0f : maximum;
        rescale[i] = exp2_fast((softmax.maximum[i] - pivot) * scale);  // exactly 1 if the maximum is the same
        float shift = pivot * scale, sum = softmax.sum[i] * rescale[i];
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float& product = products[4 * j + 2 * i + e];
                product = exp2_fast(fmaf(product, scale, -shift));
                sum += product;
            }
        softmax.maximum[i] = maximum;
        softmax.sum[i] = sum;
    }
}

// Replaces the products of a tile, to which all rows may attend, by weights relative to the maximum found before.
__device__ __forceinline__ void exponentiate_fixed(float (&products)[64], Softmax& softmax, float scale) {
    float shift[2] = {softmax.maximum[0] * scale, softmax.maximum[1] * scale};
#pragma unroll
    for (int cell = 0; cell < 64; cell++) {
        int i = cell / 2 % 2;
        products[cell] = exp2_fast(fmaf(products[cell], scale, -shift[i]));
        softmax.sum[i] += products[cell];
    }
}

// Returns whether all rows of the warp have a maximum.
__device__ __forceinline__ bool have_maxima(const Softmax& softmax) {
    return __all_sync(0xFFFFFFFF, fminf(softmax.maximum[0], softmax.maximum[1]) > -INFINITE);
}

// Exchanges four words of each thread of a quad, so that thread i has the words i of all four threads, in order.
__device__ __forceinline__ void transpose_quad(u32 (&words)[4], int lane) {
    bool odd = lane & 1, upper = lane & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        u32 received = __shfl_xor_sync(0xFFFFFFFF, odd ? words[i] : words[i + 1], 1);
        words[i] = odd ? received : words[i];
        words[i + 1] = odd ? words[i + 1] : received;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 received = __shfl_xor_sync(0xFFFFFFFF, upper ? words[i] : words[i + 2], 2);
        words[i] = upper ? received : words[i];
        words[i + 2] = upper ? words[i + 2] : received;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    forward(const __grid_constant__ TensorMap query_map, const __grid_constant__ TensorMap key_map,
            const __grid_constant__ TensorMap value_map, const __grid_constant__ Problem problem) {
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ Item items[ITEMS];
    u32 queries = shared_address(memory);
    u32 tiles = queries + ITEMS * WARP_GROUPS * QUERY_BYTES, barriers = tiles + 2 * STAGES * TILE_BYTES;
    Buffers keys = {tiles, barriers, barriers + 8 * STAGES};
    Buffers values = {keys.tiles + STAGES * TILE_BYTES, barriers + 16 * STAGES, barriers + 24 * STAGES};
    ItemBuffers blocks = {items, queries, barriers + 32 * STAGES, barriers + 32 * STAGES + 8 * ITEMS};
    int warp_group = uniform(threadIdx.x / WARP_GROUP);
    int thread = threadIdx.x % WARP_GROUP, lane = thread % WARP;

    if (threadIdx.x == 0) {
        keys.init_barriers();
        values.init_barriers();
        blocks.init();
        fence_barriers();
    }
    __syncthreads();

    if (warp_group == WARP_GROUPS) {
        lower_registers<LOADER_REGISTERS>();
        if (thread >= WARP) return;
        Ring<STAGES> key_ring, value_ring;
        blocks.load_all(problem, query_map, lane, [&](const Item& item, const Block& block) {
            int head = block.head / problem.group, previous = -1;
            for (int range = 0; range < range_count(problem); range++)
                for (int tile = item.bounds[range].start; tile < item.bounds[range].end; tile++) {
                    keys.load(key_map, key_ring, tile, head, block.batch);
                    if (previous >= 0) values.load(value_map, value_ring, previous, head, block.batch);
                    previous = tile;
                }
            if (previous >= 0) values.load(value_map, value_ring, previous, head, block.batch);
        });
        return;
    }

    raise_registers<REGISTERS>();
    int thread_row = warp_group * ROWS + uniform(thread / WARP) * 16 + (lane >> 2);
    Ring<STAGES> key_ring, value_ring;

    for (Ring<ITEMS> item_ring;; item_ring.advance()) {
        const Item& item = items[item_ring.stage];
        wait(blocks.filled + 8 * item_ring.stage, item_ring.parity);
        int index = item.index;
        if (index < 0) break;
        Rows left(blocks.rows(item_ring.stage, warp_group), thread);
        Block block = block_of(problem, index);
        float output[HEAD_DIM / 2] = {};
        float products[64];
        u32 weights[32];
        Softmax softmax;
        bool started = false, fits = true;
        bool fixes = WIDE_EXPONENTS && !item.repeated, fixed = false;  // whether the maxima may stay, and whether they do

        auto multiply_values = [&]() {
            u64 right = transposed_panels(values.tiles + value_ring.stage * TILE_BYTES, TILE_K * 128);
#pragma unroll
            for (int k = 0; k < TILE_K / 16; k++)
                multiply_rows(output, weights[4 * k], weights[4 * k + 1], weights[4 * k + 2], weights[4 * k + 3],
                              right + (k * 16 * 128 >> 4));
            commit_products();
        };
        auto release = [&](u32 barriers, Ring<STAGES>& ring) {
            if (lane == 0) arrive(barriers + 8 * ring.stage);
            ring.advance();
        };
        auto check_sums = [&]() {  // nan does not fit either
            fits = fits && softmax.sum[0] <= LARGEST_SUM && softmax.sum[1] <= LARGEST_SUM;
        };
        auto convert = [&]() {
#pragma unroll
            for (int i = 0; i < 32; i++) weights[i] = packed(products[2 * i], products[2 * i + 1]);
        };

        for (int range = 0; range < range_count(problem); range++) {
            int start = item.bounds[range].start, end = item.bounds[range].end;
            int full = item.bounds[range].full[warp_group], partial = item.bounds[range].partial[warp_group];
            if (start >= end) continue;
            Range ends[2];
#pragma unroll
            for (int i = 0; i < 2; i++)
                ends[i] = range_of(problem, range, block.batch, block.first_row + thread_row + 8 * i);

            auto step = [&](auto masked, int tile) {
                int column = tile * TILE_K + 2 * (lane & 3);
                int first[2] = {ends[0].first - column, ends[1].first - column};
                int last[2] = {ends[0].last - column, ends[1].last - column};
                float rescale[2];
                wait(keys.filled + 8 * key_ring.stage, key_ring.parity);
                start_products();
                multiply_keys(products, left, keys.tiles + key_ring.stage * TILE_BYTES);
                wait(values.filled + 8 * value_ring.stage, value_ring.parity);
                multiply_values();
                wait_for_products<1>();
                keep_order(products);
                release(keys.released, key_ring);
                bool running = masked.VALUE || !fixed;
                if (running) {
                    check_sums();  // a larger maximum would hide that the output has overflowed
                    // in bfloat16, usually few tiles have running maxima, so the code for masked tiles serves for all
                    exponentiate_running<masked.VALUE || WIDE_EXPONENTS>(
                        products, softmax, rescale, problem.scale, first, last);
                } else {
                    exponentiate_fixed(products, softmax, problem.scale);
                }
                wait_for_products<0>();
                keep_order(output);
                release(values.released, value_ring);
                if (running) {
#pragma unroll
                    for (int i = 0; i < HEAD_DIM / 2; i++) output[i] *= rescale[i / 2 % 2];
                    fixed = fixes && have_maxima(softmax);
                }
                convert();
            };

            for (int tile = start; tile < end; tile++) {
                if (!started) {
                    int column = tile * TILE_K + 2 * (lane & 3);
                    int first[2] = {ends[0].first - column, ends[1].first - column};
                    int last[2] = {ends[0].last - column, ends[1].last - column};
                    float rescale[2];
                    wait(keys.filled + 8 * key_ring.stage, key_ring.parity);
                    start_products();
                    multiply_keys(products, left, keys.tiles + key_ring.stage * TILE_BYTES);
                    wait_for_products<0>();
                    keep_order(products);
                    release(keys.released, key_ring);
                    exponentiate_running<true>(products, softmax, rescale, problem.scale, first, last);
                    fixed = fixes && have_maxima(softmax);
                    convert();
                    started = true;
                } else if (tile * TILE_K < full || tile * TILE_K + TILE_K > partial) {
                    step(Constant<true>(), tile);
                } else {
                    step(Constant<false>(), tile);
                }
            }
        }
        check_sums();
        if (fixes && !fits) atomicOr(&items[item_ring.stage].failed, 1);
        arrive(blocks.released + 8 * item_ring.stage);
        if (started) {
            wait(values.filled + 8 * value_ring.stage, value_ring.parity);
            start_products();
            multiply_values();
            wait_for_products<0>();
            keep_order(output);
            release(values.released, value_ring);
        }

#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum = softmax.sum[i], maximum = softmax.maximum[i] * problem.scale, factor = 1.0f;
            sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
            sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
            if (problem.sinks != nullptr) {
                // a sink is one more key without a value
                float sink = problem.sinks[block.head] * (1.0f / LN_2), pivot = fmaxf(maximum, sink);
                if (pivot > -INFINITE) {
                    factor = exp2_fast(maximum - pivot);
                    sum = sum * factor + exp2_fast(sink - pivot);
                    maximum = pivot;
                }
            }
            bool has_key = sum != 0.0f;  // also if it is NaN
            factor = has_key ? factor / sum : 1.0f;
            int row = block.first_row + thread_row + 8 * i;
            long long row_index = ((long long)block.batch * problem.heads + block.head) * problem.q_len + row;
            if (row < problem.q_len && (lane & 3) == 0)
                problem.lse[row_index] = has_key ? (maximum + log2_fast(sum)) * LN_2 : -INFINITE;
#pragma unroll
            for (int j = 0; j < HEAD_DIM / 32; j++) {
                u32 words[4];
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    int cell = 4 * (4 * j + k) + 2 * i;
                    words[k] = packed(output[cell] * factor, output[cell + 1] * factor);
                }
                transpose_quad(words, lane);
                if (row < problem.q_len)
                    store_16_bytes((char*)problem.output + row_index * HEAD_DIM * 2 + (4 * j + (lane & 3)) * 16, words);
            }
        }
    }
}
