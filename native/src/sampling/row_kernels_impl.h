// The kernels of row_kernels.h over the lanes of simd.h.
#pragma once

#include <algorithm>
#include <cstring>

#include "sampling/row_kernels.h"
#include "simd/math.h"

namespace fewbit {

inline constexpr int64_t kVectors = kVocabularyBlock / kLanes;
inline constexpr int64_t kDoubles = 8;

using Doubles = double __attribute__((vector_size(kDoubles * sizeof(double))));
using NarrowFloats = float __attribute__((vector_size(kDoubles * sizeof(float))));

FEWBIT_INLINE void load_doubles(const float* x, Doubles& out) {
  NarrowFloats narrow;
  std::memcpy(&narrow, x, sizeof narrow);
  out = __builtin_convertvector(narrow, Doubles);
}

FEWBIT_INLINE double fold(const Doubles& lanes) {
  double half[kDoubles / 2];
  for (int64_t i = 0; i < kDoubles / 2; ++i) half[i] = lanes[i] + lanes[i + kDoubles / 2];
  return (half[0] + half[2]) + (half[1] + half[3]);
}

template <class S>
FEWBIT_INLINE double sum_block(const float* x) {
  Doubles sum = {};
  Doubles values;
  for (int64_t i = 0; i < kVocabularyBlock; i += kDoubles) {
    load_doubles(x + i, values);
    sum += values;
  }
  return fold(sum);
}

template <class S>
FEWBIT_INLINE float scan_block(const float* x, typename S::F32& strange) {
  typename S::F32 largest = S::load(x);
  for (int64_t v = 0; v < kVectors; ++v) {
    const typename S::F32 values = S::load(x + v * kLanes);
    largest = S::max(largest, values);
    // x - x is 0, or NaN where x is infinite or NaN; a NaN stays in the sum.
    strange = S::add(strange, S::sub(values, values));
  }
  return S::reduce_max(largest);
}

template <class S>
bool scan_row(const float* x, int64_t count, float* block_max) {
  typename S::F32 strange = S::zero_f32();
  const int64_t whole = count / kVocabularyBlock;
  for (int64_t b = 0; b < whole; ++b)
    block_max[b] = scan_block<S>(x + b * kVocabularyBlock, strange);
  if (const int64_t rest = count - whole * kVocabularyBlock; rest > 0) {
    float padded[kVocabularyBlock];
    for (int64_t i = 0; i < kVocabularyBlock; ++i)
      padded[i] = x[whole * kVocabularyBlock + (i < rest ? i : 0)];
    block_max[whole] = scan_block<S>(padded, strange);
  }
  return S::reduce_add(strange) == 0;
}

template <class S>
void exponentiate_row(const float* x, float* values, int64_t blocks, float best, float temperature,
                      float* mass, double* block_mass) {
  using F32 = typename S::F32;
  const F32 best_lanes = S::set1(best);
  const F32 temperature_lanes = S::set1(temperature);
  const F32 least = S::set1(-87.0f);
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t v = 0; v < kVectors; ++v) {
      const int64_t at = b * kVocabularyBlock + v * kLanes;
      const F32 scaled = S::div(S::sub(S::load(x + at), best_lanes), temperature_lanes);
      // The bound inside keeps exp from subnormals, which cost a hundred times as much.
      const F32 bounded = exp<S>(S::max(scaled, least));
      const F32 e = S::select(S::less(scaled, least), S::zero_f32(), bounded);
      S::store(values + at, scaled);
      S::store(mass + at, e);
    }
    block_mass[b] = sum_block<S>(mass + b * kVocabularyBlock);
  }
}

template <class S>
void sum_row(const float* x, int64_t count, double* block_sum) {
  const int64_t whole = count / kVocabularyBlock;
  for (int64_t b = 0; b < whole; ++b) block_sum[b] = sum_block<S>(x + b * kVocabularyBlock);
  if (const int64_t rest = count - whole * kVocabularyBlock; rest > 0) {
    float padded[kVocabularyBlock] = {};
    std::copy_n(x + whole * kVocabularyBlock, rest, padded);
    block_sum[whole] = sum_block<S>(padded);
  }
}

template <class S>
void remainder_row(const float* mass, double scale, const float* drawn, double drawn_scale,
                   int64_t blocks, double* block_sum) {
  for (int64_t b = 0; b < blocks; ++b) {
    Doubles sum = {};
    Doubles p, q;
    for (int64_t i = b * kVocabularyBlock; i < (b + 1) * kVocabularyBlock; i += kDoubles) {
      load_doubles(mass + i, p);
      load_doubles(drawn + i, q);
      const Doubles left = p * scale - q * drawn_scale;
      sum += left > 0 ? left : Doubles{};
    }
    block_sum[b] = fold(sum);
  }
}

template <class S>
constexpr RowKernels make_row_kernels() {
  return {scan_row<S>, exponentiate_row<S>, sum_row<S>, remainder_row<S>};
}

}  // namespace fewbit
