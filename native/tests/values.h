// Values to compare kernels on, random and adversarial, and the comparison bit for bit.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace fewbit {

using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;

inline int comparisons = 0;
inline int differences = 0;

inline bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}
template <class T>
inline bool same(T a, T b) {
  return a == b;
}

// Any NaN equals any other: what its bits are is no promise of simd.h.
template <class T>
void compare(const std::string& what, const std::vector<T>& got, const std::vector<T>& want) {
  ++comparisons;
  for (size_t i = 0; i < want.size(); ++i) {
    if (same(got[i], want[i])) continue;
    std::printf("%s: element %zu is %.9g and not %.9g\n", what.c_str(), i,
                static_cast<double>(got[i]), static_cast<double>(want[i]));
    ++differences;
    return;
  }
}

inline std::mt19937 random_bits(1);

inline Floats random_floats(int64_t n, float size = 1.0f) {
  std::normal_distribution<float> normal(0.0f, size);
  Floats x(static_cast<size_t>(n));
  for (float& v : x) v = normal(random_bits);
  return x;
}

inline Bytes random_bytes(size_t n) {
  Bytes b(n);
  for (uint8_t& v : b) v = static_cast<uint8_t>(random_bits());
  return b;
}

// Every order of magnitude, both signs, what is not finite, ties of rounding.
inline Floats adversarial_floats(int64_t n) {
  const float infinity = std::numeric_limits<float>::infinity();
  Floats x{0.0f,     -0.0f,     1.0f,     0.5f,    1.5f,    2.5f,         -2.5f,
           infinity, -infinity, NAN,      1e-45f,  -1e-45f, 3e38f,        -3e38f,
           0x1p31f,  -0x1p31f,  0x1p30f,  0x1p23f, 88.73f,  -87.34f,      -103.98f,
           0.625f,   65504.0f,  65520.0f, 6e-8f,   3e-8f,   2147483520.0f};
  while (static_cast<int64_t>(x.size()) < n)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(random_bits())));
  x.resize(static_cast<size_t>(n));
  return x;
}

}  // namespace fewbit
