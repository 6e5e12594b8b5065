// Which experts a row passes through, and the weighted sum of what they give it.
#pragma once

#include "ops/elementwise.h"
#include "simd/math.h"
#include "simd/simd.h"

namespace fewbit {

// The largest logits in descending order, of equal ones the lower id first. A NaN is larger than
// nothing, so the ids are valid whatever the logits are.
FEWBIT_INLINE void rank_experts(const float* logits, int64_t experts, int64_t used, int32_t* ids) {
  int64_t count = 0;
  for (int64_t expert = 0; expert < experts; ++expert) {
    const float logit = logits[expert];
    if (count == used && !(logit > logits[ids[used - 1]])) continue;
    int64_t at = count < used ? count++ : used - 1;
    for (; at > 0 && logit > logits[ids[at - 1]]; --at) ids[at] = ids[at - 1];
    ids[at] = static_cast<int32_t>(expert);
  }
}

// The sum of exp(x - largest) in 16 lanes and one tree; lanes beyond the last add zero.
template <class S>
FEWBIT_INLINE float sum_of_powers(const float* x, int64_t count, float largest) {
  using F32 = typename S::F32;
  const F32 shift = S::set1(largest);
  F32 sums = S::zero_f32();
  for_lanes(
      count, [&](int64_t i) { sums = S::add(sums, exp<S>(S::sub(S::load(x + i), shift))); },
      [&](int64_t i, int n) {
        float rest[kLanes];
        S::store(rest, exp<S>(S::sub(S::load_n(x + i, n), shift)));
        sums = S::add(sums, S::load_n(rest, n));
      });
  return S::reduce_add(sums);
}

template <class S>
void route(const float* logits, int64_t experts, int64_t used, bool normalized, int32_t* ids,
           float* weights) {
  using F32 = typename S::F32;
  rank_experts(logits, experts, used, ids);
  const float largest = logits[ids[0]];
  for (int64_t rank = 0; rank < used; ++rank) weights[rank] = logits[ids[rank]];
  const float sum = normalized ? sum_of_powers<S>(weights, used, largest)
                               : sum_of_powers<S>(logits, experts, largest);
  map1<S>(weights, used, weights,
          [&](F32 logit) { return S::div(exp<S>(S::sub(logit, S::set1(largest))), S::set1(sum)); });
}

template <class S>
void add_scaled(const float* x, float factor, int64_t count, float* out) {
  map2<S>(x, out, count, out,
          [&](typename S::F32 v, typename S::F32 sum) { return S::fma(v, S::set1(factor), sum); });
}

}  // namespace fewbit
