// Activations to int8, a run of 32 inputs at a time. See Activations in linear.h.
#pragma once

#include "linear/kernels.h"

namespace fewbit {

// 16 codes. Where absmax is so small that its scale is subnormal, x / scale may pass 127: clipped.
template <class S>
FEWBIT_INLINE typename S::I32 quantize_half(typename S::F32 x, typename S::F32 scale) {
  const typename S::F32 code = S::div(x, scale);
  const typename S::F32 clipped = S::min(S::max(code, S::set1(-127.0f)), S::set1(127.0f));
  const typename S::I32 q = S::round(clipped);
  return S::select(S::equal(scale, S::zero_f32()), S::zero_i32(), q);
}

// Integer maximum of the magnitudes' bits: the order of floats, with NaN above infinity, so that a
// value that is not finite makes the scale not finite.
template <class S>
FEWBIT_INLINE float largest_magnitude(typename S::F32 low, typename S::F32 high) {
  const typename S::I32 a = S::bits(S::abs(low));
  const typename S::I32 b = S::bits(S::abs(high));
  return __builtin_bit_cast(float, S::reduce_max(S::max(a, b)));
}

template <class S>
void quantize_row(const float* x, const Activations& a, int64_t row) {
  const int64_t stride = a.slot(row, 1) - a.slot(row, 0);
  int64_t slot = a.slot(row, 0);
  for (int64_t run = 0; run < a.runs(); ++run, slot += stride, x += kGroup) {
    const typename S::F32 low = S::load(x);
    const typename S::F32 high = S::load(x + kLanes);
    const float scale = largest_magnitude<S>(low, high) / 127.0f;
    const typename S::I32 first = quantize_half<S>(low, S::set1(scale));
    const typename S::I32 second = quantize_half<S>(high, S::set1(scale));
    S::store_i8(a.q + kGroup * slot, first);
    S::store_i8(a.q + kGroup * slot + kLanes, second);
    const int32_t first_sum = S::reduce_add(first);
    const int32_t second_sum = S::reduce_add(second);
    a.scales[slot] = scale;
    a.weighted[slot] = static_cast<float>(first_sum + second_sum) * scale;
    a.centre[slot] = -8 * (first_sum + second_sum);
    a.centre16[2 * slot] = -8 * first_sum;
    a.centre16[2 * slot + 1] = -8 * second_sum;
  }
}

}  // namespace fewbit
