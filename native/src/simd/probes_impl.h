// The probes of probes.h as templates over the lanes.
#pragma once

#include "simd/math.h"
#include "simd/probes.h"
#include "simd/stream.h"

namespace fewbit {

template <class S>
struct ProbesOf {
  using F32 = typename S::F32;

  template <class F>
  static void map(const float* x, int64_t n, float* out, F f) {
    for (int64_t i = 0; i < n; i += kLanes) S::store(out + i, f(S::load(x + i)));
  }

  static F32 through_half(F32 x) {
    uint16_t h[kLanes];
    S::store_f16(h, x);
    return S::load_f16(h);
  }

  static void unary(Unary f, const float* x, int64_t n, float* out) {
    switch (f) {
      case Unary::kExp:
        return map(x, n, out, [](F32 v) { return exp<S>(v); });
      case Unary::kTanh:
        return map(x, n, out, [](F32 v) { return tanh<S>(v); });
      case Unary::kSigmoid:
        return map(x, n, out, [](F32 v) { return sigmoid<S>(v); });
      case Unary::kSilu:
        return map(x, n, out, [](F32 v) { return silu<S>(v); });
      case Unary::kGeluTanh:
        return map(x, n, out, [](F32 v) { return gelu_tanh<S>(v); });
      case Unary::kSqrt:
        return map(x, n, out, [](F32 v) { return S::sqrt(v); });
      case Unary::kRound:
        return map(x, n, out, [](F32 v) { return S::convert(S::round(v)); });
      case Unary::kHalf:
        return map(x, n, out, [](F32 v) { return through_half(v); });
    }
  }

  static void fma(const float* a, const float* b, const float* c, int64_t n, float* out) {
    for (int64_t i = 0; i < n; i += kLanes) {
      S::store(out + i, S::fma(S::load(a + i), S::load(b + i), S::load(c + i)));
    }
  }

  static void from_half(const uint16_t* h, int64_t n, float* out) {
    for (int64_t i = 0; i < n; i += kLanes) S::store(out + i, S::load_f16(h + i));
  }

  static void to_half(const float* x, int64_t n, uint16_t* h) {
    for (int64_t i = 0; i < n; i += kLanes) S::store_f16(h + i, S::load(x + i));
  }

  static void to_bfloat(const float* x, int64_t n, uint16_t* b) {
    for (int64_t i = 0; i < n; i += kLanes) store_bf16<S>(b + i, S::load(x + i));
  }

  static void dot4(const int32_t* acc, const uint8_t* u, const int8_t* s, bool narrow,
                   int32_t* out) {
    const auto start = S::load(acc);
    const auto codes = S::load_u8(u);
    const auto inputs = S::load_u8(s);
    S::store(out, narrow ? S::dot4_u7(start, codes, inputs) : S::dot4(start, codes, inputs));
  }

  static void reduce(const float* x, int64_t n, float* sums, float* maxima) {
    for (int64_t i = 0; i < n; i += kLanes) {
      sums[i / kLanes] = S::reduce_add(S::load(x + i));
      maxima[i / kLanes] = S::reduce_max(S::load(x + i));
    }
  }

  // Asks as the weight kernels do, by way of the second cache: a limit must not read worse than
  // what it is the limit of.
  static int32_t read(const uint8_t* p, int64_t n) {
    typename S::I32 sums[4] = {S::zero_i32(), S::zero_i32(), S::zero_i32(), S::zero_i32()};
    for (const uint8_t* end = p + n; p != end; p += 256) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        prefetch_weights<S>(p + 64 * i);
        sums[i] = S::add(sums[i], S::load(reinterpret_cast<const int32_t*>(p + 64 * i)));
      }
    }
    return S::reduce_add(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3])));
  }

  static constexpr SimdProbes table{unary, fma, from_half, to_half, to_bfloat, dot4, reduce, read};
};

}  // namespace fewbit
