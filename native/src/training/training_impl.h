// The kernels of training.h over S; a file per instruction set instantiates them.
#pragma once

#include <cmath>
#include <cstring>

#include "simd/math.h"
#include "simd/simd.h"
#include "training/training.h"

namespace fewbit {

template <class S>
struct Training {
  using F32 = typename S::F32;

  // Lanes beyond a row's end: no exponential of theirs counts, and their difference is 0.
  static constexpr float kNothing = -3e38f;

  // Calls f(at, lanes) for runs of 16 from `first` on; the last may have fewer.
  template <class F>
  FEWBIT_INLINE void runs(int64_t first, int64_t last, F f) {
    int64_t at = first;
    for (; at + kLanes <= last; at += kLanes) f(at, kLanes);
    if (at < last) f(at, static_cast<int>(last - at));
  }

  FEWBIT_INLINE F32 load(const uint16_t* p, int lanes) {
    if (lanes == kLanes) return S::load_bf16(p);
    uint16_t part[kLanes] = {};
    std::memcpy(part, p, lanes * sizeof(uint16_t));
    return S::load_bf16(part);
  }

  FEWBIT_INLINE void store(uint16_t* p, F32 x, int lanes) {
    if (lanes == kLanes) return store_bf16<S>(p, x);
    uint16_t part[kLanes];
    store_bf16<S>(part, x);
    std::memcpy(p, part, lanes * sizeof(uint16_t));
  }

  template <class T>
  FEWBIT_INLINE F32 load_any(const T* p, int lanes) {
    if constexpr (sizeof(T) == sizeof(uint16_t)) {
      return load(p, lanes);
    } else {
      return lanes == kLanes ? S::load(p) : S::load_n(p, lanes);
    }
  }

  template <class T>
  FEWBIT_INLINE void store_any(T* p, F32 x, int lanes) {
    if constexpr (sizeof(T) == sizeof(uint16_t)) {
      store(p, x, lanes);
    } else {
      lanes == kLanes ? S::store(p, x) : S::store_n(p, x, lanes);
    }
  }

  FEWBIT_INLINE F32 or_nothing(F32 x, int lanes, float nothing) {
    if (lanes == kLanes) return x;
    float part[kLanes];
    S::store(part, x);
    for (int i = lanes; i < kLanes; ++i) part[i] = nothing;
    return S::load(part);
  }

  template <bool Signed>
  FEWBIT_INLINE F32 levels(const void* p, int64_t at) {
    if constexpr (Signed) return S::convert(S::load_i8_i32(static_cast<const int8_t*>(p) + at));
    return S::convert(S::load_u8_i32(static_cast<const uint8_t*>(p) + at));
  }

  template <bool Signed>
  static void dequantize_levels(const GridRows& matrix, int64_t row, uint16_t* out) {
    for (int64_t g = row * matrix.groups; g < (row + 1) * matrix.groups; ++g) {
      const F32 scale = S::set1(matrix.scales[g]);
      const F32 zero = S::set1(matrix.zeros ? matrix.zeros[g] : 0.0f);
      const F32 offset = S::set1(matrix.offsets ? matrix.offsets[g] : 0.0f);
      for (int64_t i = 0; i < matrix.size; i += kLanes, out += kLanes) {
        F32 x = levels<Signed>(matrix.levels, g * matrix.size + i);
        if (matrix.zeros) x = S::sub(x, zero);
        x = S::mul(x, scale);
        if (matrix.offsets) x = S::add(x, offset);
        store_bf16<S>(out, x);
      }
    }
  }

  static void dequantize(const GridRows& matrix, int64_t row, uint16_t* out) {
    if (matrix.is_signed) return dequantize_levels<true>(matrix, row, out);
    dequantize_levels<false>(matrix, row, out);
  }

  template <bool Signed>
  static void gather_levels(const GridRows& matrix, int64_t row, const uint16_t* gradient,
                            float* products, float* sums) {
    for (int64_t g = 0; g < matrix.groups; ++g) {
      const int64_t group = row * matrix.groups + g;
      const F32 zero = S::set1(matrix.zeros ? matrix.zeros[group] : 0.0f);
      F32 product = S::zero_f32();
      F32 sum = S::zero_f32();
      for (int64_t i = 0; i < matrix.size; i += kLanes, gradient += kLanes) {
        const F32 pull = S::load_bf16(gradient);
        const F32 x = S::sub(levels<Signed>(matrix.levels, group * matrix.size + i), zero);
        product = S::fma(pull, x, product);
        sum = S::add(sum, pull);
      }
      products[g] = S::reduce_add(product);
      if (sums) sums[g] = S::reduce_add(sum);
    }
  }

  static void gather(const GridRows& matrix, int64_t row, const uint16_t* gradient, float* products,
                     float* sums) {
    if (matrix.is_signed) return gather_levels<true>(matrix, row, gradient, products, sums);
    gather_levels<false>(matrix, row, gradient, products, sums);
  }

  static void clear_unseen(const SeenRow& row) {
    std::memset(row.values, 0, row.first * sizeof(uint16_t));
    std::memset(row.values + row.last, 0, (row.length - row.last) * sizeof(uint16_t));
  }

