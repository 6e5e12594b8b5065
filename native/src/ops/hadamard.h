// The normalized Hadamard transform of a head, on the lanes of simd.h.
#pragma once

#include "ops/elementwise.h"

namespace fewbit {

// Sums and differences of elements at a distance inside 16 lanes: lane i without the distance's bit
// gets x[i] + x[i + distance], lane i with it x[i - distance] - x[i].
template <class S>
FEWBIT_INLINE typename S::F32 butterfly_in_lanes(typename S::F32 x, int distance) {
  alignas(64) static constexpr int32_t kIndex[kLanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                         8, 9, 10, 11, 12, 13, 14, 15};
  float around[3 * kLanes] = {};
  float* lanes = around + kLanes;
  S::store(lanes, x);
  const typename S::I32 bit = S::set1(static_cast<int32_t>(distance));
  const auto above = S::equal_i32(S::bit_and(S::load(kIndex), bit), bit);
  return S::select(above, S::sub(S::load(lanes - distance), x),
                   S::add(x, S::load(lanes + distance)));
}

template <class S>
void hadamard(const float* x, int64_t head_dim, float* out) {
  map1<S>(x, head_dim, out, [&](typename S::F32 v) {
    for (int distance = 1; distance < kLanes && distance < head_dim; distance *= 2) {
      v = butterfly_in_lanes<S>(v, distance);
    }
    return v;
  });
  for (int64_t distance = kLanes; distance < head_dim; distance *= 2) {
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      if (i & distance) continue;
      const typename S::F32 a = S::load(out + i);
      const typename S::F32 b = S::load(out + i + distance);
      S::store(out + i, S::add(a, b));
      S::store(out + i + distance, S::sub(a, b));
    }
  }
  const auto factor = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(head_dim)));
  map1<S>(out, head_dim, out, [&](typename S::F32 v) { return S::mul(v, S::set1(factor)); });
}

}  // namespace fewbit
