// exp of float32 numbers: of one, in loops that the compiler vectorizes, or of a vector.

#pragma once

#include <cstdint>
#include <cstring>

namespace simd {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline Words bits_of(Floats values) { return (Words)values; }
inline Floats from_bits(Words bits) { return (Floats)bits; }

constexpr float MIN_EXP_ARGUMENT = -87.0f;  // below it, exp is not a normal number, and 0 is returned

template <typename T>
struct Exponential {
  T argument;  // at least MIN_EXP_ARGUMENT, so that its product with 0 is not NaN
  T value;
};

// exp(x), with an error of at most 1.2 units in the last place, and below 1 with fused products and sums. NaN stays NaN.
// From 88.38 on, the result is infinite; +inf gives NaN.
template <typename T>
inline Exponential<T> exponential(T x) {
  const auto underflows = x < MIN_EXP_ARGUMENT;
  const T argument = underflows ? T{} + MIN_EXP_ARGUMENT : x;
  const T shifted = argument * 1.44269504f + 0x1.8p23f;  // rounds to an integer, which is in the last bits
  const T power = shifted - 0x1.8p23f;
  T r = argument - power * 0x1.63p-1f;  // ln 2 in two parts
  r = r - power * -0x1.bd0106p-13f;
  T p = r * 0x1.6a23cep-10f + 0x1.123a2p-7f;  // (exp(r) - 1 - r) / r^2, with a relative error of 3e-9 in exp(r)
  p = p * r + 0x1.5558f2p-5f;
  p = p * r + 0x1.555492p-3f;
  p = p * r + 0x1.fffffcp-2f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  auto exponent = bits_of(shifted) + (127u - 0x4b400000u);
  exponent = exponent > 255u ? exponent * 0u + 255u : exponent;
  const T value = p * from_bits(exponent << 23);
  return {argument, underflows ? T{} : value};
}

}  // namespace simd
