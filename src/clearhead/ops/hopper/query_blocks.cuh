// Blocks of queries that stay in a thread block while tiles of keys pass: their order, their key ranges and their loads.
//
// A thread block stays on its processor and processes one block of queries after another, WARP_GROUPS · 64 rows of one
// head. The first warp of one more warp group loads tiles of 128 keys through a ring of buffers, and runs ahead into the
// next block of queries. A block that fails is loaded once more.
//
// Compile-time options: HEAD_DIM (64 or 128), WARP_GROUPS and STAGES. `Problem` is the argument structure of a kernel.

#pragma once

#include "wgmma.cuh"

constexpr int TILE_K = 128;
constexpr int ROWS = 64;  // of a warp group
constexpr int PANELS = HEAD_DIM / PANEL;
constexpr int QUERY_BYTES = ROWS * HEAD_DIM * 2;
constexpr int TILE_BYTES = TILE_K * HEAD_DIM * 2;
constexpr int THREADS = (WARP_GROUPS + 1) * WARP_GROUP;
constexpr int WARPS = WARP_GROUPS * WARP_GROUP / WARP;  // that compute
constexpr int LOADER_REGISTERS = 24;
constexpr int REGISTERS = WARP_GROUPS == 2 ? 240 : 160;
constexpr int ITEMS = 2;  // blocks of queries that are loaded at the same time
constexpr int MAX_RANGES = 8;
#define INFINITE __int_as_float(0x7F800000)

// Tiles [start, end) that some row of a block of queries may attend to, and the keys [full, partial) that all rows of
// each warp group may attend to.
struct Bounds {
    int start, end, full[WARP_GROUPS], partial[WARP_GROUPS];
};

struct Item {
    int index;     // of the block of queries; negative: there are no more
    int failed;    // whether a thread asks to process the block once more
    int repeated;  // whether this is the second time
    Bounds bounds[MAX_RANGES];
};

struct Block {
    int first_row, head, batch;
};

// Blocks are ordered by bundles of heads. Within a bundle, the last queries of all heads come first: under a causal mask
// they attend to most keys, and the longest work starts first.
template <class Problem>
__device__ __forceinline__ Block block_of(const Problem& problem, int index) {
    int blocks = (problem.q_len + WARP_GROUPS * ROWS - 1) / (WARP_GROUPS * ROWS);
    int first_head = index / (blocks * problem.bundle) * problem.bundle;
    int bundle_heads = min(problem.heads * problem.batches - first_head, problem.bundle);
    int rest = index - first_head * blocks;
    int head = first_head + rest % bundle_heads;
    return {(blocks - 1 - rest / bundle_heads) * WARP_GROUPS * ROWS, head % problem.heads, head / problem.heads};
}

template <class Problem>
__device__ __forceinline__ int range_count(const Problem& problem) {
    return problem.ranges == nullptr ? 1 : problem.range_count;
}

struct Range {
    int first, last;
};

// Returns the range of keys of a row; a row beyond the last has an empty range.
template <class Problem>
__device__ __forceinline__ Range range_of(const Problem& problem, int range, int batch, int row) {
    if (row >= problem.q_len) return {0, 0};
    if (problem.ranges == nullptr) return {0, problem.kv_len};
    long long side = (long long)problem.range_batches * problem.q_len;
    const int* ends =
        problem.ranges + 2 * range * side + (long long)(batch % problem.range_batches) * problem.q_len + row;
    return {ends[0], ends[side]};
}

// Stores the bounds of a block of queries; all threads of a warp take part.
template <class Problem>
__device__ __forceinline__ void store_bounds(
    Bounds& bounds, const Problem& problem, int range, const Block& block, int lane) {
    int start = problem.kv_len, end = 0;
#pragma unroll 1
    for (int i = 0; i < WARP_GROUPS; i++) {
        int full = 0, partial = problem.kv_len;
#pragma unroll
        for (int j = 0; j < ROWS / WARP; j++) {
            int row = block.first_row + i * ROWS + j * WARP + lane;
            Range keys = range_of(problem, range, block.batch, row);
            if (keys.first < keys.last) {
                start = min(start, keys.first);
                end = max(end, keys.last);
            } else {
                keys = {problem.kv_len, 0};
            }
            if (row < problem.q_len) {
                full = max(full, keys.first);
                partial = min(partial, keys.last);
            }
        }
        full = __reduce_max_sync(0xFFFFFFFF, full);
        partial = __reduce_min_sync(0xFFFFFFFF, partial);
        if (lane == 0) {
            bounds.full[i] = full;
            bounds.partial[i] = partial;
        }
    }
    start = __reduce_min_sync(0xFFFFFFFF, start);
    end = __reduce_max_sync(0xFFFFFFFF, end);
    if (lane == 0) {
        bounds.start = start / TILE_K;
        bounds.end = (end + TILE_K - 1) / TILE_K;
    }
}

// Ring of tiles of keys or values, and its barriers.
struct Buffers {
    u32 tiles, filled, released;

    __device__ __forceinline__ void init_barriers() const {
        for (int i = 0; i < STAGES; i++) {
            init_barrier(filled + 8 * i, 1);
            init_barrier(released + 8 * i, WARPS);
        }
    }