  static void softmax(const SeenRow& row, float scale) {
    const F32 factor = S::set1(scale);
    F32 largest = S::set1(kNothing);
    runs(row.first, row.last, [&](int64_t at, int lanes) {
      const F32 x = S::mul(load(row.values + at, lanes), factor);
      store_any(row.room + at, x, lanes);
      largest = S::max(or_nothing(x, lanes, kNothing), largest);
    });
    const F32 top = S::set1(S::reduce_max(largest));
    F32 sum = S::zero_f32();
    runs(row.first, row.last, [&](int64_t at, int lanes) {
      const F32 e = exp<S>(S::sub(load_any(row.room + at, lanes), top));
      store_any(row.room + at, e, lanes);
      sum = S::add(sum, or_nothing(e, lanes, 0.0f));
    });
    const F32 inverse = S::set1(1.0f / S::reduce_add(sum));
    runs(row.first, row.last, [&](int64_t at, int lanes) {
      store(row.values + at, S::mul(load_any(row.room + at, lanes), inverse), lanes);
    });
    clear_unseen(row);
  }

  static void softmax_back(const SeenRow& row, const uint16_t* probabilities, float scale) {
    F32 sum = S::zero_f32();
    runs(row.first, row.last, [&](int64_t at, int lanes) {
      sum = S::fma(load(probabilities + at, lanes), load(row.values + at, lanes), sum);
    });
    const F32 mean = S::set1(S::reduce_add(sum));
    const F32 factor = S::set1(scale);
    runs(row.first, row.last, [&](int64_t at, int lanes) {
      const F32 away = S::sub(load(row.values + at, lanes), mean);
      const F32 p = S::mul(load(probabilities + at, lanes), factor);
      store(row.values + at, S::mul(p, away), lanes);
    });
    clear_unseen(row);
  }

  // 16 logits under their soft cap.
  FEWBIT_INLINE F32 logits(const uint16_t* p, int lanes, float cap) {
    F32 x = load(p, lanes);
    if (cap > 0.0f) x = S::mul(S::set1(cap), tanh<S>(S::div(x, S::set1(cap))));
    return or_nothing(x, lanes, kNothing);
  }

  // 1 minus the squared share of the cap that a capped logit has reached.
  FEWBIT_INLINE F32 slope(F32 x, float cap) {
    if (!(cap > 0.0f)) return S::set1(1.0f);
    const F32 reached = S::div(x, S::set1(cap));
    return S::sub(S::set1(1.0f), S::mul(reached, reached));
  }

  static float pull(const PullTask& task, const uint16_t* theirs, uint16_t* ours) {
    F32 their_largest = S::set1(kNothing);
    F32 our_largest = S::set1(kNothing);
    runs(0, task.length, [&](int64_t at, int lanes) {
      their_largest = S::max(logits(theirs + at, lanes, task.their_cap), their_largest);
      our_largest = S::max(logits(ours + at, lanes, task.our_cap), our_largest);
    });
    const float their_top = S::reduce_max(their_largest);
    const float our_top = S::reduce_max(our_largest);
    const F32 their_shift = S::set1(their_top);
    const F32 our_shift = S::set1(our_top);
    F32 their_sum = S::zero_f32();
    F32 our_sum = S::zero_f32();
    runs(0, task.length, [&](int64_t at, int lanes) {
      const F32 t = logits(theirs + at, lanes, task.their_cap);
      const F32 s = logits(ours + at, lanes, task.our_cap);
      their_sum = S::add(their_sum, exp<S>(S::sub(t, their_shift)));
      our_sum = S::add(our_sum, exp<S>(S::sub(s, our_shift)));
    });
    const float their_total = S::reduce_add(their_sum);
    const float our_total = S::reduce_add(our_sum);
    const F32 their_inverse = S::set1(1.0f / their_total);
    const F32 our_inverse = S::set1(1.0f / our_total);
    const F32 share = S::set1(task.share);
    F32 apart = S::zero_f32();
    runs(0, task.length, [&](int64_t at, int lanes) {
      const F32 t = logits(theirs + at, lanes, task.their_cap);
      const F32 s = logits(ours + at, lanes, task.our_cap);
      const F32 p = S::mul(exp<S>(S::sub(t, their_shift)), their_inverse);
      const F32 q = S::mul(exp<S>(S::sub(s, our_shift)), our_inverse);
      apart = S::fma(p, S::sub(t, s), apart);
      const F32 away = S::mul(S::sub(q, p), share);
      store(ours + at, S::mul(away, slope(s, task.our_cap)), lanes);
    });
    const double constants = static_cast<double>(their_top) - our_top +
                             std::log(static_cast<double>(their_total)) -
                             std::log(static_cast<double>(our_total));
    return static_cast<float>(S::reduce_add(apart) - constants);
  }

  static void gated(const uint16_t* gate, const uint16_t* up, int64_t length, bool gelu,
                    uint16_t* out) {
    runs(0, length, [&](int64_t at, int lanes) {
      const F32 x = load(gate + at, lanes);
      const F32 bent = gelu ? gelu_tanh<S>(x) : silu<S>(x);
      store(out + at, S::mul(bent, load(up + at, lanes)), lanes);
    });
  }

