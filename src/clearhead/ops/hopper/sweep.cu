// Statistics of rows and columns of the attention matrix, from (query, key, log-sum-exp), in one sweep.
//
// A thread block stays on its processor and processes one block of keys after another, WARP_GROUPS · 128 keys of one
// head, one warp group for each 128. Query tiles of 64 rows pass through a ring of buffers, which all warp groups read.
// While the tensor cores multiply for one warp group, the others exponentiate. A thread holds two rows and, of every 8
// keys, two neighbors, so column sums stay in 32 registers for all tiles of a block of keys. Row sums and bins are added
// to memory after each tile. One more warp group loads the tiles, and gives its registers to the others.
//
// Compile-time options: DTYPE ("bf16" or "f16"), HEAD_DIM (64 or 128), WARP_GROUPS, STAGES, ENTROPY, DISTANCE,
// BINS (bins that a tile overlaps along its keys; 0: no heatmap), TALL_BINS (they have more rows than a tile) and POOL_MAX
// (they hold maxima, not sums).

#include "wgmma.cuh"

constexpr int TILE_Q = 64;
constexpr int TILE_K = 128;
constexpr int PANELS = HEAD_DIM / PANEL;
constexpr int QUERY_BYTES = TILE_Q * HEAD_DIM * 2;
constexpr int KEY_BYTES = TILE_K * HEAD_DIM * 2;
constexpr int THREADS = (WARP_GROUPS + 1) * WARP_GROUP;
constexpr int WARPS = WARP_GROUPS * WARP_GROUP / WARP;  // that compute
constexpr int LOADER_REGISTERS = 32;
constexpr int REGISTERS = 160;
constexpr int ROW_SUMS = ENTROPY + DISTANCE;
constexpr int SEGMENTS = BINS > 0 ? BINS : 1;

struct Problem {
    const float* shift;  // log-sum-exp in base 2, [batch, heads, padded_rows]
    float* columns;      // [batch, heads, kv_len]
    float* row_sums;     // [ROW_SUMS, batch, heads, q_len]
    float* bins;         // [batch, heads, bin_rows, bin_columns]
    const int* ranges;   // key ranges, [range_count, 2, range_batches, q_len]; null: every query may attend to every key
    const int* seen;     // query tiles that may attend to each key block, [range_count, 4, range_batches, key_blocks]
    const long long* starts;  // position of the first query of each sequence, or null
    int* next_item;           // counter of the items that have started
    float scale;              // times log2 e
    float bin_factor;         // by which sums of bins are multiplied, a power of 2
    int heads, group, batches, q_len, kv_len, padded_rows, range_count, range_batches, start, start_stride;
    int chunks;  // parts into which the query tiles of a block are divided
    int bundle;  // heads whose blocks run at the same time
    int bin_height_bits, bin_width_bits, bin_rows, bin_columns;  // bins are powers of 2, because divisions are slow
};

// Query tiles [start, end) may attend to a key block; all rows of [full, partial) to all of its keys.
struct TileRange {
    int start, full, partial, end;
};

__device__ __forceinline__ TileRange tile_range(const Problem& problem, int range, int batch, int block) {
    int tiles = (problem.q_len + TILE_Q - 1) / TILE_Q;
    int blocks = (problem.kv_len + TILE_K - 1) / TILE_K;
    if (block >= blocks) return {0, 0, 0, 0};
    if (problem.ranges == nullptr) return {0, 0, tiles, tiles};
    int side = problem.range_batches * blocks;
    const int* found = problem.seen + 4 * range * side + batch % problem.range_batches * blocks + block;
    return {found[0], found[side], found[2 * side], found[3 * side]};
}

// Work of a thread block: WARP_GROUPS key blocks of a head, and one chunk of their query tiles.
struct Item {
    int head_index, head, batch, first_block, chunk;
};

__device__ __forceinline__ int item_blocks(const Problem& problem) {
    return (problem.kv_len + WARP_GROUPS * TILE_K - 1) / (WARP_GROUPS * TILE_K);
}

// Items are ordered by bundles of heads; within a bundle, the first key blocks of all heads precede the second ones.
__device__ __forceinline__ Item item_of(const Problem& problem, int index) {
    int head_items = item_blocks(problem) * problem.chunks;
    int first_head = index / (head_items * problem.bundle) * problem.bundle;
    int bundle_heads = min(problem.heads * problem.batches - first_head, problem.bundle);
    int rest = index - first_head * head_items;
    int head = first_head + rest % bundle_heads, part = rest / bundle_heads;
    return {head, head % problem.heads, head / problem.heads, part / problem.chunks * WARP_GROUPS,
            part % problem.chunks};
}

// Query tiles [first, last) that a thread block streams for one range.
struct Part {
    int first, last;
};