    __device__ __forceinline__ void load(
        const TensorMap& map, Ring<STAGES>& ring, int tile, int head, int batch) const {
        u32 barrier = filled + 8 * ring.stage;
        wait(released + 8 * ring.stage, ring.parity ^ 1);  // at first, the buffers are free
        expect_bytes(barrier, TILE_BYTES);
        for (int panel = 0; panel < PANELS; panel++)
            load_box(tiles + ring.stage * TILE_BYTES + panel * TILE_K * 128, &map, barrier, panel * PANEL,
                     tile * TILE_K, head, batch);
        ring.advance();
    }
};

// The query rows of a warp group: in registers if there are enough, because tensor cores then read less shared memory.
template <bool IN_REGISTERS>
struct QueryRows {
    u32 registers[HEAD_DIM / 16][4];

    __device__ __forceinline__ QueryRows(u32 address, int thread) {
        int row = thread / WARP * 16 + thread % 16;
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k++) {
            int chunk = 2 * (k % 4) + thread % WARP / 16;  // of 8 columns; the swizzle exchanges those of a panel's row
            load_matrices(registers[k], address + (k / 4 * ROWS + row) * 128 + (chunk ^ row % 8) * 16);
        }
    }

    __device__ __forceinline__ const u32 (&step(int k) const)[4] { return registers[k]; }
};

template <>
struct QueryRows<false> {
    u64 descriptor;

    __device__ __forceinline__ QueryRows(u32 address, int) : descriptor(panel_descriptor(address)) {}

    __device__ __forceinline__ u64 step(int k) const {
        return descriptor + (k / 4 * ROWS * 128 + k % 4 * 32 >> 4);
    }
};

using Rows = QueryRows<WARP_GROUPS == 2>;

// products [64, 128] = rows of queries · tile of keysᵀ. The tensor cores start; `wait_for_products` waits for them.
__device__ __forceinline__ void multiply_keys(float (&products)[64], const Rows& left, u32 tile) {
    u64 right = panel_descriptor(tile);
    multiply_64x128<0>(products, left.step(0), right);
#pragma unroll
    for (int k = 1; k < HEAD_DIM / 16; k++)
        multiply_64x128<1>(products, left.step(k), right + (k / 4 * TILE_K * 128 + k % 4 * 32 >> 4));
    commit_products();
}

// The ring of blocks of queries, of which ITEMS are in shared memory.
struct ItemBuffers {
    Item* items;
    u32 queries, filled, released;

    __device__ __forceinline__ void init() const {
        for (int i = 0; i < ITEMS; i++) {
            init_barrier(filled + 8 * i, 1);
            init_barrier(released + 8 * i, WARPS * WARP);  // every thread that reads the item arrives
            items[i].failed = 0;
        }
    }

    __device__ __forceinline__ u32 rows(int stage, int warp_group) const {
        return queries + (stage * WARP_GROUPS + warp_group) * QUERY_BYTES;
    }

    // Loads one block of queries after another, and a second time those that failed; all threads of a warp take part. One
    // of them calls `load_tiles` for each block, with its item.
    template <class Problem, class LoadTiles>
    __device__ __forceinline__ void load_all(
        const Problem& problem, const TensorMap& query_map, int lane, LoadTiles load_tiles) const {
        int blocks = (problem.q_len + WARP_GROUPS * ROWS - 1) / (WARP_GROUPS * ROWS) * problem.heads * problem.batches;
        for (Ring<ITEMS> ring;; ring.advance()) {
            Item& item = items[ring.stage];
            u32 item_filled = filled + 8 * ring.stage;
            wait(released + 8 * ring.stage, ring.parity ^ 1);  // at first, the items are free
            bool repeated = item.failed;
            int index = item.index;
            if (!repeated) {
                index = lane == 0 ? atomicAdd(problem.next_item, 1) : 0;
                index = __shfl_sync(0xFFFFFFFF, index, 0);
            }
            if (index >= blocks) {  // the block in the other item may still fail
                static_assert(ITEMS == 2);
                Ring<ITEMS> other = ring;
                other.advance();
                wait(released + 8 * other.stage, other.parity ^ 1);
                repeated = items[other.stage].failed;
                if (repeated) index = items[other.stage].index;
                __syncwarp();
                if (lane == 0) items[other.stage].failed = 0;
            }
            __syncwarp();  // all threads have read the item
            if (index >= blocks) {
                if (lane == 0) {
                    item.index = -1;
                    arrive(item_filled);
                }
                return;
            }
            Block block = block_of(problem, index);
            for (int range = 0; range < range_count(problem); range++)
                store_bounds(item.bounds[range], problem, range, block, lane);
            if (lane == 0) {
                item.index = index;
                item.repeated = repeated;
                item.failed = 0;
                expect_bytes(item_filled, WARP_GROUPS * QUERY_BYTES);
                for (int i = 0; i < WARP_GROUPS; i++)
                    for (int panel = 0; panel < PANELS; panel++)
                        load_box(rows(ring.stage, i) + panel * ROWS * 128, &query_map, item_filled, panel * PANEL,
                                 block.first_row + i * ROWS, block.head, block.batch);
                load_tiles(item, block);
            }
            __syncwarp();
        }
    }
};