  // With z = x for silu and 2 u(x) for gelu (see math.h) and s = sigmoid(z), the activation is x s
  // and its slope s + x s (1 - s) z'.
  static void gated_back(const GatedPull& pull, int64_t length, bool gelu) {
    const F32 one = S::set1(1.0f);
    const F32 twice = S::set1(0x1.988454p+0f);
    runs(0, length, [&](int64_t at, int lanes) {
      const F32 x = load(pull.gate + at, lanes);
      F32 z = x;
      F32 steep = one;
      if (gelu) {
        const F32 square = S::mul(x, x);
        z = S::mul(twice, S::fma(S::mul(square, S::set1(0.044715f)), x, x));
        steep = S::mul(twice, S::fma(square, S::set1(3 * 0.044715f), one));
      }
      const F32 s = sigmoid<S>(z);
      const F32 bent = S::mul(x, s);
      const F32 slope = S::fma(S::mul(bent, S::sub(one, s)), steep, s);
      const F32 gradient = load(pull.gradient + at, lanes);
      const F32 up = load(pull.up + at, lanes);
      store(pull.towards_gate + at, S::mul(S::mul(gradient, up), slope), lanes);
      store(pull.towards_up + at, S::mul(gradient, bent), lanes);
    });
  }

  template <class T>
  static void norm_of(const NormRows& rows, int64_t row, float eps, uint16_t* out) {
    const T* x = static_cast<const T*>(rows.values) + row * rows.width;
    F32 squares = S::zero_f32();
    runs(0, rows.width, [&](int64_t at, int lanes) {
      const F32 v = load_any(x + at, lanes);
      squares = S::fma(v, v, squares);
    });
    const float mean = S::reduce_add(squares) / static_cast<float>(rows.width);
    rows.inverse[row] = 1.0f / std::sqrt(mean + eps);
    const F32 inverse = S::set1(rows.inverse[row]);
    runs(0, rows.width, [&](int64_t at, int lanes) {
      const F32 h = S::mul(load_any(x + at, lanes), inverse);
      store(out + at, S::mul(h, load_any(rows.factor + at, lanes)), lanes);
    });
  }

  static void norm(const NormRows& rows, int64_t row, float eps, uint16_t* out) {
    if (rows.halves) return norm_of<uint16_t>(rows, row, eps, out);
    norm_of<float>(rows, row, eps, out);
  }

  // With h = x inverse and g the gradient: (g factor - h mean(g factor h)) inverse, and g h.
  template <class T>
  static void norm_back_of(const NormRows& rows, int64_t row, const NormPull& pull) {
    const T* x = static_cast<const T*>(rows.values) + row * rows.width;
    const uint16_t* gradient = pull.gradient + row * rows.width;
    T* towards = static_cast<T*>(pull.towards) + row * rows.width;
    const F32 inverse = S::set1(rows.inverse[row]);
    F32 sum = S::zero_f32();
    runs(0, rows.width, [&](int64_t at, int lanes) {
      const F32 h = S::mul(load_any(x + at, lanes), inverse);
      const F32 product = S::mul(load(gradient + at, lanes), h);
      store_any(pull.factor + at, S::add(load_any(pull.factor + at, lanes), product), lanes);
      sum = S::fma(product, load_any(rows.factor + at, lanes), sum);
    });
    const F32 mean = S::set1(S::reduce_add(sum) / static_cast<float>(rows.width));
    runs(0, rows.width, [&](int64_t at, int lanes) {
      const F32 h = S::mul(load_any(x + at, lanes), inverse);
      const F32 g = S::mul(load(gradient + at, lanes), load_any(rows.factor + at, lanes));
      store_any(towards + at, S::mul(S::sub(g, S::mul(h, mean)), inverse), lanes);
    });
  }

  static void norm_back(const NormRows& rows, int64_t row, const NormPull& pull) {
    if (rows.halves) return norm_back_of<uint16_t>(rows, row, pull);
    norm_back_of<float>(rows, row, pull);
  }

  static void rotate(const uint16_t* x, const float* table, int64_t half, float sign,
                     uint16_t* out) {
    const F32 direction = S::set1(sign);
    runs(0, half, [&](int64_t at, int lanes) {
      const F32 cosine = load_any(table + at, lanes);
      const F32 sine = S::mul(load_any(table + half + at, lanes), direction);
      const F32 a = load(x + at, lanes);
      const F32 b = load(x + half + at, lanes);
      store(out + at, S::sub(S::mul(a, cosine), S::mul(b, sine)), lanes);
      store(out + half + at, S::add(S::mul(b, cosine), S::mul(a, sine)), lanes);
    });
  }
};

template <class S>
constexpr TrainingKernels make_training_kernels() {
  using K = Training<S>;
  return {&K::dequantize, &K::gather,     &K::softmax, &K::softmax_back, &K::pull,
          &K::gated,      &K::gated_back, &K::norm,    &K::norm_back,    &K::rotate};
}

}  // namespace fewbit
