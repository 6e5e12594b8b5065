// The kernels of row_kernels.h over the lanes of simd.h.
#pragma once

#include "sampling/row_kernels.h"
#include "simd/math.h"

namespace fewbit {

inline constexpr int64_t kVectors = kVocabularyBlock / kLanes;

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
void exponentiate_row(float* values, int64_t blocks, float best, float temperature, float* mass,
                      double* block_mass) {
  using F32 = typename S::F32;
  const F32 best_lanes = S::set1(best);
  const F32 temperature_lanes = S::set1(temperature);
  const F32 least = S::set1(-87.0f);
  for (int64_t b = 0; b < blocks; ++b) {
    F32 sum = S::zero_f32();
    for (int64_t v = 0; v < kVectors; ++v) {
      const int64_t at = b * kVocabularyBlock + v * kLanes;
      const F32 scaled = S::div(S::sub(S::load(values + at), best_lanes), temperature_lanes);
      // The bound inside keeps exp from subnormals, which cost a hundred times as much.
      const F32 bounded = exp<S>(S::max(scaled, least));
      const F32 e = S::select(S::less(scaled, least), S::zero_f32(), bounded);
      S::store(values + at, scaled);
      S::store(mass + at, e);
      sum = S::add(sum, e);
    }
    block_mass[b] = static_cast<double>(S::reduce_add(sum));
  }
}

template <class S>
constexpr RowKernels make_row_kernels() {
  return {scan_row<S>, exponentiate_row<S>};
}

}  // namespace fewbit
