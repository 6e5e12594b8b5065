// Norms, rotations and elementwise ops on the lanes of simd.h.
#pragma once

#include "simd/math.h"
#include "simd/simd.h"

namespace fewbit {

// Calls body(i, n) for runs of 16 elements and for a last run of n < 16.
template <class Full, class Rest>
FEWBIT_INLINE void for_lanes(int64_t count, Full full, Rest rest) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) full(i);
  if (i < count) rest(i, static_cast<int>(count - i));
}

template <class S, class F>
FEWBIT_INLINE void map1(const float* x, int64_t count, float* out, F f) {
  for_lanes(
      count, [&](int64_t i) { S::store(out + i, f(S::load(x + i))); },
      [&](int64_t i, int n) { S::store_n(out + i, f(S::load_n(x + i, n)), n); });
}

template <class S, class F>
FEWBIT_INLINE void map2(const float* x, const float* y, int64_t count, float* out, F f) {
  for_lanes(
      count, [&](int64_t i) { S::store(out + i, f(S::load(x + i), S::load(y + i))); },
      [&](int64_t i, int n) {
        S::store_n(out + i, f(S::load_n(x + i, n), S::load_n(y + i, n)), n);
      });
}

template <class S>
void rms_norm(const float* x, const float* weight, int64_t width, float eps, float* out) {
  using F32 = typename S::F32;
  F32 squares = S::zero_f32();
  for_lanes(
      width,
      [&](int64_t i) {
        const F32 v = S::load(x + i);
        squares = S::fma(v, v, squares);
      },
      [&](int64_t i, int n) {
        const F32 v = S::load_n(x + i, n);
        squares = S::fma(v, v, squares);
      });
  const float mean = S::reduce_add(squares) / static_cast<float>(width);
  const F32 inverse = S::div(S::set1(1.0f), S::sqrt(S::set1(mean + eps)));
  map2<S>(x, weight, width, out, [&](F32 v, F32 w) { return S::mul(S::mul(v, inverse), w); });
}

template <class S>
void rope(const float* x, const float* table, int64_t head_dim, float* out) {
  using F32 = typename S::F32;
  const int64_t half = head_dim / 2;
  const auto rotate = [&](F32 a, F32 b, F32 c, F32 s, F32& first, F32& second) {
    first = S::fma(a, c, S::neg(S::mul(b, s)));
    second = S::fma(b, c, S::mul(a, s));
  };
  for_lanes(
      half,
      [&](int64_t i) {
        F32 first, second;
        rotate(S::load(x + i), S::load(x + half + i), S::load(table + i), S::load(table + half + i),
               first, second);
        S::store(out + i, first);
        S::store(out + half + i, second);
      },
      [&](int64_t i, int n) {
        F32 first, second;
        rotate(S::load_n(x + i, n), S::load_n(x + half + i, n), S::load_n(table + i, n),
               S::load_n(table + half + i, n), first, second);
        S::store_n(out + i, first, n);
        S::store_n(out + half + i, second, n);
      });
}

template <class S>
void scale(float* x, float factor, int64_t count) {
  map1<S>(x, count, x, [&](typename S::F32 v) { return S::mul(v, S::set1(factor)); });
}

template <class S>
void add(const float* x, const float* y, int64_t count, float* out) {
  map2<S>(x, y, count, out, [](typename S::F32 a, typename S::F32 b) { return S::add(a, b); });
}

template <class S>
void silu_gate(const float* gate, const float* up, int64_t count, float* out) {
  map2<S>(gate, up, count, out,
          [](typename S::F32 g, typename S::F32 u) { return S::mul(silu<S>(g), u); });
}

template <class S>
void gelu_gate(const float* gate, const float* up, int64_t count, float* out) {
  map2<S>(gate, up, count, out,
          [](typename S::F32 g, typename S::F32 u) { return S::mul(gelu_tanh<S>(g), u); });
}

template <class S>
FEWBIT_INLINE typename S::F32 capped(typename S::F32 x, float cap) {
  return S::mul(S::set1(cap), tanh<S>(S::div(x, S::set1(cap))));
}

template <class S>
void softcap(const float* x, float cap, int64_t count, float* out) {
  map1<S>(x, count, out, [&](typename S::F32 v) { return capped<S>(v, cap); });
}

}  // namespace fewbit
