// Attention rows from the blocks of a paged cache on a CPU: log-sum-exp, statistics and weights of each query and head.
//
// A tile is a few consecutive queries of one request. Threads take one tile and one key head at a time: they convert its
// keys to float32 block by block, multiply them by the queries of all heads of the group, and reduce each row while its
// scores are in the cache of the core. Slots that a query may not attend to are never part of a sum.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#include "exponential.h"

namespace {

using simd::from_bits;

constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr int64_t LANES = 16;
constexpr int64_t SEGMENT = 2 * LANES;       // keys of one step of a product
constexpr int64_t MAX_SCORES = 1 << 16;      // floats that a thread computes before it reduces them
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

enum Dtype : int64_t { FLOAT32, BFLOAT16, FLOAT16 };

struct Tile {
  int64_t query;     // index of the first query in the batch
  int64_t rows;      // number of queries
  int64_t end;       // number of keys of the first query, its own included; each later query has one more
  int64_t table;     // row of the block table
  int64_t output;    // index of the first row in the outputs
  int64_t received;  // index of the column sums in `received`
  int64_t keys;      // number of columns in `received`
  int64_t spans;     // row of `spans`
};

struct Call {
  const void* key;
  int64_t key_dtype, block_count, block_stride, head_stride, token_stride, dim_stride;
  const int64_t* order;  // index of each (token, dim) in a packed block, instead of the last two strides
  const void* query;     // [queries, heads, dims]
  int64_t query_dtype, query_count, query_stride;
  const int64_t* table;
  int64_t request_count, table_columns, table_stride;
  int64_t kv_heads, group, dims, block, window;  // window 0: all keys
  double scale, softcap;                         // softcap 0: none
  const float* slopes;                           // [heads] or null
  const float* sinks;                            // [heads] or null
  const Tile* tiles;
  int64_t tile_count;
  const int64_t* spans;  // [.., span_count, 2]
  int64_t span_count, weight_keys;
  // outputs; null if they are not wanted
  float* lse;       // [rows, heads]
  float* entropy;   // [rows, heads]
  float* peak;      // [rows, heads]
  float* distance;  // [rows, heads]
  float* mass;      // [span_count, rows, heads]
  float* received;  // [heads, keys] of each tile, added to
  float* weights;   // [rows, heads, weight_keys]
  int64_t rows;     // of all tiles
};

inline float widen(float value) { return value; }

struct BFloat16 {
  uint16_t bits;
};
inline float widen(BFloat16 value) { return from_bits(uint32_t(value.bits) << 16); }

struct Float16 {
  uint16_t bits;
};
inline float widen(Float16 value) {
  // shifted to the fields of float32, the exponent lacks the difference of the biases, a factor of 2^112
  const float magnitude = from_bits(uint32_t(value.bits & 0x7fff) << 13) * 0x1p112f;
  const uint32_t special = (value.bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
  uint32_t bits;
  std::memcpy(&bits, &magnitude, sizeof bits);
  return from_bits(bits | special | uint32_t(value.bits & 0x8000) << 16);
}

inline Lanes widen_lanes(const float* source) { return *reinterpret_cast<const Lanes*>(source); }
inline Lanes widen_lanes(const BFloat16* source) {
  return (Lanes)(__builtin_convertvector(*reinterpret_cast<const Halves*>(source), Words) << 16);
}
inline Lanes widen_lanes(const Float16* source) {
  const Words bits = __builtin_convertvector(*reinterpret_cast<const Halves*>(source), Words);
  const Words magnitude = (Words)((Lanes)((bits & 0x7fff) << 13) * 0x1p112f);
  const Words special = (Words)((bits & 0x7c00) == 0x7c00) & 0x7f800000u;
  return (Lanes)(magnitude | special | ((bits & 0x8000) << 16));
}

// Write slots of a block as [dims, width], width being `stride`.
template <typename T>
void widen_block(const Call& call, const T* block, int64_t first, int64_t last, float* out, int64_t stride) {
  if (call.order != nullptr) {
    for (int64_t token = first; token < last; ++token)
      for (int64_t dim = 0; dim < call.dims; ++dim)
        out[dim * stride + token] = widen(block[call.order[token * call.dims + dim]]);
  } else if (call.token_stride == 1) {
    for (int64_t dim = 0; dim < call.dims; ++dim) {
      const T* source = block + dim * call.dim_stride;
      float* target = out + dim * stride;
#pragma omp simd
      for (int64_t token = first; token < last; ++token) target[token] = widen(source[token]);
    }
  } else {
    for (int64_t token = first; token < last; ++token)
      for (int64_t dim = 0; dim < call.dims; ++dim)
        out[dim * stride + token] = widen(block[token * call.token_stride + dim * call.dim_stride]);
  }
}

template <typename T>
void widen_query(const T* source, int64_t dims, float scale, float* target) {
  for (int64_t dim = 0; dim < dims; ++dim) target[dim] = widen(source[dim]) * scale;
}

// scores[v][j] = Σ query[v][i] · keys[i][j] for COUNT vectors and the keys of one block, in steps of SEGMENT
template <int COUNT, typename T>
void multiply(const float* query, const T* keys, int64_t dims, int64_t stride, int64_t first, int64_t last,
              float* scores, int64_t score_stride) {
  for (int64_t start = first; start < last; start += SEGMENT) {
    Lanes sums[COUNT][2] = {};
    for (int64_t dim = 0; dim < dims; ++dim) {
      const T* row = keys + dim * stride + start;
      const Lanes low = widen_lanes(row), high = widen_lanes(row + LANES);
#pragma GCC unroll 8
      for (int v = 0; v < COUNT; ++v) {
        const float factor = query[v * dims + dim];
        sums[v][0] += factor * low;
        sums[v][1] += factor * high;
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < COUNT; ++v) {
      Lanes* target = reinterpret_cast<Lanes*>(scores + v * score_stride + start);
      target[0] = sums[v][0];
      target[1] = sums[v][1];
    }
  }
}

constexpr int64_t MAX_COUNT = 6;  // vectors of one step of a product

template <typename T>
void multiply_all(int64_t count, const float* query, const T* keys, int64_t dims, int64_t stride, int64_t first,
                  int64_t last, float* scores, int64_t score_stride) {
  constexpr decltype(&multiply<1, T>) functions[] = {
      multiply<1, T>, multiply<2, T>, multiply<3, T>, multiply<4, T>, multiply<5, T>, multiply<6, T>,
  };
  for (int64_t start = 0; start < count; start += MAX_COUNT) {
    const int64_t vectors = std::min(MAX_COUNT, count - start);
    functions[vectors - 1](query + start * dims, keys, dims, stride, first, last, scores + start * score_stride,
                           score_stride);
  }
}

// Compute the scores of one block. Scores beyond it are overwritten by those of the next block, or never read.
template <typename T>
void multiply_block(const Call& call, const T* block, int64_t count, const float* query, int64_t first, int64_t last,
                    std::vector<float>& scratch, float* scores, int64_t score_stride) {
  const int64_t start = first / SEGMENT * SEGMENT;
  if (count <= MAX_COUNT && call.order == nullptr && call.token_stride == 1 && call.block % SEGMENT == 0) {
    multiply_all(count, query, block, call.dims, call.dim_stride, start, last, scores, score_stride);
    return;
  }
  const int64_t stride = (call.block + SEGMENT - 1) / SEGMENT * SEGMENT;
  scratch.resize(stride * call.dims);
  widen_block(call, block, first, last, scratch.data(), stride);
  multiply_all<float>(count, query, scratch.data(), call.dims, stride, start, last, scores, score_stride);
}

// Reduce the scores of one row: keys `first` to `end`, which the query may attend to.
void reduce(const Call& call, const Tile& tile, int64_t row, int64_t head, int64_t first, int64_t end, float* scores) {
  const int64_t count = end - first, heads = call.kv_heads * call.group;
  const int64_t index = (tile.output + row) * heads + head;
  if (call.softcap != 0) {
    const float cap = float(call.softcap);
    for (int64_t j = 0; j < count; ++j) scores[j] = cap * std::tanh(scores[j] / cap);
  }
  if (call.slopes != nullptr) {
    const float slope = call.slopes[head];
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) scores[j] -= slope * float(count - 1 - j);
  }
  float peak = -INFINITE;
#pragma omp simd reduction(max : peak)
  for (int64_t j = 0; j < count; ++j) peak = scores[j] > peak ? scores[j] : peak;
  // a row without a key has the maximum −inf; subtracting it would give NaN
  const float pivot = peak == -INFINITE ? 0.0f : peak;
  float total = 0, spread = 0;
#pragma omp simd reduction(+ : total, spread)
  for (int64_t j = 0; j < count; ++j) {
    const float log = scores[j] - pivot, exponential = simd::exponential(log).value;
    scores[j] = exponential;
    total += exponential;
    spread += exponential == 0 ? 0.0f : exponential * log;  // not 0 · −inf
  }
  float lse = pivot + std::log(total);
  float denominator = total;  // exp(pivot − lse) would add the rounding error of the log-sum-exp to all weights
  if (call.sinks != nullptr) {
    const float sink = call.sinks[head], larger = std::max(lse, sink);
    if (larger != -INFINITE) lse = larger + std::log1p(std::exp(std::min(lse, sink) - larger));
    denominator += std::exp(sink - pivot);
  }
  const float share = denominator == 0 ? 0.0f : 1 / denominator;
  if (call.lse != nullptr) call.lse[index] = lse;
  if (call.peak != nullptr) call.peak[index] = peak;
  // Σ A · (lse − score), as a sum of terms that are not negative
  if (call.entropy != nullptr)
    call.entropy[index] = lse == -INFINITE ? 0.0f : share * (total * (lse - pivot) - spread);
  if (call.distance != nullptr) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < count; ++j) sum += scores[j] * float(count - 1 - j);
    call.distance[index] = sum * share;
  }
  for (int64_t span = 0; span < call.span_count; ++span) {
    const int64_t* bounds = call.spans + 2 * (tile.spans * call.span_count + span);
    const int64_t start = std::max(bounds[0], first) - first, stop = std::min(bounds[1], end) - first;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = start; j < stop; ++j) sum += scores[j];
    call.mass[span * call.rows * heads + index] = sum * share;
  }
  if (call.received != nullptr) {
    float* sums = call.received + tile.received + head * tile.keys + first;
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) sums[j] += scores[j] * share;
  }
  if (call.weights != nullptr) {
    float* weights = call.weights + index * call.weight_keys;
    std::fill(weights, weights + first, 0.0f);
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) weights[first + j] = scores[j] * share;
    std::fill(weights + end, weights + call.weight_keys, 0.0f);
  }
}

