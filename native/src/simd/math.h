// exp, tanh and the activations of a gated MLP, written on the lanes of simd.h: no libm, no
// approximate reciprocal, so every instruction set gives the same bits. The bounds were measured
// against float64 over millions of inputs; tests/test_simd.py holds them.
#pragma once

#include "simd/simd.h"

namespace fewbit {

// 2^n for n in [-126, 127].
template <class S>
FEWBIT_INLINE typename S::F32 power_of_two(typename S::I32 n) {
  return S::from_bits(S::template shift_left<23>(S::add(n, S::set1(127))));
}

// Within 2 ulp, subnormal results included; 0 below -103.98, infinity above 88.73.
//
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + (r + r^2 P(r)), P a degree-4 fit of relative error
// 2^-28. ln 2 is split so that n times its first part is exact. 2^n is applied as two factors:
// their first product is exact, the second rounds into the subnormals once.
template <class S>
FEWBIT_INLINE typename S::F32 exp(typename S::F32 x) {
  using F32 = typename S::F32;
  // The bound comes first: with a NaN, min and max return their second argument.
  const F32 bounded = S::max(S::set1(-104.0f), S::min(S::set1(89.0f), x));
  const typename S::I32 n = S::round(S::mul(bounded, S::set1(0x1.715476p+0f)));
  const F32 nf = S::convert(n);
  F32 r = S::fma(nf, S::set1(-0x1.62ep-1f), bounded);
  r = S::fma(nf, S::set1(-0x1.0bfbe8p-15f), r);
  F32 p = S::set1(0x1.6db4dap-10f);
  p = S::fma(p, r, S::set1(0x1.123be0p-7f));
  p = S::fma(p, r, S::set1(0x1.55545ep-5f));
  p = S::fma(p, r, S::set1(0x1.55548ep-3f));
  p = S::fma(p, r, S::set1(0.5f));
  p = S::add(S::set1(1.0f), S::fma(S::mul(r, r), p, r));
  const typename S::I32 half = S::template shift_right<1>(n);
  return S::mul(S::mul(p, power_of_two<S>(half)), power_of_two<S>(S::sub(n, half)));
}

// 1 / (1 + e^-x), by e^-|x| so that neither end overflows. Within 4 ulp.
template <class S>
FEWBIT_INLINE typename S::F32 sigmoid(typename S::F32 x) {
  using F32 = typename S::F32;
  const F32 one = S::set1(1.0f);
  const F32 e = exp<S>(S::neg(S::abs(x)));
  const F32 top = S::select(S::less(x, S::zero_f32()), e, one);
  return S::div(top, S::add(one, e));
}

// x sigmoid(x). Within 5 ulp; below -87, where the sigmoid is subnormal, within |x| 2^-148.
// -infinity gives NaN.
template <class S>
FEWBIT_INLINE typename S::F32 silu(typename S::F32 x) {
  return S::mul(x, sigmoid<S>(x));
}

// Within 3 ulp. An odd polynomial below 0.625, where 1 - 2 / (e^2x + 1) would cancel.
template <class S>
FEWBIT_INLINE typename S::F32 tanh(typename S::F32 x) {
  using F32 = typename S::F32;
  const F32 a = S::abs(x);
  const F32 one = S::set1(1.0f);
  const F32 e = exp<S>(S::add(a, a));
  const F32 large = S::sub(one, S::div(S::set1(2.0f), S::add(e, one)));
  const F32 z = S::mul(a, a);
  F32 p = S::set1(-0x1.76ab88p-8f);
  p = S::fma(p, z, S::set1(0x1.5256b4p-6f));
  p = S::fma(p, z, S::set1(-0x1.b84442p-5f));
  p = S::fma(p, z, S::set1(0x1.110768p-3f));
  p = S::fma(p, z, S::set1(-0x1.555534p-2f));
  const F32 small = S::fma(S::mul(a, z), p, a);
  const F32 magnitude = S::select(S::less(a, S::set1(0.625f)), small, large);
  const typename S::I32 sign = S::bit_and(S::bits(x), S::set1(INT32_MIN));
  return S::from_bits(S::bit_or(S::bits(magnitude), sign));
}

// x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), as x sigmoid(2 u): the sum
// 1 + tanh(u) would cancel for negative x. -infinity gives NaN.
template <class S>
FEWBIT_INLINE typename S::F32 gelu_tanh(typename S::F32 x) {
  using F32 = typename S::F32;
  const F32 cubic = S::fma(S::mul(S::mul(x, x), S::set1(0.044715f)), x, x);
  return S::mul(x, sigmoid<S>(S::mul(S::set1(0x1.988454p+0f), cubic)));
}

// 16 floats -> bf16, to nearest, ties to even; a NaN gives a NaN.
template <class S>
FEWBIT_INLINE void store_bf16(void* p, typename S::F32 x) {
  const typename S::I32 word = S::bits(x);
  const auto odd = S::bit_and(S::template shift_right<16>(word), S::set1(1));
  const auto rounded = S::add(S::add(word, S::set1(0x7fff)), odd);
  const auto kept = S::select(S::equal(x, x), rounded, S::set1(0x7fc00000));
  S::store_low16(p, S::template shift_right<16>(kept));
}

}  // namespace fewbit
