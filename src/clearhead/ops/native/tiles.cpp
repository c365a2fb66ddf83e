// Weights of a tile of the attention matrix on a CPU, sums over it, and its largest weights, from its log weights.
//
// Each function reads a log weight once, while it is in the cache. Sums of a few rows or keys are added in float32, and
// those of many in float64. The order of all additions is the same for any number of threads.

#if defined(__SSE__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <limits>

#include "exponential.h"

namespace {

using namespace simd;

constexpr int64_t ROWS = 4;              // rows of one step: their sums stay in registers
constexpr int64_t CHUNK = 64;            // number of rows that a column sum adds in float32
constexpr int64_t SEGMENT = 64 * LANES;  // number of keys that a row sum adds in float32
constexpr int64_t MIN_CELLS = 1 << 15;   // with fewer, starting threads takes longer than computing in one

struct SumCall {
  const float* logs;         // [heads, rows, keys]; −inf is masked
  float* weights;            // of the same shape, or null
  double* entropies;         // [heads, row_stride], added to, or null
  double* distances;         // [heads, row_stride], added to, or null
  double* columns;           // [heads, column_stride], added to, or null
  float* scratch;            // [heads, chunks, padded keys]: column sums of each chunk of rows
  const int64_t* positions;  // [heads]: position of the first row
  int64_t heads, rows, keys, first_key, row_stride, column_stride, threads;
};

// All threads or one: an OpenMP library may end the threads that a smaller team does not use, and start them again.
inline int thread_count(int64_t cells, int64_t threads) { return cells < MIN_CELLS ? 1 : int(threads); }
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

// Add some keys of COUNT rows of a head to its row sums and to the column sums of their chunk.
template <int COUNT, bool DISTANCE, bool WEIGHTS>
void add_segment(const SumCall& call, int64_t head, int64_t row, int64_t start, int64_t stop, float* columns) {
  const int64_t offset = (head * call.rows + row) * call.keys, whole = start + (stop - start) / LANES * LANES;
  const float* logs = call.logs + offset;
  float* weights = WEIGHTS ? call.weights + offset : nullptr;
  Sums sums[COUNT] = {};
  Floats lanes;
  for (int lane = 0; lane < LANES; ++lane) lanes[lane] = float(lane);
  const float first = DISTANCE ? float(call.positions[head] + row - call.first_key) : 0.0f;
  for (int64_t key = start; key < whole; key += LANES) {
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
  const int64_t rest = stop - whole;
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

template <int COUNT, bool DISTANCE, bool WEIGHTS>
void add_rows(const SumCall& call, int64_t head, int64_t row, float* columns) {
  for (int64_t start = 0; start < call.keys; start += SEGMENT)
    add_segment<COUNT, DISTANCE, WEIGHTS>(call, head, row, start, std::min(call.keys, start + SEGMENT), columns);
}

template <bool DISTANCE, bool WEIGHTS>
void add_chunk(const SumCall& call, int64_t head, int64_t chunk) {
  float* columns = call.scratch + (head * chunk_count(call.rows) + chunk) * padded(call.keys);
  std::fill(columns, columns + padded(call.keys), 0.0f);
  const int64_t stop = std::min(call.rows, (chunk + 1) * CHUNK);
  int64_t row = chunk * CHUNK;
  for (; row + ROWS <= stop; row += ROWS) add_rows<ROWS, DISTANCE, WEIGHTS>(call, head, row, columns);
  for (; row < stop; ++row) add_rows<1, DISTANCE, WEIGHTS>(call, head, row, columns);
}

void add_columns(const SumCall& call, int64_t head) {
  const int64_t chunks = chunk_count(call.rows), stride = padded(call.keys);
  const float* partial = call.scratch + head * chunks * stride;
  double* columns = call.columns + head * call.column_stride;
  for (int64_t chunk = 0; chunk < chunks; ++chunk)
    for (int64_t key = 0; key < call.keys; ++key) columns[key] += double(partial[chunk * stride + key]);
}

struct TopCall {
  const float* logs;  // [heads, rows, keys]; −inf is masked
  float* values;      // [heads, row_stride, top]: largest log weights so far, in descending order
  int32_t* keys_of;   // [heads, row_stride, top]: their keys; −1 for −inf and NaN
  int64_t heads, rows, keys, first_key, row_stride, top, threads;
};

constexpr int64_t MAX_TOP = 64;
constexpr int64_t VECTORS = 8;  // compared with the last of the largest log weights at the same time

// Return a bit for each lane of a comparison.
inline uint32_t bits_of_lanes(Words mask) {
#if defined(__AVX512F__)
  return _mm512_cmplt_epi32_mask((__m512i)mask, _mm512_setzero_si512());
#elif defined(__AVX__)
  return uint32_t(_mm256_movemask_ps((__m256)mask));
#elif defined(__SSE__)
  return uint32_t(_mm_movemask_ps((__m128)mask));
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < LANES; ++lane) bits |= (mask[lane] & 1u) << lane;
  return bits;
#endif
}

// Largest log weights of a row, in descending order, and their keys. The first of equal ones comes first.
class Largest {
 public:
  Largest(int64_t top, const float* values, const int32_t* keys) : top(top) {
    this->values[0] = std::numeric_limits<float>::infinity();  // precedes all, and is never moved
    std::copy(values, values + top, this->values + 1);
    std::copy(keys, keys + top, this->keys + 1);
  }

  float last() const { return values[top]; }

  void insert(float value, int32_t key) {
    if (value != value) return insert_nan();
    for (int64_t start = (top - 1) / LANES * LANES; start >= 0; start -= LANES) {
      const Floats before = load(values + start), here = load(values + start + 1);
      const auto moves = value > before, fits = value > here;  // a larger value moves those behind it by one
      store(values + start + 1, moves ? before : (fits ? Floats{} + value : here));
      Words keys_before, keys_here;
      std::memcpy(&keys_before, keys + start, sizeof keys_before);
      std::memcpy(&keys_here, keys + start + 1, sizeof keys_here);
      const Words chosen = moves ? keys_before : (fits ? Words{} + uint32_t(key) : keys_here);
      std::memcpy(keys + start + 1, &chosen, sizeof chosen);
      if (!(value > before[0])) break;
    }
  }

  void write(float* values, int32_t* keys) const {
    std::copy(this->values + 1, this->values + 1 + top, values);
    std::copy(this->keys + 1, this->keys + 1 + top, keys);
  }

 private:
  // NaN precedes all numbers, as in torch.topk, and no number precedes it: comparisons with it are false.
  void insert_nan() {
    int64_t count = 0;
    while (count < top && values[1 + count] != values[1 + count]) ++count;
    if (count == top) return;
    std::copy_backward(values + 1 + count, values + top, values + 1 + top);
    std::copy_backward(keys + 1 + count, keys + top, keys + 1 + top);
    values[1 + count] = std::numeric_limits<float>::quiet_NaN();
    keys[1 + count] = -1;
  }

  const int64_t top;
  float values[1 + MAX_TOP + LANES] = {};  // numbers after the last one are never returned
  int32_t keys[1 + MAX_TOP + LANES] = {};
};

void add_row(const TopCall& call, int64_t head, int64_t row) {
  const float* logs = call.logs + (head * call.rows + row) * call.keys;
  const int64_t offset = (head * call.row_stride + row) * call.top;
  Largest largest(call.top, call.values + offset, call.keys_of + offset);
  const auto add = [&](int64_t key) {
    if (!(logs[key] <= largest.last())) largest.insert(logs[key], int32_t(call.first_key + key));  // NaN is not ≤ either
  };
  const auto above = [&](int64_t key) { return ~(Words)(load(logs + key) <= Floats{} + largest.last()); };
  const int64_t step = VECTORS * LANES, whole = call.keys / step * step;
  for (int64_t start = 0; start < whole; start += step) {
    Words any = {};
#pragma GCC unroll 8
    for (int64_t vector = 0; vector < VECTORS; ++vector) any |= above(start + vector * LANES);
    if (bits_of_lanes(any) == 0) continue;
    for (int64_t key = start; key < start + step; key += LANES)
      for (uint32_t bits = bits_of_lanes(above(key)); bits != 0; bits &= bits - 1) add(key + __builtin_ctz(bits));
  }
  for (int64_t key = whole; key < call.keys; ++key) add(key);
  largest.write(call.values + offset, call.keys_of + offset);
}

}  // namespace

extern "C" {

// Floats of scratch memory for a tile.
int64_t scratch_size(int64_t heads, int64_t rows, int64_t keys) { return heads * chunk_count(rows) * padded(keys); }

// Add the sums of a tile to `entropies`, `distances` and `columns`.
void add_tile(const SumCall* pointer) {
  const SumCall& call = *pointer;
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

// Add a tile to the largest log weights of its rows.
void add_top(const TopCall* pointer) {
  const TopCall& call = *pointer;
  const int64_t rows = call.heads * call.rows;
#pragma omp parallel for schedule(static) num_threads(thread_count(rows * call.keys, call.threads))
  for (int64_t item = 0; item < rows; ++item) add_row(call, item / call.rows, item % call.rows);
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