__device__ __forceinline__ Part part_of(const Problem& problem, int range, const Item& item) {
    int first = 0x7FFFFFFF, last = 0;
    for (int i = 0; i < WARP_GROUPS; i++) {
        TileRange tiles = tile_range(problem, range, item.batch, item.first_block + i);
        if (tiles.start < tiles.end) {
            first = min(first, tiles.start);
            last = max(last, tiles.end);
        }
    }
    if (first >= last) return {0, 0};
    long long count = last - first;
    return {first + (int)(count * item.chunk / problem.chunks),
            first + (int)(count * (item.chunk + 1) / problem.chunks)};
}

// Returns the first tile that starts at a query or after it.
__device__ __forceinline__ int first_tile(long long query) {
    long long tile = query <= 0 ? 0 : (query + TILE_Q - 1) / TILE_Q;
    return tile > 0x7FFFFFFF ? 0x7FFFFFFF : (int)tile;
}

struct RowSums {
    float entropy[2], distance[2];  // of the thread's two rows
};

// Exponentiates the products of a tile and adds them up. `shift`, `first` and `last` are the log-sum-exp and the range of
// keys of the thread's two rows; `distance` is that of the first row. Keys and distances count from the thread's first
// key. A PARTIAL tile is partly masked, or the diagonal crosses it.
template <bool PARTIAL>
__device__ __forceinline__ RowSums add_tile(
    const float (&products)[64], float (&columns)[32], float (&bins)[SEGMENTS], float scale, const float (&shift)[2],
    const int (&first)[2], const int (&last)[2], float distance) {
    RowSums sums = {};
    // distance of each row from the two neighbors at 8 j; the second row is 8 rows below the first, so its distance was
    // that of the first row one step before
    float away[2][2] = {{0.0f, 0.0f}, {distance + 8.0f, distance + 7.0f}};
#pragma unroll
    for (int j = 0; j < 16; j++) {
        float& bin = bins[j * SEGMENTS / 16];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            away[0][e] = distance - (float)(8 * j + e);
            float weights[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float logarithm = fmaf(products[4 * j + 2 * i + e], scale, -shift[i]);
                float weight = exp2_fast(logarithm);
                if (PARTIAL) weight = 8 * j + e >= first[i] && 8 * j + e < last[i] ? weight : 0.0f;
                if (PARTIAL) logarithm = weight > 0.0f ? logarithm : 0.0f;  // 0 · −∞ and 0 · nan would be nan
                if (ENTROPY) sums.entropy[i] = fmaf(weight, logarithm, sums.entropy[i]);
                if (DISTANCE) sums.distance[i] = fmaf(weight, PARTIAL ? fabsf(away[i][e]) : away[i][e], sums.distance[i]);
                weights[i] = weight;
            }
            if (BINS > 0) {
                float both = weights[0] + weights[1];
                columns[2 * j + e] += both;
                bin = POOL_MAX ? fmaxf(bin, fmaxf(weights[0], weights[1])) : bin + both;
            } else {
                columns[2 * j + e] += weights[0];
                columns[2 * j + e] += weights[1];
            }
            away[1][e] = away[0][e];
        }
    }
    return sums;
}

// Adds row sums over the 4 threads that share two rows, and the result to memory. Odd threads store the second row. With
// two sums, threads 2 and 3 of each four store the distance. `target` is the thread's address.
__device__ __forceinline__ void store_row_sums(float* target, bool exists, const RowSums& sums, int lane) {
    bool second = lane & 1, other = lane & 2;
    if (ROW_SUMS == 2) {
        float entropy = second ? sums.entropy[1] : sums.entropy[0], distance = second ? sums.distance[1] : sums.distance[0];
        entropy += __shfl_xor_sync(0xFFFFFFFF, second ? sums.entropy[0] : sums.entropy[1], 1);
        distance += __shfl_xor_sync(0xFFFFFFFF, second ? sums.distance[0] : sums.distance[1], 1);
        float sum = (other ? distance : entropy) + __shfl_xor_sync(0xFFFFFFFF, other ? entropy : distance, 2);
        if (exists) add_to_memory(target, other ? sum : sum * -LN_2);
    } else {
        const float(&values)[2] = ENTROPY ? sums.entropy : sums.distance;
        float sum = (second ? values[1] : values[0]) + __shfl_xor_sync(0xFFFFFFFF, second ? values[0] : values[1], 1);
        sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
        if (exists && !other) add_to_memory(target, ENTROPY ? sum * -LN_2 : sum);
    }
}

__device__ __forceinline__ float combined(float left, float right) {
    return POOL_MAX ? fmaxf(left, right) : left + right;
}

