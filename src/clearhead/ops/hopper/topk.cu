// The largest weights of each query, in two passes over the keys.
//
// The first pass finds a bound that at least `count` products of a row reach, and few more. A thread keeps the largest
// product in each of its columns of a tile, for two rows; they are the maxima of groups of keys. The bound of a row is the
// `count`-th largest of GROUPS such maxima. The second pass multiplies again, in the same order, so the products have the
// same bits. Those that reach the bound are candidates. Each thread appends its own to lists in memory, one for each of
// its rows, because it then waits for no other thread. The candidates of a row are ranked at the end.
//
// Compile-time options: DTYPE ("bf16" or "f16"), HEAD_DIM (64 or 128), WARP_GROUPS, STAGES and GROUPS (32, 64 or 128).

#include "query_blocks.cuh"

#define LARGEST __int_as_float(0x7F7FFFFF)  // finite number
#define NEVER __int_as_float(0x7FFFFFFF)    // nan, which no product reaches

constexpr int QUAD = 4;  // threads that share a row
constexpr int ROOM = 32;  // candidates of a row in the list of one thread
constexpr int THREAD_GROUPS = GROUPS / QUAD;  // of each row
constexpr int PART = 8;  // columns that are compared with the bound at once
constexpr int LIST = ROOM + PART;  // so that the length of a list is only checked after a part

struct Problem {
    const float* lse;    // [batch, heads, q_len]
    float* weights;      // [batch, heads, q_len, count], the largest first
    long long* keys;     // likewise; -1: the query may attend to fewer keys
    void* lists;         // of candidates, [thread blocks, WARP_GROUPS * ROWS, QUAD, LIST]
    int* most;           // the largest number of candidates in a list, if it is more than ROOM
    const int* ranges;   // key ranges, [range_count, 2, range_batches, q_len]; null: every query may attend to every key
    int* next_item;      // counter of the blocks of queries that have started
    float scale;         // times log2 e, positive
    int heads, group, batches, q_len, kv_len, range_count, range_batches;
    int bundle;  // heads whose blocks run at the same time
    int count;
};

struct Candidate {
    float product;
    int key;
};

// Appends a candidate if its product reaches the bound. Predicates replace branches, at which the threads of a warp diverge.
__device__ __forceinline__ void append_if_reached(Candidate*& end, float bound, const Candidate& candidate) {
    asm volatile(
        "{\n"
        ".reg .pred reached;\n"
        "setp.ge.f32 reached, %1, %3;\n"
        "@reached st.global.v2.b32 [%0], {%1, %2};\n"
        "@reached add.u64 %0, %0, %4;\n"
        "}\n"
        : "+l"(end)
        : "f"(candidate.product), "r"(candidate.key), "f"(bound), "n"(sizeof(Candidate))
        : "memory");
}

__device__ __forceinline__ float maximum_of_row(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFF, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xFFFFFFFF, value, 2));
}

// Returns a bound that at least `count` products of a row reach. Equal maxima count as one, so the bound may be lower than
// the `count`-th largest maximum; every finite product reaches it if there are fewer of them.
__device__ __forceinline__ float bound_of(const float (&maxima)[64], int row, int count) {
    float groups[THREAD_GROUPS];
#pragma unroll
    for (int i = 0; i < 32; i++) {
        float maximum = maxima[4 * (i / 2) + 2 * row + i % 2];
        groups[i % THREAD_GROUPS] = i < THREAD_GROUPS ? maximum : fmaxf(groups[i % THREAD_GROUPS], maximum);
    }
    float bound = INFINITE;
    for (int n = 0; n < count; n++) {
        float next = -INFINITE;
#pragma unroll
        for (int i = 0; i < THREAD_GROUPS; i++) next = fmaxf(next, groups[i] < bound ? groups[i] : -INFINITE);
        bound = maximum_of_row(next);
    }
    return fmaxf(bound, -LARGEST);
}

