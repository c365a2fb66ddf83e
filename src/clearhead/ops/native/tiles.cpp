// Weights of a tile of the attention matrix on a CPU, and sums over it, from its log weights.
//
// Each log weight is read once, while it is in the cache. Sums of a few rows are added in float32, and those of many rows
// and of many tiles in float64. The order of all additions is the same for any number of threads.

#include <algorithm>
#include <limits>

#include "exponential.h"

namespace {

using namespace simd;

constexpr int64_t ROWS = 4;             // whose weights are in registers at the same time
constexpr int64_t CHUNK = 64;           // rows whose column sums are added in float32
constexpr int64_t MIN_CELLS = 1 << 14;  // of each thread: to start one takes as long as a few thousand cells

struct Call {
  const float* logs;         // [heads, rows, keys]; −inf is masked
  float* weights;            // of the same shape, or null
  double* entropies;         // [heads, row_stride], added to, or null
  double* distances;         // [heads, row_stride], added to, or null
  double* columns;           // [heads, column_stride], added to, or null
  float* scratch;            // [heads, chunks, padded keys]: column sums of each chunk of rows
  const int64_t* positions;  // [heads]: position of the first row
  int64_t heads, rows, keys, first_key, row_stride, column_stride, threads;
};

inline int thread_count(int64_t cells, int64_t threads) {
  return int(std::clamp<int64_t>(cells / MIN_CELLS, 1, threads));
}
inline int64_t padded(int64_t keys) { return (keys + LANES - 1) / LANES * LANES; }
inline int64_t chunk_count(int64_t rows) { return (rows + CHUNK - 1) / CHUNK; }

inline Floats load(const float* source) {
  Floats values;
  std::memcpy(&values, source, sizeof values);
  return values;
}
inline void store(float* target, Floats values) { std::memcpy(target, &values, sizeof values); }

inline float sum_of(Floats values) {
  for (int step = LANES / 2; step > 0; step /= 2)
    for (int lane = 0; lane < step; ++lane) values[lane] += values[lane + step];
  return values[0];
}

struct Sums {
  Floats entropy, distance;
};

// Add one vector of a row, and return its weights.
template <bool DISTANCE>
inline Floats add_vector(Floats logs, Floats distance, Sums& sums) {
  const Exponential<Floats> weights = exponential(logs);
  sums.entropy += weights.value * weights.argument;
  if (DISTANCE) sums.distance += weights.value * from_bits(bits_of(distance) & 0x7fffffffu);
  return weights.value;
}

// Add COUNT rows of a head to its row sums and to the column sums of their chunk.
template <int COUNT, bool DISTANCE, bool WEIGHTS>
void add_rows(const Call& call, int64_t head, int64_t row, float* columns) {
  const int64_t offset = (head * call.rows + row) * call.keys, whole = call.keys / LANES * LANES;
  const float* logs = call.logs + offset;
  float* weights = WEIGHTS ? call.weights + offset : nullptr;
  Sums sums[COUNT] = {};
  Floats lanes;
  for (int lane = 0; lane < LANES; ++lane) lanes[lane] = float(lane);
  const float first = DISTANCE ? float(call.positions[head] + row - call.first_key) : 0.0f;
  for (int64_t key = 0; key < whole; key += LANES) {
    const Floats distance = first - float(key) - lanes;
    Floats total = {};
#pragma GCC unroll 4
    for (int r = 0; r < COUNT; ++r) {
      const Floats values = load(logs + r * call.keys + key);
      const Floats added = add_vector<DISTANCE>(values, distance + float(r), sums[r]);
      total += added;
      if (WEIGHTS) store(weights + r * call.keys + key, added);
    }
    store(columns + key, load(columns + key) + total);
  }
  const int64_t rest = call.keys - whole;
  for (int r = 0; rest > 0 && r < COUNT; ++r) {
    Floats values = Floats{} - std::numeric_limits<float>::infinity();
    std::memcpy(&values, logs + r * call.keys + whole, rest * sizeof(float));
    const Floats added = add_vector<DISTANCE>(values, first - float(whole) - lanes + float(r), sums[r]);
    store(columns + whole, load(columns + whole) + added);
    if (WEIGHTS) std::memcpy(weights + r * call.keys + whole, &added, rest * sizeof(float));
  }
  for (int r = 0; r < COUNT; ++r) {
    const int64_t index = head * call.row_stride + row + r;
    if (call.entropies != nullptr) call.entropies[index] -= sum_of(sums[r].entropy);
    if (DISTANCE) call.distances[index] += sum_of(sums[r].distance);
  }
}

template <bool DISTANCE, bool WEIGHTS>
void add_chunk(const Call& call, int64_t head, int64_t chunk) {
  float* columns = call.scratch + (head * chunk_count(call.rows) + chunk) * padded(call.keys);
  std::fill(columns, columns + padded(call.keys), 0.0f);
  const int64_t stop = std::min(call.rows, (chunk + 1) * CHUNK);
  int64_t row = chunk * CHUNK;
  for (; row + ROWS <= stop; row += ROWS) add_rows<ROWS, DISTANCE, WEIGHTS>(call, head, row, columns);
  for (; row < stop; ++row) add_rows<1, DISTANCE, WEIGHTS>(call, head, row, columns);
}

void add_columns(const Call& call, int64_t head) {
  const int64_t chunks = chunk_count(call.rows), stride = padded(call.keys);
  const float* partial = call.scratch + head * chunks * stride;
  double* columns = call.columns + head * call.column_stride;
  for (int64_t chunk = 0; chunk < chunks; ++chunk)
    for (int64_t key = 0; key < call.keys; ++key) columns[key] += double(partial[chunk * stride + key]);
}

}  // namespace

extern "C" {

// Floats of scratch memory for a tile.
int64_t scratch_size(int64_t heads, int64_t rows, int64_t keys) { return heads * chunk_count(rows) * padded(keys); }

// Add the sums of a tile to `entropies`, `distances` and `columns`.
void add_tile(const Call* pointer) {
  const Call& call = *pointer;
  const int64_t chunks = chunk_count(call.rows);
  const int threads = thread_count(call.heads * call.rows * call.keys, call.threads);
  const auto with_distances = call.weights == nullptr ? add_chunk<true, false> : add_chunk<true, true>;
  const auto without = call.weights == nullptr ? add_chunk<false, false> : add_chunk<false, true>;
  const auto add = call.distances == nullptr ? without : with_distances;
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t item = 0; item < call.heads * chunks; ++item) add(call, item / chunks, item % chunks);
    if (call.columns != nullptr) {
#pragma omp for schedule(static)
      for (int64_t head = 0; head < call.heads; ++head) add_columns(call, head);
    }
  }
}

// Replace log weights by their weights, or write these to other memory and clamp the log weights, so that their products
// with weights of 0 are not NaN.
void exponentials(float* logs, float* weights, int64_t count, int64_t threads) {
  const int64_t whole = count / LANES * LANES;
#pragma omp parallel for schedule(static) num_threads(thread_count(count, threads))
  for (int64_t start = 0; start < whole; start += LANES) {
    const Exponential<Floats> result = exponential(load(logs + start));
    if (weights != logs) store(logs + start, result.argument);
    store(weights + start, result.value);
  }
  for (int64_t index = whole; index < count; ++index) {
    const Exponential<float> result = exponential(logs[index]);
    logs[index] = result.argument;
    weights[index] = result.value;
  }
}
}
