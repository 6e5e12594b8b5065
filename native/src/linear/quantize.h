// Activations to int8, a run of 32 inputs at a time: with a scale of its own, or with one that is
// given. See Activations in linear.h.
#pragma once

#include "linear/kernels.h"

namespace fewbit {

template <class S>
FEWBIT_INLINE typename S::F32 clipped(typename S::F32 code) {
  return S::min(S::max(code, S::set1(-127.0f)), S::set1(127.0f));
}

// 16 codes by division. Where absmax is so small that its scale is subnormal, x / scale may pass
// 127: clipped.
template <class S>
FEWBIT_INLINE typename S::I32 divide_half(typename S::F32 x, typename S::F32 scale) {
  const typename S::I32 q = S::round(clipped<S>(S::div(x, scale)));
  return S::select(S::equal(scale, S::zero_f32()), S::zero_i32(), q);
}

// Whether rounding x * (1 / scale), given as `product`, could differ from rounding x / scale: below
// 128 they differ by less than 128 * 2^-22 < 2^-14, so only near the middle between two codes; and
// what is larger has the code 127 both ways.
template <class S>
FEWBIT_INLINE typename S::Mask uncertain(typename S::F32 product, typename S::I32 q) {
  const typename S::F32 distance = S::abs(S::sub(product, S::convert(q)));
  return S::less(S::set1(0.5f - 0x1p-14f), distance);
}

// The codes of a run: round(x / scale), by a multiplication where that is certain to be the same.
// Division takes most of the time otherwise. With the run's own scale no product needs clipping.
template <class S, class Scale>
FEWBIT_INLINE void codes_of_run(typename S::F32 low, typename S::F32 high, float scale,
                                typename S::I32& first, typename S::I32& second) {
  const bool ordinary = scale > 0x1p-100f && scale < 0x1p100f;  // 1 / scale is a normal number
  const typename S::F32 inverse = S::set1(1.0f / scale);
  typename S::F32 a = S::mul(low, inverse);
  typename S::F32 b = S::mul(high, inverse);
  if constexpr (Scale::kClips) {
    a = clipped<S>(a);
    b = clipped<S>(b);
  }
  first = S::round(a);
  second = S::round(b);
  if (ordinary && !S::any(S::either(uncertain<S>(a, first), uncertain<S>(b, second)))) return;
  first = divide_half<S>(low, S::set1(scale));
  second = divide_half<S>(high, S::set1(scale));
}

// The bits of the larger magnitudes, as integers: the order of floats, with NaN above infinity, so
// that a value that is not finite makes the scale not finite.
template <class S>
FEWBIT_INLINE typename S::I32 magnitudes(typename S::F32 low, typename S::F32 high) {
  return S::max(S::bits(S::abs(low)), S::bits(S::abs(high)));
}

// The scale of a run from the bits of its largest magnitude. One that is given is not used for a
// run with a value that is not finite.
struct OwnScale {
  static constexpr bool kClips = false;
  float of(int32_t largest) const { return __builtin_bit_cast(float, largest) / 127.0f; }
};
struct GivenScale {
  static constexpr bool kClips = true;
  float scale;
  float of(int32_t largest) const {
    constexpr int32_t kInfinity = 0x7f800000;
    return largest < kInfinity ? scale : __builtin_nanf("");
  }
};

// What stands beside the codes of a run.
FEWBIT_INLINE void store_sums(const Activations& a, int64_t slot, float scale, int32_t first,
                              int32_t second) {
  a.scales[slot] = scale;
  a.weighted[slot] = static_cast<float>(first + second) * scale;
  a.centre[slot] = -8 * (first + second);
  a.centre16[2 * slot] = -32 * first;
  a.centre16[2 * slot + 1] = -32 * second;
}

// Two runs at once, at x and y, into the two slots; the second is skipped where `runs` is 1.
template <class S, class Scale>
FEWBIT_INLINE void quantize_runs(const float* x, const float* y, Scale scale, const Activations& a,
                                 int64_t slot, int64_t next_slot, int runs) {
  const typename S::F32 low[2] = {S::load(x), S::load(y)};
  const typename S::F32 high[2] = {S::load(x + kLanes), S::load(y + kLanes)};
  int32_t largest[2];
  S::reduce_max(magnitudes<S>(low[0], high[0]), magnitudes<S>(low[1], high[1]), largest[0],
                largest[1]);
  float scales[2];
  typename S::I32 first[2], second[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    scales[i] = scale.of(largest[i]);
    codes_of_run<S, Scale>(low[i], high[i], scales[i], first[i], second[i]);
  }
  const typename S::U8 codes = S::pack_i8(first[0], second[0], first[1], second[1]);
  alignas(kVector) int8_t bytes[kVector];
  alignas(kVector) int32_t sums[kLanes];  // each of the four halves four times
  S::store_u8(bytes, codes);
  S::store(sums, S::add_quads(S::dot4(S::zero_i32(), S::set1_u8(1), codes)));
  __builtin_memcpy(a.q + kGroup * slot, bytes, kGroup);
  store_sums(a, slot, scales[0], sums[0], sums[4]);
  if (runs == 1) return;
  __builtin_memcpy(a.q + kGroup * next_slot, bytes + kGroup, kGroup);
  store_sums(a, next_slot, scales[1], sums[8], sums[12]);
}

template <class S, class Scale>
FEWBIT_INLINE void quantize_row_by(Scale scale, const float* x, const Activations& a, int64_t row) {
  const int64_t stride = a.slot(row, 1) - a.slot(row, 0);
  int64_t slot = a.slot(row, 0);
  int64_t run = 0;
  for (; run + 2 <= a.runs(); run += 2, slot += 2 * stride, x += 2 * kGroup) {
    quantize_runs<S>(x, x + kGroup, scale, a, slot, slot + stride, 2);
  }
  if (run < a.runs()) quantize_runs<S>(x, x, scale, a, slot, slot, 1);
}

template <class S>
void quantize_row(const float* x, const Activations& a, int64_t row) {
  quantize_row_by<S>(OwnScale{}, x, a, row);
}

template <class S>
void quantize_row_with(const float* x, const Activations& a, int64_t row, float scale) {
  quantize_row_by<S>(GivenScale{scale}, x, a, row);
}

template <class S>
float scale_of_row(const float* x, int64_t columns) {
  typename S::I32 largest = S::zero_i32();
  for (int64_t c = 0; c < columns; c += kGroup) {
    largest = S::max(largest, magnitudes<S>(S::load(x + c), S::load(x + c + kLanes)));
  }
  int32_t first, second;
  S::reduce_max(largest, largest, first, second);
  return OwnScale{}.of(first);
}

}  // namespace fewbit