// Returns the number of candidates of a row of the warp, and the position of the index-th one in the lists of its threads.
// `counts` are the numbers in the two lists of this thread.
__device__ __forceinline__ int locate(const int (&counts)[2], int row, int index, int& position) {
    int total = 0;
    position = row * QUAD * LIST + index;
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        int count = __shfl_sync(0xFFFFFFFF, row < 8 ? counts[0] : counts[1], row % 8 * QUAD + i);
        if (index >= total + count) position += LIST - count;  // it is in a later list
        total += count;
    }
    return total;
}

// Ranks the candidates of a row and stores the largest; all threads of a warp take part. Among equal products, the first
// keys are the largest. `shift` is the log-sum-exp of the row in base 2.
__device__ __forceinline__ void store_largest(
    const Problem& problem, const Candidate* candidates, int found, long long row, float shift, int lane) {
    float* weights = problem.weights + row * problem.count;
    long long* keys = problem.keys + row * problem.count;
    for (int i = lane; i < found; i += WARP) {
        Candidate mine = candidates[i];
        int rank = 0;
#pragma unroll 4
        for (int j = 0; j < found; j++) {
            Candidate other = candidates[j];
            rank += other.product > mine.product || other.product == mine.product && other.key < mine.key;
        }
        if (rank < problem.count) {
            weights[rank] = exp2_fast(fmaf(mine.product, problem.scale, -shift));
            keys[rank] = mine.key;
        }
    }
    for (int i = found + lane; i < problem.count; i += WARP) {
        weights[i] = 0.0f;
        keys[i] = -1;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    topk(const __grid_constant__ TensorMap query_map, const __grid_constant__ TensorMap key_map,
         const __grid_constant__ Problem problem) {
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ Item items[ITEMS];
    u32 queries = shared_address(memory);
    u32 tiles = queries + ITEMS * WARP_GROUPS * QUERY_BYTES, barriers = tiles + STAGES * TILE_BYTES;
    Buffers buffers = {tiles, barriers, barriers + 8 * STAGES};
    ItemBuffers blocks = {items, queries, barriers + 16 * STAGES, barriers + 16 * STAGES + 8 * ITEMS};
    int warp_group = uniform(threadIdx.x / WARP_GROUP);
    int thread = threadIdx.x % WARP_GROUP, lane = thread % WARP;

    if (threadIdx.x == 0) {
        buffers.init_barriers();
        blocks.init();
        fence_barriers();
    }
    __syncthreads();

    if (warp_group == WARP_GROUPS) {
        lower_registers<LOADER_REGISTERS>();
        if (thread >= WARP) return;
        Ring<STAGES> ring;
        blocks.load_all(problem, query_map, lane, [&](const Item& item, const Block& block) {
            for (int pass = 0; pass < 2; pass++)
                for (int range = 0; range < range_count(problem); range++)
                    for (int tile = item.bounds[range].start; tile < item.bounds[range].end; tile++)
                        buffers.load(key_map, ring, tile, block.head / problem.group, block.batch);
        });
        return;
    }

    raise_registers<REGISTERS>();
    int warp_row = warp_group * ROWS + uniform(thread / WARP) * 16;
    int thread_row = warp_row + (lane >> 2);
    // the candidates of one row of each warp, while they are ranked
    Candidate* ranked =
        (Candidate*)(memory + (barriers - queries) + 16 * (STAGES + ITEMS)) + warp_row / 16 * QUAD * ROOM;
    Candidate* lists = (Candidate*)problem.lists + (blockIdx.x * WARP_GROUPS * ROWS + warp_row) * QUAD * LIST;
    Ring<STAGES> ring;

    for (Ring<ITEMS> item_ring;; item_ring.advance()) {
        const Item& item = items[item_ring.stage];
        wait(blocks.filled + 8 * item_ring.stage, item_ring.parity);
        int index = item.index;
        if (index < 0) break;
        Rows left(blocks.rows(item_ring.stage, warp_group), thread);
        Block block = block_of(problem, index);

        // Multiplies tile after tile, and calls `visit` with the products and the thread's first key of each. Products
        // with keys to which a row may not attend are -∞.
        auto visit_tiles = [&](auto visit) {
            for (int range = 0; range < range_count(problem); range++) {
                const Bounds& bounds = item.bounds[range];
                int start = bounds.start, end = bounds.end;
                int full = bounds.full[warp_group], partial = bounds.partial[warp_group];
                Range ends[2];
#pragma unroll
                for (int i = 0; i < 2; i++)
                    ends[i] = range_of(problem, range, block.batch, block.first_row + thread_row + 8 * i);
                for (int tile = start; tile < end; tile++, ring.advance()) {
                    float products[64];
                    wait(buffers.filled + 8 * ring.stage, ring.parity);
                    start_products();
                    multiply_keys(products, left, buffers.tiles + ring.stage * TILE_BYTES);
                    wait_for_products<0>();
                    keep_order(products);
                    if (lane == 0) arrive(buffers.released + 8 * ring.stage);
                    int key = tile * TILE_K + 2 * (lane & 3);
                    if (tile * TILE_K < full || tile * TILE_K + TILE_K > partial) {
#pragma unroll
                        for (int i = 0; i < 64; i++) {
                            int column = key + 8 * (i / 4) + i % 2;
                            const Range& allowed = ends[i / 2 % 2];
                            if (column < allowed.first || column >= allowed.last) products[i] = -INFINITE;
                        }
                    }
                    visit(products, key);
                }
            }
        };

        float maxima[64];
#pragma unroll
        for (int i = 0; i < 64; i++) maxima[i] = -INFINITE;
        visit_tiles([&](const float(&products)[64], int) {
#pragma unroll
            for (int i = 0; i < 64; i++) maxima[i] = fmaxf(maxima[i], products[i]);
        });

        float bound[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            bound[i] = bound_of(maxima, i, problem.count);
            if (block.first_row + thread_row + 8 * i >= problem.q_len) bound[i] = INFINITE;  // the row does not exist
        }
        Candidate* starts[2] = {lists + lane * LIST, lists + (8 * QUAD + lane) * LIST};
        Candidate* ends[2] = {starts[0], starts[1]};
        visit_tiles([&](const float(&products)[64], int key) {
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int start = 0; start < 32; start += PART) {
                    float largest = -INFINITE;
#pragma unroll
                    for (int j = start; j < start + PART; j++)
                        largest = fmaxf(largest, products[4 * (j / 2) + 2 * i + j % 2]);
                    if (largest < bound[i]) continue;
#pragma unroll
                    for (int j = start; j < start + PART; j++) {
                        float product = products[4 * (j / 2) + 2 * i + j % 2];
                        append_if_reached(ends[i], bound[i], {product, key + 8 * (j / 2) + j % 2});
                    }
                    if (ends[i] - starts[i] > ROOM) bound[i] = NEVER;  // another way must find the largest ones
                }
        });
        arrive(blocks.released + 8 * item_ring.stage);

        int counts[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            counts[i] = ends[i] - starts[i];
            if (counts[i] > ROOM) atomicMax(problem.most, counts[i]);
            counts[i] = min(counts[i], ROOM);
        }
        __syncwarp();  // the lists are complete
        int rows = min(16, problem.q_len - block.first_row - warp_row), position;
        long long first_row = ((long long)block.batch * problem.heads + block.head) * problem.q_len + block.first_row +
                              warp_row;
        float shifts = lane < rows ? problem.lse[first_row + lane] * (1.0f / LN_2) : 0.0f;
        int found = locate(counts, 0, lane, position);
        Candidate candidate = lane < found ? lists[position] : Candidate{};
        for (int i = 0; i < rows; i++) {
            if (lane < found) ranked[lane] = candidate;
            for (int start = WARP; start < found; start += WARP) {
                locate(counts, i, start + lane, position);
                if (start + lane < found) ranked[start + lane] = lists[position];
            }
            int this_found = found;
            if (i + 1 < rows) {  // loaded ahead, because memory is slow
                found = locate(counts, i + 1, lane, position);
                if (lane < found) candidate = lists[position];
            }
            __syncwarp();
            store_largest(problem, ranked, this_found, first_row + i, __shfl_sync(0xFFFFFFFF, shifts, i), lane);
            __syncwarp();
        }
    }
}