// First and last of the blocks that the rows from `start` on attend to.
inline int64_t first_block(const Call& call, const Tile& tile, int64_t start) {
  return call.window == 0 ? 0 : std::max<int64_t>(0, tile.end + start - call.window) / call.block;
}
inline int64_t last_block(const Call& call, int64_t keys) { return (keys + call.block - 1) / call.block; }

// Check what Python cannot check without reading the block table.
bool is_valid(const Call& call, const Tile& tile) {
  if (tile.rows < 1 || tile.end < 0 || tile.query < 0 || tile.query + tile.rows > call.query_count) return false;
  const int64_t last = last_block(call, tile.end + tile.rows - 1);
  if (tile.table < 0 || tile.table >= call.request_count || last > call.table_columns) return false;
  const int64_t* ids = call.table + tile.table * call.table_stride;
  for (int64_t block = first_block(call, tile, 0); block < last; ++block)
    if (ids[block] < 0 || ids[block] >= call.block_count) return false;
  return true;
}

struct Scratch {
  std::vector<float> query, keys, scores;
};

// Compute some rows of a tile for one key head.
void compute_rows(const Call& call, const Tile& tile, int64_t start, int64_t rows, int64_t kv_head, Scratch& scratch) {
  const int64_t vectors = rows * call.group, last = tile.end + start + rows - 1;
  const int64_t first = call.window == 0 ? 0 : std::max<int64_t>(0, tile.end + start - call.window);
  const int64_t begin = first_block(call, tile, start), stop = last_block(call, last);
  const int64_t base = begin * call.block;
  const int64_t score_stride = std::max<int64_t>(0, stop - begin) * call.block + SEGMENT;
  scratch.query.resize(vectors * call.dims);
  scratch.scores.resize(vectors * score_stride);
  const float scale = float(call.scale);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t g = 0; g < call.group; ++g) {
      const int64_t offset = (tile.query + start + row) * call.query_stride + (kv_head * call.group + g) * call.dims;
      float* target = scratch.query.data() + (row * call.group + g) * call.dims;
      if (call.query_dtype == BFLOAT16)
        widen_query(static_cast<const BFloat16*>(call.query) + offset, call.dims, scale, target);
      else if (call.query_dtype == FLOAT16)
        widen_query(static_cast<const Float16*>(call.query) + offset, call.dims, scale, target);
      else
        widen_query(static_cast<const float*>(call.query) + offset, call.dims, scale, target);
    }
  const int64_t* ids = call.table + tile.table * call.table_stride;
  for (int64_t block = begin; block < stop; ++block) {
    const int64_t offset = ids[block] * call.block_stride + kv_head * call.head_stride;
    const int64_t used_first = std::max<int64_t>(0, first - block * call.block);
    const int64_t used_last = std::min(call.block, last - block * call.block);
    const float* query = scratch.query.data();
    float* scores = scratch.scores.data() + (block * call.block - base);
    if (call.key_dtype == BFLOAT16)
      multiply_block(call, static_cast<const BFloat16*>(call.key) + offset, vectors, query, used_first, used_last,
                     scratch.keys, scores, score_stride);
    else if (call.key_dtype == FLOAT16)
      multiply_block(call, static_cast<const Float16*>(call.key) + offset, vectors, query, used_first, used_last,
                     scratch.keys, scores, score_stride);
    else
      multiply_block(call, static_cast<const float*>(call.key) + offset, vectors, query, used_first, used_last,
                     scratch.keys, scores, score_stride);
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t end = tile.end + start + row;
    const int64_t row_first = call.window == 0 ? 0 : std::max<int64_t>(0, end - call.window);
    for (int64_t g = 0; g < call.group; ++g) {
      float* scores = scratch.scores.data() + (row * call.group + g) * score_stride + (row_first - base);
      reduce(call, tile, start + row, kv_head * call.group + g, row_first, end, scores);
    }
  }
}

}  // namespace

enum Result : int { DONE, OUT_OF_RANGE, OUT_OF_MEMORY };

// Compute all tiles. Nothing is computed if a tile or a block is out of range.
extern "C" int attention_rows(const Call* pointer) {
  const Call& call = *pointer;
  for (int64_t index = 0; index < call.tile_count; ++index)
    if (!is_valid(call, call.tiles[index])) return OUT_OF_RANGE;
  std::atomic<int> result{DONE};
#pragma omp parallel
  {
    static thread_local Scratch scratch;
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t index = 0; index < call.tile_count; ++index)
      for (int64_t kv_head = 0; kv_head < call.kv_heads; ++kv_head) {
        const Tile& tile = call.tiles[index];
        const int64_t keys = std::max<int64_t>(1, tile.end + tile.rows);
        const int64_t step = std::clamp<int64_t>(MAX_SCORES / (call.group * keys), 1, tile.rows);
        try {
          for (int64_t start = 0; start < tile.rows; start += step)
            compute_rows(call, tile, start, std::min(step, tile.rows - start), kv_head, scratch);
        } catch (const std::bad_alloc&) {  // an exception that leaves the loop would end the process
          result = OUT_OF_MEMORY;
        }
      }
  }
  return result;
}