// Combines the bins of a warp over its threads, and the result with memory. At each step the threads of a pair
// exchange halves of their bins, until each thread has one.
__device__ __forceinline__ void store_bins(
    const Problem& problem, float* heatmap, float (&sums)[SEGMENTS], int row, int key, int lane) {
    int index = 0;
#pragma unroll
    for (int step = 1, half = SEGMENTS / 2; step < WARP; step *= 2, half /= 2) {
        bool upper = lane & step;
        index += upper ? half : 0;
#pragma unroll
        for (int i = 0; i < SEGMENTS / 2; i++)
            if (i < half) {
                float sent = upper ? sums[i] : sums[i + half];
                sums[i] = combined(upper ? sums[i + half] : sums[i], __shfl_xor_sync(0xFFFFFFFF, sent, step));
            }
        if (half == 0) sums[0] = combined(sums[0], __shfl_xor_sync(0xFFFFFFFF, sums[0], step));
    }
    int bin_row = row >> problem.bin_height_bits, bin_column = (key >> problem.bin_width_bits) + index;
    if (lane < SEGMENTS && bin_row < problem.bin_rows && bin_column < problem.bin_columns) {
        float* target = heatmap + (long long)bin_row * problem.bin_columns + bin_column;
        if (POOL_MAX)
            atomicMax((int*)target, __float_as_int(sums[0]));  // weights are not negative
        else
            add_to_memory(target, sums[0] * problem.bin_factor);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sweep(const __grid_constant__ TensorMap query_map, const __grid_constant__ TensorMap key_map,
          const __grid_constant__ Problem problem) {
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ int item_index;  // negative: there are no more
    u32 keys = shared_address(memory);
    u32 queries = keys + WARP_GROUPS * KEY_BYTES;
    u32 filled = queries + STAGES * QUERY_BYTES;  // one barrier for each buffer of the ring
    u32 released = filled + 8 * STAGES;
    u32 keys_filled = released + 8 * STAGES, keys_released = keys_filled + 8;
    int warp_group = uniform(threadIdx.x / WARP_GROUP);
    int thread = threadIdx.x % WARP_GROUP;
    int range_count = problem.ranges == nullptr ? 1 : problem.range_count;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            init_barrier(filled + 8 * i, 1);
            init_barrier(released + 8 * i, WARPS);
        }
        init_barrier(keys_filled, 1);
        init_barrier(keys_released, WARPS * WARP);  // every thread that reads the item arrives
        fence_barriers();
    }
    __syncthreads();

    if (warp_group == WARP_GROUPS) {
        lower_registers<LOADER_REGISTERS>();
        if (thread > 0) return;
        int items = item_blocks(problem) * problem.chunks * problem.heads * problem.batches;
        Ring<STAGES> ring;
        for (int parity = 0;; parity ^= 1) {
            int index = atomicAdd(problem.next_item, 1);
            wait(keys_released, parity ^ 1);  // at first, the memory is free
            item_index = index < items ? index : -1;
            if (index >= items) {
                arrive(keys_filled);
                return;
            }
            Item item = item_of(problem, index);
            expect_bytes(keys_filled, WARP_GROUPS * KEY_BYTES);
#pragma unroll 1
            for (int i = 0; i < WARP_GROUPS; i++)
                for (int panel = 0; panel < PANELS; panel++)
                    load_box(keys + i * KEY_BYTES + panel * TILE_K * 128, &key_map, keys_filled, panel * PANEL,
                             (item.first_block + i) * TILE_K, item.head / problem.group, item.batch);
            for (int range = 0; range < range_count; range++) {
                Part part = part_of(problem, range, item);
                for (int tile = part.first; tile < part.last; tile++, ring.advance()) {
                    u32 barrier = filled + 8 * ring.stage;
                    wait(released + 8 * ring.stage, ring.parity ^ 1);
                    expect_bytes(barrier, QUERY_BYTES);
                    for (int panel = 0; panel < PANELS; panel++)
                        load_box(queries + ring.stage * QUERY_BYTES + panel * TILE_Q * 128, &query_map, barrier,
                                 panel * PANEL, tile * TILE_Q, item.head, item.batch);
                }
            }
        }
    }

    raise_registers<REGISTERS>();
    int lane = thread % WARP;
    int warp_row = uniform(thread / WARP) * 16;
    int thread_row = warp_row + (lane >> 2);
    int sum_row = thread_row + (lane & 1 ? 8 : 0);  // whose sums this thread adds to memory
    u64 right = panel_descriptor(keys + warp_group * KEY_BYTES);
    Ring<STAGES> ring;

    for (int parity = 0;; parity ^= 1) {
        wait(keys_filled, parity);
        int index = item_index;
        if (index < 0) break;
        Item item = item_of(problem, index);
        int block = item.first_block + warp_group;
        int key_start = block * TILE_K;
        int column = key_start + 2 * (lane & 3);
        long long head_row = (long long)item.head_index * problem.padded_rows;
        float* heatmap = problem.bins + (long long)item.head_index * problem.bin_rows * problem.bin_columns;
        long long start =
            problem.starts == nullptr ? problem.start : problem.starts[item.batch * problem.start_stride];
        long long first_distance = start + thread_row - column;
        bool whole = key_start + TILE_K <= problem.kv_len;
        // No query of the tiles from `below` on precedes a key of the block, and none of those before `above` follows one.
        int below = first_tile(key_start + TILE_K - 1 - start), above = first_tile(key_start + 2 - TILE_Q - start);
        float columns[32] = {}, bins[SEGMENTS] = {};

        for (int range = 0; range < range_count; range++) {
            Part part = part_of(problem, range, item);
            TileRange mine = tile_range(problem, range, item.batch, block);
            if (!whole) mine.full = mine.end;
            bool is_last = range + 1 == range_count;
            if (is_last && part.first == part.last) arrive(keys_released);
            const float* shifts = problem.shift + head_row + part.first * TILE_Q + thread_row;
            long long sum_index = (long long)item.head_index * problem.q_len + part.first * TILE_Q + sum_row;
            if (ROW_SUMS == 2 && lane & 2) sum_index += (long long)problem.batches * problem.heads * problem.q_len;
            float* row_sums = problem.row_sums + sum_index;
            for (int tile = part.first; tile < part.last;
                 tile++, ring.advance(), shifts += TILE_Q, row_sums += TILE_Q) {
                bool needed = tile >= mine.start && tile < mine.end;
                float shift[2] = {shifts[0], shifts[8]};
                float products[64];
                wait(filled + 8 * ring.stage, ring.parity);
                if (needed) {
                    u64 left = panel_descriptor(queries + ring.stage * QUERY_BYTES);
                    start_products();
                    multiply_64x128<0>(products, left, right);
#pragma unroll
                    for (int k = 1; k < HEAD_DIM / 16; k++)
                        multiply_64x128<1>(products, left + (k / 4 * TILE_Q * 128 + k % 4 * 32 >> 4),
                                           right + (k / 4 * TILE_K * 128 + k % 4 * 32 >> 4));
                    commit_products();
                }
                wait_for_products<0>();
                keep_order(products);
                if (lane == 0) arrive(released + 8 * ring.stage);
                if (is_last && tile + 1 == part.last) arrive(keys_released);
                if (!needed) continue;

                float distance = (float)(first_distance + tile * TILE_Q);
                RowSums sums;
                if (tile < mine.full || tile >= mine.partial || DISTANCE && tile < below && tile >= above) {
                    int first[2], last[2];
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        int row = tile * TILE_Q + thread_row + 8 * i;
                        first[i] = -column;
                        last[i] = problem.kv_len - column;
                        if (row >= problem.q_len) {
                            last[i] = first[i];
                        } else if (problem.ranges != nullptr) {
                            long long side = (long long)problem.range_batches * problem.q_len;
                            const int* ends = problem.ranges + 2 * range * side +
                                              (long long)(item.batch % problem.range_batches) * problem.q_len + row;
                            first[i] = ends[0] - column;
                            last[i] = ends[side] - column;
                        }
                    }
                    sums = add_tile<true>(products, columns, bins, problem.scale, shift, first, last, distance);
                } else {
                    int unused[2] = {};
                    sums = add_tile<false>(products, columns, bins, problem.scale, shift, unused, unused, distance);
                    if (tile < below) sums.distance[0] = -sums.distance[0], sums.distance[1] = -sums.distance[1];
                }
                if (ROW_SUMS > 0)
                    store_row_sums(row_sums, tile * TILE_Q + sum_row < problem.q_len, sums, lane);
                bool last_of_bin = ((tile + 1) * TILE_Q & (1 << problem.bin_height_bits) - 1) == 0;
                if (BINS > 0 && (!TALL_BINS || last_of_bin || tile + 1 == min(mine.end, part.last))) {
                    store_bins(problem, heatmap, bins, tile * TILE_Q + warp_row, key_start, lane);
#pragma unroll
                    for (int i = 0; i < SEGMENTS; i++) bins[i] = 0.0f;
                }
            }
        }

#pragma unroll
        for (int step = 4; step < WARP; step *= 2)
#pragma unroll
            for (int i = 0; i < 32; i++) columns[i] += __shfl_xor_sync(0xFFFFFFFF, columns[i], step);
        float* received = problem.columns + (long long)item.head_index * problem.kv_len;
        if (lane < 4)
#pragma unroll
            for (int i = 0; i < 32; i++) {
                int key = column + 8 * (i / 2) + i % 2;
                if (key < problem.kv_len) add_to_memory(received + key, columns[i]);
            }
    }
}
